"""Broker and attester together on a real software TPM: what is released opens there, in that boot, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from attester.binding_key import boot_key
from attester.release import open_secrets, request_secrets
from attester.templates import AkType, EkType
from attester.tpm import open_tpm
from nodewarden_demo.software_tpm import SoftwareTpm
from tests.admission.test_broker import SECRET, World
from tests.admission.world import NODE, a_result
from tests.attester.machine import Machine, boot, enrolment_of, new_nonce
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Refusal
from verifier.wire.messages import text_of
from verifier.wire.release import ReleaseEnvelope, ReleaseResponse

pytestmark = pytest.mark.swtpm
NAMES = ("llm/key",)


@pytest.fixture(params=[AkType.P_256, AkType.RSA_2048])
def machine(request: pytest.FixtureRequest, tpm: SoftwareTpm, tmp_path: Path) -> Iterator[Machine]:
    with open_tpm(tpm.tcti) as connection:
        yield boot(tpm, connection, tmp_path, EkType.RSA_2048, request.param)


def attested(machine: Machine, path: Path) -> World:
    """A broker whose cluster knows the machine by what the verifier's own code made of its evidence."""
    boot_key(machine.tpm, machine.ak, machine.node_id, machine.runtime)
    nonce = new_nonce()
    verified = machine.verified(machine.collect(nonce), nonce)
    assert verified.binding_key is not None
    folder = path / "broker"
    folder.mkdir()
    world = World(folder)
    result = a_result(
        node_id=machine.node_id,
        binding_key=dict(verified.binding_key.jwk),
        ak_public=text_of(machine.ak.blob.public),
    )
    world.cluster = replace(world.cluster, results={NODE: result})
    return world


def asked(machine: Machine, world: World) -> ReleaseEnvelope:
    token = world.token().encode()
    return request_secrets(machine.tpm, machine.ak, enrolment_of(machine), token, NAMES, world.now)


def test_a_secret_released_to_a_tpm_opens_there_and_never_after_a_reboot(
    machine: Machine, tpm: SoftwareTpm, tmp_path: Path
) -> None:
    world = attested(machine, tmp_path)
    answer = world.post(asked(machine, world))
    assert answer.status_code == 200, answer.text
    released = ReleaseResponse.model_validate_json(answer.content)
    (opened,) = open_secrets(machine.tpm, machine.ak, released, NAMES, machine.runtime)
    assert opened.content == SECRET
    tpm.restart()
    with pytest.raises(Refusal):
        open_secrets(machine.tpm, machine.ak, released, NAMES, machine.runtime)
    world.database.close()


def test_a_request_that_another_tpm_signs_for_this_node_is_denied(
    machine: Machine, other_tpm: SoftwareTpm, tmp_path: Path
) -> None:
    world = attested(machine, tmp_path)
    with open_tpm(other_tpm.tcti) as connection:
        other = boot(other_tpm, connection, tmp_path / "other", EkType.RSA_2048, AkType.P_256)
        node, token = enrolment_of(machine), world.token().encode()
        forged = request_secrets(connection, other.ak, node, token, NAMES, world.now)
    assert world.code(forged) is ReasonCode.POSSESSION_NOT_PROVED
    world.database.close()
