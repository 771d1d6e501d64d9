"""A real TPM that measured a genuine boot: every kind of EK and AK, and what its resets do to evidence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from attester.binding_key import BootKey, make_boot_key
from attester.bundle import Sources, Wanted, answer
from attester.keys import AttestationKey, create_ak, read_endorsement_key
from attester.templates import AkType, EkType
from attester.tpm import open_tpm
from nodewarden_demo.software_tpm import LocalCa, SoftwareTpm
from tests.forge import baselines
from tests.forge.evidence import LINUX_BOOT_ID, NOW, VERIFIER_ID, measured, vm_log
from verifier.appraisal.appraise import Appraisal, appraise, rejected
from verifier.appraisal.authenticate import authenticate
from verifier.appraisal.context import EnrolledNode, IssuedChallenge, LastSeen
from verifier.appraisal.ek_certificate import verify_ek_certificate
from verifier.appraisal.endorsements import Endorsements
from verifier.appraisal.verify import verify
from verifier.evidence.parse import parse_bundle
from verifier.evidence.tpm import parse_public
from verifier.wire.bundle import EvidenceBundle, Nonce
from verifier.wire.challenge import DEFAULT_PCRS
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Rejection
from verifier.wire.result import Verdict

pytestmark = pytest.mark.swtpm


@dataclass(frozen=True)
class Machine:
    """A node on a software TPM, without an attester's files around it."""

    tpm: SoftwareTpm
    sources: Sources
    enrolled: EnrolledNode
    ak: AttestationKey

    def boot_key(self) -> BootKey:
        with open_tpm(self.tpm.tcti) as device:
            return make_boot_key(device, self.ak, self.enrolled.node_id)

    def answer(self, key: BootKey, nonce: bytes) -> EvidenceBundle:
        wanted = Wanted(Nonce(nonce), "sha256", DEFAULT_PCRS, None, node_token=False)
        with open_tpm(self.tpm.tcti) as device:
            return answer(device, self.ak, key, self.enrolled.node_id, VERIFIER_ID, wanted, self.sources)

    def judge(self, bundle: EvidenceBundle, last: LastSeen | None = None) -> Appraisal:
        challenge = IssuedChallenge(
            bundle.claimed_nonce, self.enrolled.node_id, "sha256", DEFAULT_PCRS, False, NOW, NOW + 120
        )
        authentic = authenticate(parse_bundle(bundle), self.enrolled, challenge, VERIFIER_ID, last)
        try:
            verified = verify(authentic, measured(vm_log()), None)
        except Rejection as rejection:
            return rejected(authentic, rejection.failure)
        return appraise(verified, (baselines.good(),), NOW)


def _machine(tpm: SoftwareTpm, ca: LocalCa, directory: Path, ek_kind: EkType, ak_kind: AkType) -> Machine:
    log, boot_id = directory / "boot.log", directory / "boot_id"
    log.write_bytes(vm_log())
    boot_id.write_text(LINUX_BOOT_ID + "\n")
    tpm.extend_boot_log(vm_log())
    with open_tpm(tpm.tcti) as device:
        endorsement_key = read_endorsement_key(device, ek_kind)
        ak = AttestationKey(create_ak(device, ek_kind, ak_kind))
    ek = parse_public(endorsement_key.public)
    trusted = Endorsements((ca.root_der,), (ca.issuer_der,))
    endorsement = verify_ek_certificate(ek, endorsement_key.certificates, trusted, 1_900_000_000)
    enrolled = EnrolledNode(
        endorsement_key.node_id, "node-a", "ml", "prod-a", ek, parse_public(ak.blob.public), endorsement
    )
    return Machine(tpm, Sources(log, None, boot_id), enrolled, ak)


@pytest.mark.parametrize("ek_kind", list(EkType))
@pytest.mark.parametrize("ak_kind", list(AkType))
def test_a_genuine_boot_on_a_real_tpm_is_affirmed(
    tpm: SoftwareTpm, tpm_ca: LocalCa, tmp_path: Path, ek_kind: EkType, ak_kind: AkType
) -> None:
    machine = _machine(tpm, tpm_ca, tmp_path, ek_kind, ak_kind)
    key = machine.boot_key()
    appraisal = machine.judge(machine.answer(key, b"n" * 32))
    assert appraisal.failures == ()
    assert appraisal.verdict is Verdict.AFFIRMING
    again = machine.judge(machine.answer(key, b"m" * 32), appraisal.seen)
    assert again.boot_id == appraisal.boot_id
    assert again.binding_key_jwk == appraisal.binding_key_jwk
    assert again.seen.clock_ms > appraisal.seen.clock_ms


def test_the_same_quote_does_not_count_twice_within_a_boot(tpm: SoftwareTpm, tpm_ca: LocalCa, tmp_path: Path) -> None:
    machine = _machine(tpm, tpm_ca, tmp_path, EkType.P_256, AkType.P_256)
    bundle = machine.answer(machine.boot_key(), b"n" * 32)
    seen = machine.judge(bundle).seen
    with pytest.raises(Rejection) as caught:
        machine.judge(bundle, seen)
    assert caught.value.code is ReasonCode.CLOCK_REGRESSED


@pytest.mark.parametrize("cycle", [SoftwareTpm.reset, SoftwareTpm.restart, SoftwareTpm.resume])
def test_a_binding_key_does_not_outlive_its_boot(
    tpm: SoftwareTpm, tpm_ca: LocalCa, tmp_path: Path, cycle: Callable[[SoftwareTpm], None]
) -> None:
    machine = _machine(tpm, tpm_ca, tmp_path, EkType.P_256, AkType.P_256)
    key = machine.boot_key()
    before = machine.judge(machine.answer(key, b"n" * 32))
    cycle(tpm)
    if cycle is not SoftwareTpm.resume:
        tpm.extend_boot_log(vm_log())
    after = machine.judge(machine.answer(key, b"m" * 32), before.seen)
    assert [failure.code for failure in after.failures] == [ReasonCode.BINDING_KEY_COUNTERS_MISMATCH]
    assert after.binding_key_jwk is None
    renewed = machine.judge(machine.answer(machine.boot_key(), b"o" * 32), before.seen)
    assert renewed.verdict is Verdict.AFFIRMING
    assert renewed.boot_id != before.boot_id
    assert renewed.binding_key_jwk != before.binding_key_jwk


def test_a_reboot_into_something_else_is_contraindicated(tpm: SoftwareTpm, tpm_ca: LocalCa, tmp_path: Path) -> None:
    machine = _machine(tpm, tpm_ca, tmp_path, EkType.RSA_2048, AkType.P_256)
    tpm.reset()
    tpm.extend_boot_log(vm_log("sb-off"))
    appraisal = machine.judge(machine.answer(machine.boot_key(), b"n" * 32))
    assert [failure.code for failure in appraisal.failures] == [ReasonCode.PCR_REPLAY_MISMATCH]


def test_an_ak_of_another_tpm_is_refused(
    tpm: SoftwareTpm, other_tpm: SoftwareTpm, tpm_ca: LocalCa, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    machine = _machine(tpm, tpm_ca, tmp_path, EkType.P_256, AkType.P_256)
    other = _machine(other_tpm, tpm_ca, tmp_path / "other", EkType.P_256, AkType.P_256)
    posing = Machine(other_tpm, other.sources, machine.enrolled, other.ak)
    with pytest.raises(Rejection) as caught:
        posing.judge(posing.answer(posing.boot_key(), b"n" * 32))
    assert caught.value.code is ReasonCode.QUOTE_SIGNATURE_INVALID
