"""The attester pod's projected ServiceAccount token, which ties the TPM to a Kubernetes node."""

from __future__ import annotations

from pathlib import Path

from attester.collectors.securityfs import read_to_end
from verifier.wire.bundle import MAX_TOKEN_BYTES, NodeToken
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Rejection, Unavailable


def read_token(path: Path | None) -> bytes:
    """The token's text, read anew each time: the kubelet replaces it before it expires.

    Raises Rejection `node-token-missing` when no path is set or nothing readable is there. Never logs the token.
    """
    if path is None:
        raise Rejection(ReasonCode.NODE_TOKEN_MISSING, "node_token_path", "not set")
    try:
        return read_to_end(path, MAX_TOKEN_BYTES).strip()
    except Unavailable as error:
        raise Rejection(ReasonCode.NODE_TOKEN_MISSING, str(path), error.failure.observed) from error


def collect_node_token(path: Path | None) -> NodeToken:
    """The token as evidence. Raises as `read_token`."""
    return NodeToken(0, read_token(path))
