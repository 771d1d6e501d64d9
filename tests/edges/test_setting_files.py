"""Settings files: one mapping in one file, bounded, and every fault told with its place."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict

from edges.setting_files import MAX_SETTINGS_BYTES, read_document, read_fields, validated
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence, Refusal


class Inner(BaseModel):
    """A part of some settings."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")
    seconds: int


class Some(BaseModel):
    """Some settings."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")
    inner: Inner


def test_a_mapping_is_read_and_its_words_stay_as_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("name: on\nseconds: 5\nwanted: true\n")
    assert read_fields(path) == {"name": "on", "seconds": 5, "wanted": True}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"- a\n",
        b"text\n",
        b"a: 1\n---\nb: 2\n",
        b"a: 1\na: 2\n",
        b"a: &x 1\nb: *x\n",
        b"a: !!str 1\n",
        b"\xff\xfe",
        b"a: " + b"x" * MAX_SETTINGS_BYTES,
    ],
)
def test_what_is_not_exactly_one_plain_mapping_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "settings.yaml"
    path.write_bytes(content)
    with pytest.raises(MalformedEvidence) as caught:
        read_fields(path)
    assert caught.value.code is ReasonCode.SETTING_INVALID


def test_a_file_that_is_not_there_is_unreadable(tmp_path: Path) -> None:
    with pytest.raises(Refusal) as caught:
        read_fields(tmp_path / "absent.yaml")
    assert caught.value.code is ReasonCode.FILE_UNREADABLE


def test_a_document_is_refused_as_what_it_was_meant_to_be(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.yaml"
    path.write_text("a: *x\n")
    with pytest.raises(MalformedEvidence) as caught:
        read_document(path, 100, ReasonCode.MANIFEST_INVALID)
    assert caught.value.code is ReasonCode.MANIFEST_INVALID


def test_a_fault_of_form_is_told_with_its_place_and_without_its_value() -> None:
    assert validated(Some, {"inner": {"seconds": 5}}, "settings.yaml").inner.seconds == 5
    with pytest.raises(MalformedEvidence) as caught:
        validated(Some, {"inner": {"seconds": "hunter2"}}, "settings.yaml")
    assert caught.value.code is ReasonCode.SETTING_INVALID
    assert caught.value.failure.claim == "settings.yaml.inner.seconds"
    assert "hunter2" not in str(caught.value)
