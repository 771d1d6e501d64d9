"""Strict text encodings: each value has exactly one accepted spelling, and hostile JSON costs little."""

from __future__ import annotations

import base64
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifier.wire.codes import ReasonCode
from verifier.wire.encoding import (
    MAX_MARKS,
    MAX_MESSAGE_BYTES,
    canonical_json,
    decode_base64url,
    decode_hex,
    decode_json_object,
    encode_base64url,
)
from verifier.wire.failures import MalformedEvidence


def _refused(body: bytes, max_bytes: int = MAX_MESSAGE_BYTES) -> ReasonCode:
    with pytest.raises(MalformedEvidence) as caught:
        decode_json_object(body, "message", max_bytes)
    return caught.value.code


@given(st.binary(max_size=200))
def test_base64url_round_trips_and_equals_the_standard_library(value: bytes) -> None:
    text = encode_base64url(value)
    assert text == base64.urlsafe_b64encode(value).decode().rstrip("=")
    assert decode_base64url(text, "x") == value


@given(st.text(max_size=40))
def test_any_text_decodes_to_what_spells_it_so_or_is_refused(text: str) -> None:
    try:
        value = decode_base64url(text, "x")
    except MalformedEvidence as error:
        assert error.code is ReasonCode.ENCODING_NOT_CANONICAL
    else:
        assert encode_base64url(value) == text


def test_base64url_beyond_its_limit_is_too_large_before_it_is_decoded() -> None:
    with pytest.raises(MalformedEvidence) as caught:
        decode_base64url("A" * 1000, "x", 8)
    assert caught.value.code is ReasonCode.BODY_TOO_LARGE


@pytest.mark.parametrize("text", ["AB", "abc", "ab ", "0x", "a", "\u0661\u0662", "ab\n"])
def test_hex_of_another_spelling_or_size_is_refused(text: str) -> None:
    with pytest.raises(MalformedEvidence) as caught:
        decode_hex(text, "x", 1)
    assert caught.value.code is ReasonCode.ENCODING_NOT_CANONICAL


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"1", b"null", b'{"a":1,"a":2}', b'{"a":1.0}', b'{"a":1e3}', b'{"a":NaN}', b'{"a":Infinity}',
     b'{"a":123456789012345678901}', b'{"a":1} x', b"\xff{}", b"\xef\xbb\xbf{}", b'{"a":' * 5000 + b"1" + b"}" * 5000,
     b'{"\x01":1}'],
)  # fmt: skip
def test_ambiguous_or_foreign_json_is_invalid(body: bytes) -> None:
    assert _refused(body) is ReasonCode.JSON_INVALID


def test_brackets_in_strings_are_not_nesting() -> None:
    text = "[{" * 50 + '"\\'
    assert decode_json_object(json.dumps({"a": text}).encode(), "message") == {"a": text}


def test_a_message_beyond_its_limit_is_too_large() -> None:
    assert _refused(b'{"a":"' + b"x" * 100 + b'"}', 50) is ReasonCode.BODY_TOO_LARGE


@pytest.mark.parametrize("seed", [b"[", b'{"a":', b'"', b'{"', b'\\"', b'["\\', b"[],", b"0,", b'"":0,', b"\\u0041"])
def test_hostile_nesting_and_quotes_are_refused_in_little_time(seed: bytes) -> None:
    body = (seed * (MAX_MESSAGE_BYTES // len(seed)))[:MAX_MESSAGE_BYTES]
    start = time.perf_counter()
    assert _refused(body) is ReasonCode.BODY_TOO_LARGE
    assert time.perf_counter() - start < 0.5


def test_only_structure_is_counted_and_never_the_length_of_a_text() -> None:
    text = "A" * (MAX_MESSAGE_BYTES - 100)
    assert decode_json_object(json.dumps({"a": text}).encode(), "message") == {"a": text}


def test_more_structure_than_any_message_needs_is_too_large() -> None:
    def body(values: int) -> bytes:
        return b'{"a":[' + b",".join([b"0    "] * values) + b"]}"

    assert len(decode_json_object(body(10_000), "message")["a"]) == 10_000
    assert _refused(body(MAX_MARKS + 1)) is ReasonCode.BODY_TOO_LARGE


_VALUES = st.recursive(
    st.integers(-(2**53), 2**53) | st.text(st.characters(max_codepoint=127), max_size=10),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(max_codepoint=127), max_size=5), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(st.dictionaries(st.text(st.characters(max_codepoint=127), max_size=5), _VALUES, max_size=4))
def test_canonical_json_sorts_and_reads_back(value: dict[str, object]) -> None:
    body = canonical_json(value)
    assert json.loads(body) == value
    assert body == json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
