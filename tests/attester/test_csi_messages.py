"""The provider interface's messages: read strictly and in bounds, written as the driver's own reader takes them."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attester.csi_messages import (
    MAX_REQUEST_BYTES,
    File,
    MountRequest,
    MountResponse,
    ObjectVersion,
    read_mount_request,
    write_mount_response,
    write_version_response,
)
from tests.attester.csi_driver import Ask, field_of, fields_of, read_mount_response
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence

REQUEST = Ask().body()


def code_of(body: bytes) -> ReasonCode:
    with pytest.raises(MalformedEvidence) as refusal:
        read_mount_request(body)
    return refusal.value.code


def test_a_request_is_read_as_the_driver_wrote_it() -> None:
    body = b"".join(field_of(number, text) for number, text in enumerate(("a", "s", "/target", "420"), 1))
    assert read_mount_request(body) == MountRequest("a", "s", "420")
    assert read_mount_request(b"") == MountRequest("", "", "")


def test_nothing_of_a_request_shows_in_its_repr() -> None:
    assert "token" not in repr(read_mount_request(REQUEST))
    assert "content" not in repr(File("key", 0o400, b"content"))


@pytest.mark.parametrize("later", [b"\x78\x05", b"\x79" + bytes(8), b"\x7d" + bytes(4), field_of(15, b"\xff")])
def test_fields_of_a_later_version_are_passed_over(later: bytes) -> None:
    assert read_mount_request(later + REQUEST + later) == read_mount_request(REQUEST)


@pytest.mark.parametrize(
    "body",
    [
        REQUEST + field_of(1, "{}"),
        REQUEST + field_of(2, "{}"),
        REQUEST + field_of(4, "511"),
        b"\x08\x01",
        field_of(1, b"\xff"),
        b"\x0b",
        b"\x0f",
        b"\x00\x00",
        b"\x0a" + b"\xff" * 9 + b"\x01",
        b"\xff" * 11,
        b"\x0a\x05abc",
        b"\x79" + bytes(7),
    ],
    ids=[
        "attributes twice",
        "secrets twice",
        "permission twice",
        "a number for a text",
        "not UTF-8",
        "a group",
        "no wire type",
        "field zero",
        "a huge length",
        "a number without end",
        "short",
        "short number",
    ],
)
def test_a_request_that_could_be_read_in_two_ways_or_none_is_refused(body: bytes) -> None:
    assert code_of(body) is ReasonCode.MOUNT_REQUEST_MALFORMED


def test_a_request_that_is_too_large_is_refused_before_it_is_read() -> None:
    assert code_of(b"\xff" * (MAX_REQUEST_BYTES + 1)) is ReasonCode.BODY_TOO_LARGE


def test_a_request_cut_off_anywhere_is_refused_or_lacks_a_field() -> None:
    whole = read_mount_request(REQUEST)
    for size in range(len(REQUEST)):
        with suppress(MalformedEvidence):
            cut = read_mount_request(REQUEST[:size])
            assert cut.claimed_attributes in ("", whole.claimed_attributes)
            assert cut.claimed_secrets in ("", whole.claimed_secrets)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_give_a_request_or_a_typed_refusal(body: bytes) -> None:
    with suppress(MalformedEvidence):
        read_mount_request(body)


names = st.text(min_size=1, max_size=20)


@given(
    st.dictionaries(names, st.tuples(st.integers(0, 0o777), st.binary(max_size=300)), max_size=4),
    st.dictionaries(names, names, max_size=4),
)
def test_an_answer_reads_back(files: dict[str, tuple[int, bytes]], versions: dict[str, str]) -> None:
    answer = MountResponse(
        tuple(ObjectVersion(name, version) for name, version in versions.items()),
        tuple(File(name, mode, content) for name, (mode, content) in files.items()),
    )
    mounted = read_mount_response(write_mount_response(answer))
    assert mounted.versions == versions
    assert {name: (mounted.modes[name], mounted.files[name]) for name in mounted.files} == files


def test_the_bytes_of_an_answer_are_those_of_the_interface() -> None:
    answer = MountResponse((ObjectVersion("a", "v"),), (File("f", 0o400, b"x" * 200),))
    file = "0a0166" + "108002" + "1ac801" + "78" * 200
    assert write_mount_response(answer).hex() == "0a06" + "0a0161" + "120176" + "1ad101" + file
    assert [text for _, text in fields_of(write_version_response("n", "1.2.3"))] == [b"v1alpha1", b"n", b"1.2.3"]
