"""The log: one line an event whatever is in it, nobody waits for its reader, and no line is lost silently."""

from __future__ import annotations

import io
import json
import os
import threading
import time
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from admission import log_lines
from admission.events import configure_logging
from admission.log_lines import LineWriter, as_line


@given(st.dictionaries(st.text(max_size=8), st.text(max_size=20) | st.integers() | st.none(), max_size=4))
def test_whatever_is_told_is_one_line_of_ascii_that_says_it(fields: dict[str, Any]) -> None:
    line = as_line(fields)
    assert line.endswith("\n")
    assert line.isascii()
    assert line[:-1].isprintable()
    assert json.loads(line) == fields


@pytest.mark.parametrize("hostile", ["a\nforged", "\x1b[31m", "\x7f", "\x9b31m", "\u202e", "\ud800"])
def test_hostile_text_forges_no_line_and_drives_no_terminal(hostile: str) -> None:
    line = as_line({"name": hostile})
    assert line[:-1].isprintable()
    assert line.isascii()


def test_an_event_has_its_level_and_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    before, file = structlog.get_config(), io.StringIO()
    monkeypatch.setattr("sys.stderr", file)
    try:
        configure_logging()
        structlog.get_logger().warning("something_refused", reasons=[{"code": "x"}])
    finally:
        structlog.configure(**before)
    found = json.loads(file.getvalue())
    assert (found["event"], found["level"], found["reasons"]) == ("something_refused", "warning", [{"code": "x"}])
    assert found["timestamp"].endswith("Z")


def test_lines_written_in_the_background_are_all_there_at_its_end_and_in_order() -> None:
    file = io.StringIO()
    writer = LineWriter(file)
    writer.write("before\n")
    with writer.in_background():
        for n in range(5000):
            writer.write(f"{n}\n")
    writer.write("after\n")
    assert file.getvalue().splitlines() == ["before", *map(str, range(5000)), "after"]
    assert writer.lost == 0


def test_a_log_that_nobody_reads_holds_nobody_up_and_what_was_lost_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_lines, "MAX_WAITING_CHARACTERS", 100_000)
    reading, writing = os.pipe()
    file = os.fdopen(writing, "w")
    writer, line, count = LineWriter(file), "x" * 999 + "\n", 1000
    read: list[str] = []

    def read_all() -> None:
        with os.fdopen(reading) as lines:
            read.extend(lines)

    with writer.in_background():
        writer.write(line)
        time.sleep(0.1)
        began = time.monotonic()
        for _ in range(count - 1):
            writer.write(line)
        assert time.monotonic() - began < 1
        assert writer.lost > 0
        reader = threading.Thread(target=read_all)
        reader.start()
    file.close()
    reader.join(5)
    told = [json.loads(text)["count"] for text in read if text.startswith("{")]
    assert sum(told) == writer.lost
    assert len([text for text in read if text == line]) == count - writer.lost


@pytest.mark.parametrize("background", [True, False])
def test_a_log_whose_reader_has_gone_stops_nothing(background: bool) -> None:
    reading, writing = os.pipe()
    file = os.fdopen(writing, "w", buffering=1)
    os.close(reading)
    writer = LineWriter(file)
    if background:
        with writer.in_background():
            writer.write("told\n")
    else:
        writer.write("told\n")
    assert writer.lost == 1
    with pytest.raises(BrokenPipeError):
        file.close()
