"""Messages that are no bundle: strict, closed, and malformed in no other way than with a code."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifier.wire.challenge import ChallengeRequest
from verifier.wire.codes import ReasonCode
from verifier.wire.enrolment import EnrolmentRequest
from verifier.wire.failures import MAX_TEXT_CHARACTERS, Failure, MalformedEvidence, printable
from verifier.wire.messages import decode_message, format_time
from verifier.wire.release import ReleaseRequest
from verifier.wire.signed_request import (
    RequestLabel,
    SignedRequest,
    decode_signed_request,
    encode_signed_request,
    message_to_sign,
)

ENROLMENT: dict[str, Any] = {
    "version": 1,
    "node_name": "node-a.example",
    "ek_public": "AAAA",
    "ak_public": "AAAA",
    "ek_certificates": ["AAAA"],
    "node_token": None,
}


def _refused(change: Callable[[dict[str, Any]], object]) -> ReasonCode:
    message = json.loads(json.dumps(ENROLMENT))
    change(message)
    with pytest.raises(MalformedEvidence) as caught:
        decode_message(EnrolmentRequest, json.dumps(message).encode(), "enrolment")
    return caught.value.code


def test_a_whole_message_decodes() -> None:
    assert decode_message(EnrolmentRequest, json.dumps(ENROLMENT).encode(), "enrolment").node_name == "node-a.example"


@pytest.mark.parametrize("field", ENROLMENT)
def test_a_missing_field_is_never_a_default(field: str) -> None:
    assert _refused(lambda m: m.pop(field)) is ReasonCode.SCHEMA_MISMATCH


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"extra": 1}, ReasonCode.SCHEMA_MISMATCH),
        ({"version": 2}, ReasonCode.SCHEMA_MISMATCH),
        ({"version": True}, ReasonCode.SCHEMA_MISMATCH),
        ({"version": "1"}, ReasonCode.SCHEMA_MISMATCH),
        ({"ek_public": ""}, ReasonCode.SCHEMA_MISMATCH),
        ({"ek_public": "AA=="}, ReasonCode.ENCODING_NOT_CANONICAL),
        ({"ek_public": "AB"}, ReasonCode.ENCODING_NOT_CANONICAL),
        ({"ek_certificates": ["AAAA"] * 9}, ReasonCode.SCHEMA_MISMATCH),
        ({"ek_certificates": "AAAA"}, ReasonCode.SCHEMA_MISMATCH),
    ],
)
def test_another_value_is_refused(changed: dict[str, Any], code: ReasonCode) -> None:
    assert _refused(lambda m: m.update(changed)) is code


@pytest.mark.parametrize(
    "name",
    [
        "",
        "Node",
        "a..b",
        "-a",
        "a-",
        "a_b",
        "a b",
        "a\n",
        "node-a\nINFO forged",
        "\u202ea",
        "a\x1b[31m",
        "a" * 254,
        ".a",
    ],
)
def test_a_node_name_that_kubernetes_would_not_take_is_refused(name: str) -> None:
    assert _refused(lambda m: m.update(node_name=name)) is ReasonCode.SCHEMA_MISMATCH


@pytest.mark.parametrize("jti", ["short", "a" * 65, "a" * 15 + "\n", "a" * 16 + " "])
def test_a_request_id_of_another_form_is_refused(jti: str) -> None:
    body = json.dumps({"jti": jti, "iat": 1, "node_id": "ab" * 32}).encode()
    with pytest.raises(MalformedEvidence) as caught:
        decode_message(ChallengeRequest, body, "challenge")
    assert caught.value.code is ReasonCode.SCHEMA_MISMATCH


def test_a_release_that_names_no_secret_is_refused() -> None:
    body = {"jti": "a" * 16, "iat": 1, "node_id": "ab" * 32, "token_sha256": "cd" * 32, "secrets": []}
    with pytest.raises(MalformedEvidence) as caught:
        decode_message(ReleaseRequest, json.dumps(body).encode(), "release")
    assert caught.value.code is ReasonCode.SCHEMA_MISMATCH


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_only_ever_malformed(body: bytes) -> None:
    for decode in (lambda b: decode_message(EnrolmentRequest, b, "x"), decode_signed_request):
        with pytest.raises(MalformedEvidence):
            decode(body)


@given(st.binary(min_size=1, max_size=100), st.binary(min_size=1, max_size=100))
def test_a_signed_request_comes_back_from_its_envelope(body: bytes, signature: bytes) -> None:
    request = SignedRequest(body, signature)
    assert decode_signed_request(encode_signed_request(request)) == request


def test_a_signed_request_truncated_at_any_offset_or_with_more_fields_is_malformed() -> None:
    envelope = encode_signed_request(SignedRequest(b"body", b"signature"))
    for length in range(len(envelope)):
        with pytest.raises(MalformedEvidence):
            decode_signed_request(envelope[:length])
    with pytest.raises(MalformedEvidence) as caught:
        decode_signed_request(b'{"body":"AA","signature":"AA","alg":"none"}')
    assert caught.value.code is ReasonCode.SCHEMA_MISMATCH


def test_labels_keep_requests_apart_and_never_look_like_a_tpms_own_structure() -> None:
    messages = {message_to_sign(label, b"body") for label in RequestLabel}
    assert len(messages) == len(RequestLabel)
    assert not any(message.startswith(b"\xffTCG") for message in messages)
    assert not any(
        a.value.encode() + b"\0" == (b.value.encode() + b"\0")[: len(a.value) + 1]
        for a in RequestLabel
        for b in RequestLabel
        if a is not b
    )


@given(st.text(max_size=500))
def test_text_of_a_failure_is_one_short_printable_line(text: str) -> None:
    failure = Failure(ReasonCode.NODE_NAME_INVALID, text, text, text)
    assert len(printable(text)) <= MAX_TEXT_CHARACTERS + 3
    for line in (failure.line(), *(str(value) for value in failure.as_json().values())):
        assert line.isprintable()


def test_times_have_one_form() -> None:
    assert format_time(datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)) == "2026-11-30T12:00:00Z"
