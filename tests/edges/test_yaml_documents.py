"""Strict YAML: what equals JSON is read, everything clever is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edges.yaml_documents import documents
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence


def test_words_that_yaml_once_took_for_booleans_and_dates_stay_text() -> None:
    text = "a: on\nb: 2026-12-31T00:00:00Z\nc: true\nd: 4.1.0\ne: 1:30\nf: 12\ng: 0x10\nh: ~\ni:\nj: 012\nk: 1.5\n"
    (found,) = documents(text, "x", ReasonCode.MANIFEST_INVALID)
    assert found == {
        "a": "on",
        "b": "2026-12-31T00:00:00Z",
        "c": True,
        "d": "4.1.0",
        "e": "1:30",
        "f": 12,
        "g": "0x10",
        "h": "~",
        "i": None,
        "j": "012",
        "k": 1.5,
    }


def test_a_version_written_like_a_number_is_no_text_so_that_schemas_refuse_it() -> None:
    assert list(documents("floor: 4.10\n", "x", ReasonCode.MANIFEST_INVALID)) == [{"floor": 4.1}]


@pytest.mark.parametrize(
    "text",
    [
        "a: 1\na: 2",
        "a: &x 1",
        "a: *x",
        "a: !!str 1",
        "a: !!python/object/apply:os.system [id]",
        "1: 2",
        "true: 2",
        "? [a]\n: 1",
        "a: " + "[" * 100,
        "a: [",
        "\x00",
        "a: " + "x" * (8 * 1024 * 1024),
        "---\n" * 20_001,
    ],
)
def test_anything_that_two_readers_could_read_differently_is_refused(text: str) -> None:
    with pytest.raises(MalformedEvidence) as caught:
        list(documents(text, "x", ReasonCode.MANIFEST_INVALID))
    assert caught.value.code is ReasonCode.MANIFEST_INVALID


def test_merge_keys_are_plain_keys() -> None:
    assert list(documents("<<: {a: 1}", "x", ReasonCode.MANIFEST_INVALID)) == [{"<<": {"a": 1}}]


@given(st.text(max_size=200))
def test_arbitrary_text_is_read_or_refused_as_a_manifest(text: str) -> None:
    try:
        list(documents(text, "x", ReasonCode.MANIFEST_INVALID))
    except MalformedEvidence as error:
        assert error.code is ReasonCode.MANIFEST_INVALID
