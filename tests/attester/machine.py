"""A machine for tests: a software TPM that booted, the node's files, and what a verifier knows of it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from attester.binding_key import boot_key
from attester.bundle import Sources, Wanted, answer
from attester.keys import AttestationKey, create_ak, read_endorsement_key
from attester.settings import AttesterSettings
from attester.state import Enrolment, keep_enrolment, prepare_enrolment
from attester.templates import AkType, EkType
from attester.tpm import Tpm
from nodewarden_demo.software_tpm import SoftwareTpm
from verifier.appraisal.boot import measure_boot
from verifier.appraisal.context import EkEndorsement, EnrolledNode, IssuedChallenge
from verifier.appraisal.verify import VerifiedBundle, authenticate, verify
from verifier.evidence.parse import parse_bundle
from verifier.evidence.tpm import parse_public
from verifier.wire.bundle import EvidenceBundle, NodeId, Nonce
from verifier.wire.challenge import DEFAULT_PCRS

VERIFIER_ID = "https://verifier.example/"
BOOT_LOG_FILE = Path(__file__).parent.parent / "vectors/vm/sb-on-good/eventlog.bin"
BOOT_LOG = BOOT_LOG_FILE.read_bytes()
NOW = 1_800_000_000


def write_enrolment(state: Path, enrolment: Enrolment) -> None:
    """The state directory as an accepted enrolment leaves it."""
    prepare_enrolment(state, enrolment)
    keep_enrolment(state)


@dataclass(frozen=True, slots=True)
class Machine:
    """A booted machine with a fresh AK. The TPM connection is open for the whole test."""

    tpm: Tpm
    ak: AttestationKey
    node_id: NodeId
    ek_public: bytes
    runtime: Path

    def collect(self, nonce: Nonce) -> EvidenceBundle:
        """Evidence for `nonce`, as the attester collects it."""
        key = boot_key(self.tpm, self.ak, self.node_id, self.runtime)
        wanted = Wanted(nonce, "sha256", DEFAULT_PCRS, None, node_token=False)
        sources = Sources(BOOT_LOG_FILE, None)
        return answer(self.tpm, self.ak, key, self.node_id, VERIFIER_ID, wanted, sources)

    def verified(self, bundle: EvidenceBundle, nonce: Nonce) -> VerifiedBundle:
        """What the verifier's own code makes of `bundle`; raises its refusals."""
        node = EnrolledNode(
            self.node_id,
            "node-a",
            "tenant",
            "cohort",
            parse_public(self.ek_public),
            parse_public(self.ak.blob.public),
            EkEndorsement("none", None, None, None),
        )
        challenge = IssuedChallenge(nonce, self.node_id, "sha256", DEFAULT_PCRS, False, NOW, NOW + 120)
        authentic = authenticate(parse_bundle(bundle), node, challenge, VERIFIER_ID, None)
        return verify(authentic, measure_boot(BOOT_LOG, "sha256"), None)


def boot(software: SoftwareTpm, tpm: Tpm, directory: Path, ek: EkType, ak: AkType) -> Machine:
    """`software` after a genuine boot, with a new AK under its EK."""
    software.extend_boot_log(BOOT_LOG)
    endorsement = read_endorsement_key(tpm, ek)
    blob = create_ak(tpm, ek, ak)
    return Machine(tpm, AttestationKey(blob), endorsement.node_id, endorsement.public, directory / "runtime")


def new_nonce() -> Nonce:
    """A nonce as a verifier makes it."""
    return Nonce(os.urandom(32))


def settings_for(directory: Path, tcti: str, ca_file: Path, **changes: object) -> AttesterSettings:
    """Valid settings with every file below `directory`."""
    fields: dict[str, object] = {
        "verifier_url": "https://localhost:1",
        "broker_url": "https://localhost:1",
        "verifier_id": VERIFIER_ID,
        "ca_file": ca_file,
        "node_name": "node-a",
        "tcti": tcti,
        "state_dir": directory / "state",
        "runtime_dir": directory / "runtime",
        "boot_log_path": BOOT_LOG_FILE,
        "ima_log_path": directory / "no-ima-log",
    }
    return AttesterSettings.model_validate(fields | changes)


def enrolment_of(machine: Machine) -> Enrolment:
    """The machine's enrolment, as if a verifier had accepted it."""
    return Enrolment(machine.node_id, "node-a", VERIFIER_ID, machine.ak.blob)
