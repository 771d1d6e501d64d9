"""Evidence recorded on the node itself, for a challenge of its own: material for baselines and for looking, not proof.

Whoever records can choose the nonce and wait, so results over it say `freshness: recorded` and are never signed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from attester.binding_key import boot_key, make_boot_key
from attester.bundle import Wanted, answer, sources_of
from attester.collectors.ima_log import collect_ima_log
from attester.keys import AttestationKey, create_ak, read_endorsement_key
from attester.settings import AttesterSettings
from attester.state import read_enrolment
from attester.tpm import Tpm
from edges.private_files import replace_private, require_private_directory
from verifier.wire.bundle import NONCE_BYTES, Nonce
from verifier.wire.challenge import DEFAULT_PCRS
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence, Rejection, Unavailable
from verifier.wire.messages import text_of
from verifier.wire.recording import RecordedChallenge, RecordedEnrolment, Recording, recording_files

PCR_BANK = "sha256"
IMA_FILE = "ima.bin"
"""Beside the recording and named by none of its files: the verifier does not judge it yet."""
_UNASSIGNED = "unassigned"


@dataclass(frozen=True, slots=True)
class Recorded:
    """What was written. `ima_log_bytes` is None when the IMA log could not be read; then the problem says why."""

    node_id: str
    directory: Path
    files: tuple[str, ...]
    ima_log_bytes: int | None
    ima_log_problem: str | None

    def as_json(self) -> dict[str, str | int | list[str] | None]:
        """The form for `--json`."""
        return {
            "node_id": self.node_id,
            "directory": str(self.directory),
            "files": list(self.files),
            "ima_log_bytes": self.ima_log_bytes,
            "ima_log_problem": self.ima_log_problem,
        }


def record(tpm: Tpm, settings: AttesterSettings, directory: Path, now: int) -> Recorded:
    """`directory` (new or empty, mode 0700) holds evidence for a nonce made now (seconds since 1970), and the IMA log.

    An enrolled node records with its own AK and binding key; another with keys made for this and forgotten. Raises
    what collecting raises; only the IMA log may be missing, and that is said.
    """
    require_private_directory(directory)
    if any(directory.iterdir()):
        raise MalformedEvidence(ReasonCode.SETTING_INVALID, "--out", str(directory), "a new or empty directory")
    ek = read_endorsement_key(tpm, settings.ek_type)
    ak, enrolled = _attestation_key(tpm, settings)
    key = boot_key(tpm, ak, ek.node_id, settings.runtime_dir) if enrolled else make_boot_key(tpm, ak, ek.node_id)
    wanted = Wanted(Nonce(os.urandom(NONCE_BYTES)), PCR_BANK, DEFAULT_PCRS, None, node_token=False)
    bundle = answer(tpm, ak, key, ek.node_id, settings.verifier_id, wanted, sources_of(settings))
    challenge = RecordedChallenge(
        nonce=text_of(wanted.nonce),
        issued_at=now,
        pcr_bank=PCR_BANK,
        pcrs=list(DEFAULT_PCRS),
        form="bound",
        verifier_id=settings.verifier_id,
    )
    enrolment = RecordedEnrolment(
        node_id=ek.node_id,
        node_name=settings.node_name,
        tenant=_UNASSIGNED,
        cohort=_UNASSIGNED,
        ek_public=text_of(ek.public),
        ak_public=text_of(ak.blob.public),
        ek_certificates=[text_of(certificate) for certificate in ek.certificates],
    )
    files = recording_files(Recording(bundle, challenge, enrolment))
    # For 'nodewarden inspect', which takes one structure a file; the recording itself does not name these.
    files |= {"ak.public.bin": ak.blob.public, "ek.public.bin": ek.public}
    files |= {f"ek-{index}.certificate.der": content for index, content in enumerate(ek.certificates)}
    problem: str | None = None
    try:
        files[IMA_FILE] = collect_ima_log(settings.ima_log_path)
    except Unavailable as error:
        problem = error.failure.line()
    for name, content in files.items():
        replace_private(directory / name, content)
    ima_log = files.get(IMA_FILE)
    size = None if ima_log is None else len(ima_log)
    return Recorded(ek.node_id, directory, tuple(sorted(files)), size, problem)


def _attestation_key(tpm: Tpm, settings: AttesterSettings) -> tuple[AttestationKey, bool]:
    try:
        enrolment = read_enrolment(settings.state_dir)
    except Rejection as refusal:
        if refusal.code is not ReasonCode.NOT_ENROLLED:
            raise
        return AttestationKey(create_ak(tpm, settings.ek_type, settings.ak_type)), False
    # With another EK chosen since, the kept AK would not be under the recorded one.
    if enrolment.ak.ek_kind is not settings.ek_type:
        return AttestationKey(create_ak(tpm, settings.ek_type, settings.ak_type)), False
    return AttestationKey(enrolment.ak), True
