"""Strict text encodings of the wire format: each value has exactly one accepted spelling.

One spelling matters because digests are taken over decoded bytes while caches and logs see text: two spellings of
one value would let evidence look new, or old, at will.
"""

from __future__ import annotations

import binascii
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence

MAX_MESSAGE_BYTES = 4 * 1024 * 1024
"""Largest decoded message. A boot log is at most 1 MiB here, an IMA log part 2 MiB; base64 adds a third."""
MAX_JSON_DEPTH = 8
"""Deepest nesting in any message of the wire format is 5."""

_BASE64URL = re.compile(r"[A-Za-z0-9_-]*")
_HEX = re.compile(r"(?:[0-9a-f]{2})*")


def encode_base64url(value: bytes) -> str:
    """Unpadded base64url text of `value` (RFC 4648, section 5)."""
    return binascii.b2a_base64(value, newline=False).decode("ascii").rstrip("=").translate(_TO_URL)


_TO_URL = str.maketrans("+/", "-_")
_FROM_URL = str.maketrans("-_", "+/")


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
        value = binascii.a2b_base64(text.translate(_FROM_URL) + "=" * (-len(text) % 4), strict_mode=True)
    except (binascii.Error, ValueError) as error:
        raise MalformedEvidence(ReasonCode.ENCODING_NOT_CANONICAL, where, "not base64url") from error
    # a2b_base64 ignores non-zero trailing bits, and accepts "+" and "/": only a round trip proves the one spelling.
    if encode_base64url(value) != text:
        raise MalformedEvidence(ReasonCode.ENCODING_NOT_CANONICAL, where, "does not re-encode to itself")
    return value


def decode_hex(text: str, where: str, size_bytes: int) -> bytes:
    """The `size_bytes` bytes that lower-case hex `text` spells. Raises `encoding-not-canonical`."""
    if len(text) != 2 * size_bytes or _HEX.fullmatch(text) is None:
        raise MalformedEvidence(ReasonCode.ENCODING_NOT_CANONICAL, where, text, f"{size_bytes} bytes of lower-case hex")
    return bytes.fromhex(text)


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


def decode_json_object(body: bytes, where: str, max_bytes: int = MAX_MESSAGE_BYTES) -> dict[str, Any]:
    """The JSON object in `body`, decoded and without ambiguity.

    Refuses more than `max_bytes` (`body-too-large`); anything but UTF-8 JSON with an object on top, duplicate keys,
    floats, NaN, integers of more than 20 digits, nesting deeper than `MAX_JSON_DEPTH` (`json-invalid`).
    Does not check which keys there are.
    """
    if len(body) > max_bytes:
        raise MalformedEvidence(ReasonCode.BODY_TOO_LARGE, where, f"{len(body)} bytes", f"at most {max_bytes} bytes")
    try:
        # Depth first: the decoder recurses, and a deep document must not reach it.
        if body.count(b"{") + body.count(b"[") > MAX_JSON_DEPTH:
            _check_depth(body)
        value = json.loads(
            body.decode("utf-8"),
            object_pairs_hook=_object_without_duplicates,
            parse_constant=_refuse_constant,
            parse_float=_refuse_float,
            parse_int=_bounded_int,
        )
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


# Possessive, and matching an unterminated string too: a scan that can fail and start again is quadratic.
_STRUCTURE = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)


def _check_depth(body: bytes) -> None:
    depth = 0
    for token in _STRUCTURE.finditer(body):
        mark = token.group()
        if mark in (b"{", b"["):
            depth += 1
            if depth > MAX_JSON_DEPTH:
                raise _RefusedToken(f"nesting deeper than {MAX_JSON_DEPTH}")
        elif mark in (b"}", b"]"):
            depth -= 1
