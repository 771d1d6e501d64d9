"""What the service says when it is done: the JSON of its answers and the audit row, built by hand for speed."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic_core import to_json

from verifier.appraisal.appraise import Appraisal
from verifier.appraisal.context import IssuedChallenge
from verifier.node_cache import KnownNode
from verifier.results import Signed
from verifier.store.ports import AuditEntry
from verifier.wire.encoding import encode_base64url


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer to evidence, and what the log line says of it."""

    body: bytes
    node_id: str
    verdict: str
    sequence: int
    admitted: bool


def audit_entry(node: KnownNode, appraisal: Appraisal, signed: Signed, request_id: str, now_ms: int) -> AuditEntry:
    """The audit row of a verdict."""
    result = signed.stored
    return AuditEntry(
        at_ms=now_ms,
        kind="verdict",
        actor="verifier",
        request_id=request_id,
        node_id=node.record.node_id,
        node_name=node.record.node_name,
        detail={
            "verdict": result.verdict,
            "seq": result.sequence,
            "exp": result.expires_at,
            "code": appraisal.failures[0].code.value if appraisal.failures else None,
            "baseline_sha256": None if appraisal.baseline is None else appraisal.baseline.sha256,
            "evidence_sha256": appraisal.evidence_sha256,
        },
    )


def answer_to(node: KnownNode, signed: Signed, following: dict[str, object]) -> Answered:
    """`verifier.wire.verdict.EvidenceResponse` as JSON, with `following` as the next challenge."""
    fields = {
        "verdict": signed.stored.verdict,
        "reasons": signed.reasons,
        "result": signed.stored.token,
        "next_challenge": following,
    }
    record, stored = node.record, signed.stored
    return Answered(to_json(fields), record.node_id, stored.verdict, stored.sequence, record.state == "admitted")


def challenge_json(challenge: IssuedChallenge, known_log: bytes | None, interval_seconds: int) -> dict[str, object]:
    """`verifier.wire.challenge.ChallengeResponse` as JSON; built by hand because it is in every answer."""
    return {
        "nonce": encode_base64url(challenge.nonce),
        "expires_at": challenge.expires_at,
        "collect": {
            "pcr_bank": challenge.pcr_bank,
            "pcrs": challenge.pcrs,
            "boot_log_known_sha256": None if known_log is None else known_log.hex(),
            "node_token": challenge.node_token,
        },
        "next_in_seconds": interval_seconds,
    }
