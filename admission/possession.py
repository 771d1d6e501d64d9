"""Proof that a release request comes from the attested node: its AK signed this request, now, for this token, once."""

from __future__ import annotations

import hashlib
from typing import Protocol

from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Refusal, Rejection
from verifier.wire.messages import bytes_of, decode_message
from verifier.wire.release import ReleaseEnvelope, ReleaseRequest
from verifier.wire.request_signature import load_request_key, verify_signed_request
from verifier.wire.result import AttestationResult
from verifier.wire.signed_request import RequestLabel, SignedRequest

MAX_REQUEST_AGE_SECONDS = 60
"""How far a request's `iat` may be from our time, either way; its jti is remembered for twice as long."""


class RequestMemory(Protocol):
    """Which requests were used."""

    def use(self, node_id: str, jti: str, now: int, forget_at: int) -> None:
        """The request counts as used. Raises Rejection `request-replayed` when it was used before."""
        ...


def signed_part(envelope: ReleaseEnvelope) -> SignedRequest:
    """The signed request in `envelope`. Raises MalformedEvidence `encoding-not-canonical`, `body-too-large`."""
    return SignedRequest(bytes_of(envelope.body), bytes_of(envelope.signature))


def require_signature(request: SignedRequest, result: AttestationResult) -> bytes:
    """The body of `request`, which the AK of `result` signed. Raises Rejection `possession-not-proved`."""
    if result.ak_public is None:
        raise Rejection(ReasonCode.POSSESSION_NOT_PROVED, "result.ak_public", "absent")
    key = load_request_key(bytes_of(result.ak_public))
    try:
        return verify_signed_request(key, RequestLabel.SECRET_RELEASE, request)
    except Refusal as refusal:
        # Also a signature of another form: an AK of another kind is another AK.
        seen = f"{refusal.code.value}: not by the node's AK"
        raise Rejection(ReasonCode.POSSESSION_NOT_PROVED, "request.signature", seen) from refusal


def prove_possession(
    request: SignedRequest, token: str, result: AttestationResult, memory: RequestMemory, now: int
) -> ReleaseRequest:
    """The request that the node of `result` made just now, for this token, for the first time.

    Numbered as the order matters: nothing of the body is believed before its signature, and a stranger cannot use up
    a node's jti. The AK comes from the verified result, never from the request.
    Raises MalformedEvidence for a body without form; Rejection `possession-not-proved`, `node-mismatch`,
    `request-not-fresh`, `token-digest-mismatch`, `request-replayed`.
    """
    # 1. The signature, by the AK that the verifier enrolled and vouches for in this result.
    body = require_signature(request, result)
    # 2. What it says.
    message = decode_message(ReleaseRequest, body, "request")
    # 3. Of this node.
    if message.node_id != result.node_id:
        raise Rejection(ReasonCode.NODE_MISMATCH, "request.node_id", message.node_id, result.node_id)
    # 4. Made now.
    if abs(now - message.iat) > MAX_REQUEST_AGE_SECONDS:
        limit = f"within {MAX_REQUEST_AGE_SECONDS} s"
        raise Rejection(ReasonCode.REQUEST_NOT_FRESH, "request.iat", f"{now - message.iat} s ago", limit)
    # 5. For the token that came along: a stolen token with another request of this node opens nothing.
    if hashlib.sha256(token.encode()).hexdigest() != message.token_sha256:
        raise Rejection(ReasonCode.TOKEN_DIGEST_MISMATCH, "request.token_sha256")
    # 6. For the first time.
    memory.use(message.node_id, message.jti, now, now + 2 * MAX_REQUEST_AGE_SECONDS + 1)
    return message
