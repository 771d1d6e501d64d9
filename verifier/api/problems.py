"""The one place where a refusal becomes an HTTP status and a problem+json body (RFC 9457)."""

from __future__ import annotations

import json
from collections.abc import Mapping

from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure, MalformedEvidence, Refusal, Rejection, Unavailable
from verifier.wire.verdict import CONTENT_TYPE_PROBLEM

__all__ = ["CONTENT_TYPE_PROBLEM", "internal_error", "problem_body", "status_of"]

_STATUS: Mapping[ReasonCode, int] = {
    ReasonCode.AUTHENTICATION_REQUIRED: 401,
    ReasonCode.ROLE_FORBIDDEN: 403,
    ReasonCode.ROUTE_UNKNOWN: 404,
    ReasonCode.NODE_UNKNOWN: 404,
    ReasonCode.ENROLMENT_UNKNOWN: 404,
    ReasonCode.BODY_TOO_LARGE: 413,
    ReasonCode.RATE_LIMITED: 429,
    ReasonCode.NONCE_USED: 409,
    ReasonCode.REQUEST_REPLAYED: 409,
    ReasonCode.CHALLENGE_OUTDATED: 409,
    ReasonCode.NODE_NAME_CONFLICT: 409,
    ReasonCode.EK_CONFLICT: 409,
}


def status_of(refusal: Refusal) -> int:
    """The status of a refusal: 400 has no meaning, 403 does not hold, 503 cannot tell; some codes have their own."""
    own = _STATUS.get(refusal.code)
    if own is not None:
        return own
    match refusal:
        case MalformedEvidence():
            return 400
        case Rejection():
            return 403
        case Unavailable():
            return 503
        case _:
            return 500


def problem_body(failure: Failure, status: int, request_id: str) -> bytes:
    """The body of an error answer: `verifier.wire.verdict.Problem`.

    It says what was seen and expected of the request itself, and never what a secret, nonce or token should have been
    (CVE-2023-38201): failures about those carry neither.
    """
    return json.dumps(
        {
            "type": f"urn:nodewarden:reason:{failure.code.value}",
            "title": failure.code.value,
            "status": status,
            "code": failure.code.value,
            "detail": failure.line(),
            "reasons": [failure.as_json()],
            "request_id": request_id,
        }
    ).encode()


def internal_error(request_id: str) -> tuple[int, bytes]:
    """Status and body for a fault of ours. Its cause is in the log under the request id, and nowhere else."""
    return 500, problem_body(Failure(ReasonCode.INTERNAL_ERROR, "verifier"), 500, request_id)
