"""Slots, sessions, moving PCRs and missing commands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tpm2_pytss.constants import ESYS_TR
from tpm2_pytss.types import TPM2B_SENSITIVE_CREATE

from attester import tpm as tpm_module
from attester.keys import QUOTE_TRIES, quote, sign_request
from attester.templates import AkType, EkType, ek_template
from attester.tpm import Tpm, open_tpm
from nodewarden_demo.software_tpm import SoftwareTpm
from tests.attester.machine import boot, new_nonce
from verifier.wire.challenge import DEFAULT_PCRS
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Rejection, Unavailable
from verifier.wire.signed_request import RequestLabel

pytestmark = pytest.mark.swtpm


class Interrupted:
    """The real ESAPI, with something that happens just before each quote."""

    def __init__(self, esapi: Any, before_quote: Callable[[int], None]) -> None:
        self._esapi = esapi
        self._before_quote = before_quote
        self.quotes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._esapi, name)

    def quote(self, *arguments: Any, **named: Any) -> Any:
        self.quotes += 1
        self._before_quote(self.quotes)
        return self._esapi.quote(*arguments, **named)


def test_fifty_rounds_leave_no_session_and_no_object_behind(tpm: SoftwareTpm, tmp_path: Path) -> None:
    with open_tpm(tpm.tcti) as connection:
        machine = boot(tpm, connection, tmp_path, EkType.RSA_2048, AkType.P_256)
        for _ in range(50):
            machine.collect(new_nonce())
            with machine.ak.loaded(connection) as handle:
                sign_request(connection, handle, RequestLabel.CHALLENGE, b"{}")
        assert connection.loaded_handles() == 0


def test_a_failure_inside_leaves_nothing_loaded(tpm: SoftwareTpm, tmp_path: Path) -> None:
    with open_tpm(tpm.tcti) as connection:
        machine = boot(tpm, connection, tmp_path, EkType.RSA_2048, AkType.P_256)
        with pytest.raises(RuntimeError), machine.ak.loaded(connection):
            assert connection.loaded_handles() == 1
            raise RuntimeError
        with pytest.raises(RuntimeError), connection.policy_session():
            assert connection.loaded_handles() == 1
            raise RuntimeError
        assert connection.loaded_handles() == 0


def test_pcrs_that_move_once_between_reading_and_quoting_are_collected_again(tpm: SoftwareTpm, tmp_path: Path) -> None:
    def extend_first(number: int) -> None:
        if number == 1:
            tpm.extend(9, {"sha256": b"\1" * 32})

    with open_tpm(tpm.tcti) as connection:
        machine = boot(tpm, connection, tmp_path, EkType.P_256, AkType.P_256)
        watched = Interrupted(connection.esapi, extend_first)
        with machine.ak.loaded(connection) as handle:
            made = quote(Tpm(watched), handle, "sha256", DEFAULT_PCRS, b"n" * 32)
        assert watched.quotes == 2
        assert made.pcrs == connection.read_pcrs("sha256", DEFAULT_PCRS)


def test_pcrs_that_never_rest_are_reported_after_three_tries(tpm: SoftwareTpm, tmp_path: Path) -> None:
    with open_tpm(tpm.tcti) as connection:
        machine = boot(tpm, connection, tmp_path, EkType.P_256, AkType.P_256)
        watched = Interrupted(connection.esapi, lambda number: tpm.extend(9, {"sha256": bytes([number]) * 32}))
        with machine.ak.loaded(connection) as handle, pytest.raises(Unavailable) as failure:
            quote(Tpm(watched), handle, "sha256", DEFAULT_PCRS, b"n" * 32)
        assert watched.quotes == QUOTE_TRIES
        assert failure.value.code is ReasonCode.PCR_DIGEST_MISMATCH
        assert connection.loaded_handles() == 0


def test_a_pcr_outside_the_selection_may_move(tpm: SoftwareTpm, tmp_path: Path) -> None:
    with open_tpm(tpm.tcti) as connection:
        machine = boot(tpm, connection, tmp_path, EkType.P_256, AkType.P_256)
        watched = Interrupted(connection.esapi, lambda _: tpm.extend(10, {"sha256": b"\1" * 32}))
        with machine.ak.loaded(connection) as handle:
            quote(Tpm(watched), handle, "sha256", DEFAULT_PCRS, b"n" * 32)
        assert watched.quotes == 1


def test_more_pcrs_than_a_call_gives_are_all_read_in_order(tpm: SoftwareTpm) -> None:
    with open_tpm(tpm.tcti) as connection:
        tpm.extend(16, {"sha256": b"\1" * 32})
        values = connection.read_pcrs("sha256", tuple(reversed(range(24))))
        assert list(values) == list(range(24))
        assert any(values[16])
        assert not any(values[15])


def test_an_inactive_bank_is_its_own_failure(tpm: SoftwareTpm) -> None:
    with open_tpm(tpm.tcti) as connection, pytest.raises(Rejection) as refusal:
        connection.read_pcrs("sha512", DEFAULT_PCRS)
    assert refusal.value.code is ReasonCode.PCR_BANK_INACTIVE


def test_a_tpm_with_the_counter_policy_is_accepted(tpm: SoftwareTpm) -> None:
    with open_tpm(tpm.tcti) as connection:
        connection.require_counter_policy()


def test_a_tpm_without_the_counter_policy_is_refused(tpm: SoftwareTpm, monkeypatch: pytest.MonkeyPatch) -> None:
    # Asked for a command that swtpm lacks (TPM2_PolicyCapability, of a later specification), the probe must say no.
    monkeypatch.setattr(tpm_module, "REQUIRED_COMMAND", 0x19B)
    with open_tpm(tpm.tcti) as connection, pytest.raises(Rejection) as refusal:
        connection.require_counter_policy()
    assert refusal.value.code is ReasonCode.TPM_COMMAND_MISSING


def test_no_tpm_at_the_address_is_tpm_unavailable(tpm: SoftwareTpm) -> None:
    tcti = tpm.tcti
    tpm.stop()
    with pytest.raises(Unavailable) as failure, open_tpm(tcti) as connection:
        connection.read_clock()
    assert failure.value.code is ReasonCode.TPM_UNAVAILABLE


@pytest.mark.parametrize("tcti", ["device:/no/such/tpm", "no-such-module:x", ""])
def test_an_impossible_address_is_tpm_unavailable(tcti: str) -> None:
    with pytest.raises(Unavailable) as failure, open_tpm(tcti) as connection:
        connection.read_clock()
    assert failure.value.code is ReasonCode.TPM_UNAVAILABLE


def test_what_the_tpm_itself_refuses_is_tpm_failed(tpm: SoftwareTpm) -> None:
    with open_tpm(tpm.tcti) as connection:
        handle, *_ = connection.esapi.create_primary(
            TPM2B_SENSITIVE_CREATE(), ek_template(EkType.P_256), ESYS_TR.ENDORSEMENT
        )
        with connection.transient(handle), pytest.raises(Unavailable) as failure:
            # A decryption key cannot sign.
            quote(connection, handle, "sha256", (0,), b"n" * 32)
        assert failure.value.code is ReasonCode.TPM_FAILED
        assert connection.loaded_handles() == 0
