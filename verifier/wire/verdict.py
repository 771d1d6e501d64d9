"""What a verifier answers to evidence, and how it says no: the two bodies that an attester reads after sending.

An attester acts on neither beyond choosing when to come back: nothing of a verdict is believed by the node itself.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from verifier.wire.challenge import ChallengeResponse
from verifier.wire.messages import Message
from verifier.wire.result import Verdict

CONTENT_TYPE_PROBLEM = "application/problem+json"
"""RFC 9457."""


class Reason(Message):
    """A `Failure` as its `as_json` writes it. The code stays text: a newer verifier may know more codes."""

    code: Annotated[str, Field(max_length=64, pattern=r"\A[a-z0-9]+(-[a-z0-9]+)*\z")]
    claim: Annotated[str, Field(max_length=512)]
    observed: Annotated[str, Field(max_length=512)] | None
    expected: Annotated[str, Field(max_length=512)] | None
    pcr: int | None
    event_index: int | None
    remedy: Annotated[str, Field(max_length=512)]


class EvidenceResponse(Message):
    """The verdict on one bundle, its reasons, the signed result, and the next challenge: one round trip an interval."""

    verdict: Annotated[Verdict, Field(strict=False)]
    reasons: Annotated[list[Reason], Field(max_length=256)]
    """Empty only for `affirming`, or when the verdict is bad for a cause that the result names."""
    result: Annotated[str, Field(min_length=1, max_length=1024 * 1024)]
    """The attestation result as a signed JWT. For people and tests; relying parties take it from the verifier."""
    next_challenge: ChallengeResponse | None
    """Null when the verifier wants the node to ask anew (revoked meanwhile, or shutting down)."""


class Problem(Message):
    """An error answer (RFC 9457). `code` is a reason code as text; `request_id` finds the request in the logs."""

    type: Annotated[str, Field(max_length=256)]
    title: Annotated[str, Field(max_length=256)]
    status: Annotated[int, Field(ge=400, le=599)]
    code: Annotated[str, Field(max_length=64, pattern=r"\A[a-z0-9]+(-[a-z0-9]+)*\z")]
    detail: Annotated[str, Field(max_length=2048)]
    reasons: Annotated[list[Reason], Field(max_length=256)]
    request_id: Annotated[str, Field(max_length=128)]
