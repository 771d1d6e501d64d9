"""The strict base of every message that is not the evidence bundle itself, and its decoding."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, StringConstraints, ValidationError

from verifier.wire.codes import ReasonCode
from verifier.wire.encoding import MAX_MARKS, decode_base64url, decode_json_object, encode_base64url
from verifier.wire.failures import MalformedEvidence

Hex32 = Annotated[str, StringConstraints(pattern=r"\A[0-9a-f]{64}\z")]
"""A SHA-256 digest as lower-case hex."""
NodeName = Annotated[
    str,
    StringConstraints(max_length=253, pattern=r"\A[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\z"),
]
"""A Kubernetes node name (RFC 1123 subdomain)."""


def _canonical_base64url(text: str) -> str:
    decode_base64url(text, "message", 64 * 1024)
    return text


Base64Url = Annotated[str, StringConstraints(min_length=1, max_length=90_000), AfterValidator(_canonical_base64url)]
"""Unpadded base64url text that re-encodes to itself."""


class Message(BaseModel):
    """Strict, frozen, and closed: an unknown field is an error, a missing one too."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


MessageT = TypeVar("MessageT", bound=Message)


def decode_message(
    kind: type[MessageT], body: bytes, where: str, max_bytes: int = 256 * 1024, max_marks: int = MAX_MARKS
) -> MessageT:
    """The message of type `kind` in the JSON `body`.

    Raises MalformedEvidence: `json-invalid`, `body-too-large`, `schema-mismatch`, `encoding-not-canonical`. What a
    field says is not believed by that.
    """
    fields = decode_json_object(body, where, max_bytes, max_marks)
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join([where, *(str(part) for part in first["loc"])])
        raise MalformedEvidence(ReasonCode.SCHEMA_MISMATCH, place, first["type"], first["msg"]) from error


def bytes_of(text: str) -> bytes:
    """The bytes of a field of type `Base64Url`."""
    return decode_base64url(text, "message", 64 * 1024)


def text_of(value: bytes) -> str:
    """A field of type `Base64Url` holding `value`."""
    return encode_base64url(value)


def format_time(moment: datetime) -> str:
    """`moment` (aware) as YYYY-MM-DDTHH:MM:SSZ, the one form of times in our JSON."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
