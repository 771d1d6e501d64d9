"""The challenge: a nonce for one node, and what to collect with it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from verifier.wire.messages import Base64Url, Hex32, Message

DEFAULT_PCRS: tuple[int, ...] = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 14)
"""PCR 10 is asked for only with the IMA log; 11 to 13 only if a baseline names them."""

Pcr = Annotated[int, Field(ge=0, le=23)]


class ChallengeRequest(Message):
    """Body of the AK-signed request for a challenge (label `nodewarden/challenge/1`)."""

    jti: Annotated[str, Field(min_length=16, max_length=64, pattern=r"\A[A-Za-z0-9_-]+\z")]
    iat: int
    """Seconds since 1970 by the node's clock; must be within five minutes of the verifier's."""
    node_id: Hex32


class Collect(Message):
    """What the evidence must hold. Items that are not wanted are refused, not ignored."""

    pcr_bank: Annotated[str, Field(pattern=r"\A(sha256|sha384|sha512)\z")]
    pcrs: Annotated[list[Pcr], Field(min_length=1, max_length=24)]
    """Ascending, each once."""
    boot_log_known_sha256: Hex32 | None
    """A boot log with this digest need not be sent again; null when the verifier knows none of this node's."""
    node_token: bool
    """Whether a ServiceAccount token of the node must come along."""


class ChallengeResponse(Message):
    """The answer: use `nonce` before `expires_at`, and come back after `next_in_seconds`."""

    nonce: Base64Url
    expires_at: int
    """Seconds since 1970 by the verifier's clock."""
    collect: Collect
    next_in_seconds: Annotated[int, Field(ge=1, le=3600)]


class AttestNowRequest(ChallengeRequest):
    """Body of the AK-signed long poll (label `nodewarden/attest-now/1`)."""


class AttestNowResponse(Message):
    """The answer to the long poll, held for up to 55 s. It says only that; nothing of the node follows from it."""

    wanted: bool
    """Whether the node should attest now, before its interval is over."""
