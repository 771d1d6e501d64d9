"""Requests that a node signs with its AK: the envelope, and the bytes that the TPM signs.

The AK is a restricted key: it signs a digest only with a ticket by which the TPM says that it hashed the message itself
and that the message does not look like one of its own structures. The label keeps one kind of request from passing as
another.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from verifier.wire.codes import ReasonCode
from verifier.wire.encoding import canonical_json, decode_base64url, decode_json_object, encode_base64url
from verifier.wire.failures import MalformedEvidence

MAX_REQUEST_BYTES = 32 * 1024


class RequestLabel(StrEnum):
    """What a signed request is for."""

    CHALLENGE = "nodewarden/challenge/1"
    ATTEST_NOW = "nodewarden/attest-now/1"
    SECRET_RELEASE = "nodewarden/secret-release/1"  # noqa: S105 - a public label, no secret


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """An envelope as received: `claimed_body` is JSON, `signature` a TPMT_SIGNATURE; neither is verified."""

    claimed_body: bytes
    signature: bytes


def message_to_sign(label: RequestLabel, body: bytes) -> bytes:
    """The message (label || 0 || SHA-256(body)) that TPM2_Hash takes and whose digest the AK signs."""
    return label.value.encode() + b"\0" + hashlib.sha256(body).digest()


def decode_signed_request(message: bytes) -> SignedRequest:
    """The envelope `{"body": base64url, "signature": base64url}`.

    Raises MalformedEvidence: `json-invalid`, `body-too-large`, `schema-mismatch`, `encoding-not-canonical`.
    """
    envelope = decode_json_object(message, "request", MAX_REQUEST_BYTES)
    if envelope.keys() != {"body", "signature"} or not all(type(v) is str for v in envelope.values()):
        raise MalformedEvidence(ReasonCode.SCHEMA_MISMATCH, "request", None, "body and signature as text")
    body = decode_base64url(envelope["body"], "request.body", MAX_REQUEST_BYTES)
    return SignedRequest(body, decode_base64url(envelope["signature"], "request.signature", 4096))


def encode_signed_request(request: SignedRequest) -> bytes:
    """The JSON of the envelope."""
    fields: dict[str, Any] = {
        "body": encode_base64url(request.claimed_body),
        "signature": encode_base64url(request.signature),
    }
    return canonical_json(fields)
