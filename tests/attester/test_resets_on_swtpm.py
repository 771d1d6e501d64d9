"""What dies with a boot: every kind of reset in which a secret of the old boot must not open again."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from jwcrypto.jwe import JWE
from jwcrypto.jwk import JWK
from tpm2_pytss.constants import ESYS_TR
from tpm2_pytss.types import TPM2B_SENSITIVE_CREATE

from attester.binding_key import BootKey, agree, boot_key, kept_boot_key
from attester.jwe import open_jwe
from attester.templates import AkType, EkType, binding_key_template
from attester.tpm import Tpm, open_tpm
from nodewarden_demo.software_tpm import SoftwareTpm
from tests.attester.machine import BOOT_LOG, boot, new_nonce
from verifier.evidence.tpm import parse_public
from verifier.wire.binding import boot_id
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Rejection

pytestmark = pytest.mark.swtpm

RESETS: Mapping[str, Callable[[SoftwareTpm], None]] = {
    "restart": SoftwareTpm.restart,
    "resume": SoftwareTpm.resume,
    "reset": SoftwareTpm.reset,
    "clear": SoftwareTpm.clear,
}
every_reset = pytest.mark.parametrize("reset", list(RESETS.values()), ids=list(RESETS))
SECRET = b"the model's key"


def jwe_for(machine_jwk: Mapping[str, str]) -> dict[str, Any]:
    """SECRET encrypted by another implementation, as a broker does it."""
    header = json.dumps({"alg": "ECDH-ES+A256KW", "enc": "A256GCM"})
    sealed = JWE(SECRET, protected=header, recipient=JWK(**machine_jwk))
    return dict(json.loads(sealed.serialize()))


def released_before(tpm: SoftwareTpm, connection: Tpm, directory: Path) -> tuple[Any, BootKey, dict[str, Any]]:
    """A machine whose verified binding key has had a secret encrypted to it, which opens now."""
    machine = boot(tpm, connection, directory, EkType.P_256, AkType.P_256)
    nonce = new_nonce()
    verified = machine.verified(machine.collect(nonce), nonce)
    assert verified.binding_key is not None
    key = kept_boot_key(connection, machine.ak, machine.runtime)
    sealed = jwe_for(verified.binding_key.jwk)
    assert open_jwe(sealed, partial(agree, connection, key)) == SECRET
    return machine, key, sealed


@every_reset
def test_a_secret_of_the_old_boot_never_opens_again(
    tpm: SoftwareTpm, tmp_path: Path, reset: Callable[[SoftwareTpm], None]
) -> None:
    with open_tpm(tpm.tcti) as connection:
        _, key, sealed = released_before(tpm, connection, tmp_path)
    reset(tpm)
    with open_tpm(tpm.tcti) as connection:
        now = connection.read_clock()
        assert (now.reset_count, now.restart_count) != (key.reset_count, key.restart_count)
        # With the counters of then (its own policy) and with those of now (another policy, so another key).
        forged = replace(key, reset_count=now.reset_count, restart_count=now.restart_count)
        for attempt in (key, forged):
            with pytest.raises(Rejection) as refusal:
                open_jwe(sealed, partial(agree, connection, attempt))
            assert refusal.value.code is ReasonCode.SECRET_DOES_NOT_OPEN
        assert connection.loaded_handles() == 0


def test_after_restart_the_same_key_derives_again_and_still_does_not_open(tpm: SoftwareTpm, tmp_path: Path) -> None:
    # The case that a certificate of residence alone would miss: the null seed survives, so the key itself is back.
    with open_tpm(tpm.tcti) as connection:
        _, key, sealed = released_before(tpm, connection, tmp_path)
    tpm.restart()
    with open_tpm(tpm.tcti) as connection:
        template = binding_key_template(key.unique, key.reset_count, key.restart_count)
        handle, public, *_ = connection.esapi.create_primary(TPM2B_SENSITIVE_CREATE(), template, ESYS_TR.NULL)
        connection.esapi.flush_context(handle)
        assert bytes(public.marshal()) == key.public
        with pytest.raises(Rejection) as refusal:
            open_jwe(sealed, partial(agree, connection, key))
    assert refusal.value.code is ReasonCode.SECRET_DOES_NOT_OPEN


@every_reset
def test_the_kept_binding_key_is_not_offered_after_the_boot(
    tpm: SoftwareTpm, tmp_path: Path, reset: Callable[[SoftwareTpm], None]
) -> None:
    with open_tpm(tpm.tcti) as connection:
        machine, _, _ = released_before(tpm, connection, tmp_path)
    reset(tpm)
    with open_tpm(tpm.tcti) as connection, pytest.raises(Rejection) as refusal:
        kept_boot_key(connection, machine.ak, machine.runtime)
    assert refusal.value.code is ReasonCode.SECRET_DOES_NOT_OPEN


@pytest.mark.parametrize("name", ["restart", "resume", "reset"])
def test_the_next_boot_attests_with_the_same_ak_and_a_new_binding_key(
    tpm: SoftwareTpm, tmp_path: Path, name: str
) -> None:
    with open_tpm(tpm.tcti) as connection:
        machine, old, _ = released_before(tpm, connection, tmp_path)
    RESETS[name](tpm)
    with open_tpm(tpm.tcti) as connection:
        again = replace(machine, tpm=connection)
        new = boot_key(connection, machine.ak, machine.node_id, machine.runtime)
        assert new.public != old.public
        assert parse_public(new.public).auth_policy != parse_public(old.public).auth_policy
        ids = {boot_id(machine.ak.blob.name, key.reset_count, key.restart_count) for key in (old, new)}
        assert len(ids) == 2
        if name == "resume":
            return  # PCRs are those of before; the verifier sees them anyway.
        nonce = new_nonce()
        with pytest.raises(Rejection) as refusal:
            # The PCRs are initial: the old boot log no longer fits, which a reboot cannot hide.
            again.verified(again.collect(nonce), nonce)
        assert refusal.value.code is ReasonCode.PCR_REPLAY_MISMATCH
        tpm.extend_boot_log(BOOT_LOG)
        nonce = new_nonce()
        again.verified(again.collect(nonce), nonce)


def test_after_clear_the_ak_no_longer_loads_also_not_from_its_saved_context(tpm: SoftwareTpm, tmp_path: Path) -> None:
    with open_tpm(tpm.tcti) as connection:
        machine, _, _ = released_before(tpm, connection, tmp_path)
        with machine.ak.loaded(connection):
            pass
    tpm.clear()
    with open_tpm(tpm.tcti) as connection:
        with pytest.raises(Rejection) as refusal, machine.ak.loaded(connection):
            pass
        assert refusal.value.code is ReasonCode.AK_NOT_LOADABLE
        assert connection.loaded_handles() == 0
        renewed = boot(tpm, connection, tmp_path, EkType.P_256, AkType.P_256)
        # The EK, and so the node, is the same; the AK is a new one.
        assert renewed.node_id == machine.node_id
        assert renewed.ak.blob.name != machine.ak.blob.name
