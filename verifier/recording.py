"""Recorded evidence read from a directory and judged by the same code as live evidence, at the recorded time.

A recording proves less: whoever made it chose the nonce, and could wait. So its results say `freshness: recorded`, are
never signed, and never change a node's verdict.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from policies.compiler import CompiledBaseline
from verifier.appraisal.appraise import Appraisal, appraise, rejected
from verifier.appraisal.authenticate import AuthenticBundle, authenticate
from verifier.appraisal.boot import measure_boot
from verifier.appraisal.boot_facts import MeasuredBoot
from verifier.appraisal.context import EkEndorsement, EnrolledNode, IssuedChallenge
from verifier.appraisal.ek_certificate import verify_ek_certificate
from verifier.appraisal.endorsement_key import check_ek_template, node_id_of
from verifier.appraisal.endorsements import Endorsements
from verifier.appraisal.verify import VerifiedBundle, verify
from verifier.evidence.parse import parse_bundle
from verifier.evidence.tpm import PublicArea, parse_public
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence, Rejection, Unavailable
from verifier.wire.messages import bytes_of
from verifier.wire.recording import (
    FILE_NAME,
    MAX_FILE_BYTES,
    MAX_FILES,
    RecordedEnrolment,
    Recording,
    recorded_nonce,
    recording_from_files,
)

UNASSIGNED = "unassigned"
"""Tenant and cohort of a node that recorded itself: it does not know what the inventory says."""


@dataclass(frozen=True, slots=True)
class AuthenticRecording:
    """A recording whose quote the recorded AK signed for the recorded challenge; `boot` is its log, measured."""

    authentic: AuthenticBundle
    boot: MeasuredBoot | None


def read_recording(directory: Path) -> Recording:
    """The recording in `directory`; files that it does not name are left alone.

    Raises MalformedEvidence `recording-incomplete` and what decoding raises, `body-too-large` beyond `MAX_FILES` or
    `MAX_FILE_BYTES`; Unavailable `file-unreadable`.
    """
    files: dict[str, bytes] = {}
    try:
        for path in sorted(directory.iterdir()):
            # Only plain files of plain names: a link could lead anywhere.
            if FILE_NAME.fullmatch(path.name) is None or path.is_symlink() or not path.is_file():
                continue
            if len(files) >= MAX_FILES:
                raise MalformedEvidence(ReasonCode.BODY_TOO_LARGE, str(directory), None, f"at most {MAX_FILES} files")
            files[path.name] = _read(path)
    except OSError as error:
        raise Unavailable(ReasonCode.FILE_UNREADABLE, str(directory), error.strerror) from error
    return recording_from_files(files)


def _read(path: Path) -> bytes:
    with path.open("rb") as stream:
        content = stream.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise MalformedEvidence(ReasonCode.BODY_TOO_LARGE, path.name, None, f"at most {MAX_FILE_BYTES} bytes")
    return content


def recorded_node(recording: Recording, endorsements: Endorsements | None, now: int) -> EnrolledNode:
    """The node as recorded, its EK checked as at enrolment; endorsed if there are `endorsements` and a certificate.

    Raises what enrolment raises: Rejection `ek-...`; MalformedEvidence `public-area-malformed`,
    `certificate-malformed`, and `schema-mismatch` where the recorded node id is not the EK's.
    """
    enrolment = recording.enrolment
    ek, ak = parse_public(bytes_of(enrolment.ek_public)), parse_public(bytes_of(enrolment.ak_public))
    check_ek_template(ek)
    node_id = node_id_of(ek)
    if enrolment.node_id != node_id:
        raise MalformedEvidence(ReasonCode.SCHEMA_MISMATCH, "enrolment.node_id", enrolment.node_id, node_id)
    endorsement = _endorsement(ek, enrolment, endorsements, now)
    return EnrolledNode(node_id, enrolment.node_name, enrolment.tenant, enrolment.cohort, ek, ak, endorsement)


def _endorsement(
    ek: PublicArea, enrolment: RecordedEnrolment, endorsements: Endorsements | None, now: int
) -> EkEndorsement:
    if endorsements is None or not enrolment.ek_certificates:
        return EkEndorsement("none", None, None, None)
    certificates = tuple(bytes_of(text) for text in enrolment.ek_certificates)
    return verify_ek_certificate(ek, certificates, endorsements, now)


def authenticate_recording(recording: Recording, node: EnrolledNode) -> AuthenticRecording:
    """The recording as evidence of `node`, for the challenge that it holds.

    Raises what `authenticate` raises, and MalformedEvidence for a boot log that does not parse.
    """
    challenge = recording.challenge
    parsed = parse_bundle(recording.bundle)
    issued = IssuedChallenge(
        nonce=recorded_nonce(challenge),
        node_id=node.node_id,
        pcr_bank=challenge.pcr_bank,
        pcrs=tuple(challenge.pcrs),
        node_token=parsed.node_token is not None,
        issued_at=challenge.issued_at,
        expires_at=challenge.issued_at,
        form=challenge.form,
    )
    authentic = authenticate(parsed, node, issued, challenge.verifier_id, None)
    log = parsed.boot_log
    boot = measure_boot(log, challenge.pcr_bank) if isinstance(log, bytes) else None
    return AuthenticRecording(authentic, boot)


def verify_recording(recording: AuthenticRecording) -> VerifiedBundle:
    """The recording as verified evidence. Raises what `verify` raises."""
    return verify(recording.authentic, recording.boot, None)


def appraise_recording(recording: AuthenticRecording, baselines: tuple[CompiledBaseline, ...], now: int) -> Appraisal:
    """The verdict on the recording at `now`; what does not hold together is contraindicated, as it is live."""
    try:
        verified = verify_recording(recording)
    except Rejection as rejection:
        return rejected(recording.authentic, rejection.failure)
    return appraise(verified, baselines, now)
