"""Strict text encodings of the wire format: each value has exactly one accepted spelling.

One spelling matters because digests are taken over decoded bytes while caches and logs see text: two spellings of
one value would let evidence look new, or old, at will.
"""

from __future__ import annotations

import binascii
import json
from collections.abc import Mapping, Sequence
from typing import Any

from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence

MAX_MESSAGE_BYTES = 4 * 1024 * 1024
"""Largest decoded message. A boot log is at most 1 MiB here, an IMA log part 2 MiB; base64 adds a third."""

MAX_MARKS = 20_000
"""So many marks of structure may a message hold; bundles and answers hold some hundreds."""
_MARKS = b'{[,"\\'
_UNCOUNTED_BYTES = 32 * 1024
"""A shorter message takes no more than a millisecond, whatever it holds."""

_FROM_URL = bytes.maketrans(b"-_+/=", b"+/!!!")
"""Back to the standard alphabet, with what is not base64url made illegal."""
_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
_LAST_CHARACTERS: Mapping[int, frozenset[int]] = {
    0: frozenset(_ALPHABET),
    2: frozenset(_ALPHABET[::16]),
    3: frozenset(_ALPHABET[::4]),
}
"""By length modulo 4, the last characters whose unused bits are zero: the decoder ignores those bits."""


def encode_base64url(value: bytes) -> str:
    """Unpadded base64url text of `value` (RFC 4648, section 5)."""
    text = binascii.b2a_base64(value, newline=False).rstrip(b"=").decode("ascii")
    return text.replace("+", "-").replace("/", "_")


def decode_base64url(text: str, where: str, max_bytes: int = MAX_MESSAGE_BYTES) -> bytes:
    """The bytes whose only spelling is `text`.

    Raises MalformedEvidence: `encoding-not-canonical` (padding, other alphabet, non-zero trailing bits),
    `body-too-large` (more than `max_bytes` decoded).
    """
    if len(text) > (max_bytes * 4 + 2) // 3:
        raise MalformedEvidence(
            ReasonCode.BODY_TOO_LARGE, where, f"{len(text)} characters", f"at most {max_bytes} bytes"
        )
    try:
        raw = text.encode("ascii")
        value = binascii.a2b_base64(raw.translate(_FROM_URL) + b"=" * (-len(raw) % 4), strict_mode=True)
    except ValueError as error:
        raise MalformedEvidence(ReasonCode.ENCODING_NOT_CANONICAL, where, "not base64url") from error
    if raw and raw[-1] not in _LAST_CHARACTERS[len(raw) % 4]:
        raise MalformedEvidence(ReasonCode.ENCODING_NOT_CANONICAL, where, "does not re-encode to itself")
    return value


def decode_hex(text: str, where: str, size_bytes: int) -> bytes:
    """The `size_bytes` bytes that lower-case hex `text` spells. Raises `encoding-not-canonical`."""
    try:
        value = bytes.fromhex(text)
    except ValueError:
        value = b""
    # fromhex takes upper case and white space too: only a round trip proves the one spelling.
    if len(value) != size_bytes or value.hex() != text:
        raise MalformedEvidence(ReasonCode.ENCODING_NOT_CANONICAL, where, text, f"{size_bytes} bytes of lower-case hex")
    return value


def canonical_json(value: Mapping[str, Any] | Sequence[Any]) -> bytes:
    """RFC 8785 (JCS) bytes of `value`, which holds only ASCII strings, integers, lists and objects.

    With only those, JCS equals sorted keys and no white space; the caller keeps the restriction.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode("ascii")


def _object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise _RefusedToken("duplicate key")
    return result


class _RefusedToken(ValueError):
    """A JSON token that the standard library would accept and this format does not."""


def _refuse_constant(name: str) -> None:
    raise _RefusedToken(f"the constant {name}")


def _refuse_float(_text: str) -> None:
    raise _RefusedToken("a number that is no integer")


def decode_json_object(
    body: bytes, where: str, max_bytes: int = MAX_MESSAGE_BYTES, max_marks: int = MAX_MARKS
) -> dict[str, Any]:
    """The JSON object in `body`, decoded and without ambiguity.

    Refuses more than `max_bytes` or `max_marks` (brackets, commas, quotes and backslashes, in strings too;
    `body-too-large`); anything but UTF-8 JSON with an object on top, duplicate keys,
    floats, NaN, integers of more than 20 digits, nesting beyond the interpreter's guard (`json-invalid`). Does not
    check which keys there are: each message's own schema does, and so bounds the depth that is ever walked.
    """
    if len(body) > max_bytes:
        raise MalformedEvidence(ReasonCode.BODY_TOO_LARGE, where, f"{len(body)} bytes", f"at most {max_bytes} bytes")
    # Attack: a few hundred compressed bytes that unpack to a million lists, which are a second's work to decode.
    if len(body) > max(_UNCOUNTED_BYTES, max_marks) and len(body) - len(body.translate(None, _MARKS)) > max_marks:
        raise MalformedEvidence(ReasonCode.BODY_TOO_LARGE, where, "too many values", f"at most {max_marks} marks")
    try:
        value = _DECODER.decode(body.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        detail = str(error) if isinstance(error, _RefusedToken) else type(error).__name__
        raise MalformedEvidence(ReasonCode.JSON_INVALID, where, detail) from error
    if not isinstance(value, dict):
        raise MalformedEvidence(ReasonCode.JSON_INVALID, where, type(value).__name__, "an object")
    return value


def _bounded_int(text: str) -> int:
    if len(text) > 20:
        raise _RefusedToken("an integer of more than 20 digits")
    return int(text)


# Made once: json.loads with arguments makes a decoder at every call.
_DECODER = json.JSONDecoder(
    object_pairs_hook=_object_without_duplicates,
    parse_constant=_refuse_constant,
    parse_float=_refuse_float,
    parse_int=_bounded_int,
)
