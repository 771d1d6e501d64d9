"""Where log lines go: to a file at once, or, while a service serves, by a thread of their own.

No decision waits for whoever reads the log: a pipe that nobody empties would stop them all. Lines that find no room are
counted, and the count is a line itself, so that none is lost silently.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TextIO

import orjson

MAX_WAITING_CHARACTERS = 8 * 1024 * 1024
DRAIN_SECONDS = 2.0
"""How long the end of a service waits for a log that is slow."""


def as_line(fields: Mapping[str, object]) -> str:
    """`fields` as one line of JSON in ASCII, keys in order.

    Attack: names with line breaks or with control characters beyond ASCII, which forge lines or drive a terminal.
    """
    try:
        line = orjson.dumps(fields, option=orjson.OPT_SORT_KEYS, default=str)
    except TypeError:  # half of a surrogate pair is in no UTF-8
        line = b"\xff"
    text = line.decode("ascii") if line.isascii() else json.dumps(fields, sort_keys=True, default=str)
    # The one control character that JSON leaves as it is.
    return text.replace("\x7f", "\\u007f") + "\n"


class LineWriter:
    """Writes lines to `file`; safe to call from any thread, and raises nothing."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._changed = threading.Condition()
        self._waiting: list[str] = []
        self._waiting_characters = 0
        self._untold = 0
        self._in_background = False
        self.lost = 0
        """How many lines found no room or no reader, since the beginning."""

    def write(self, line: str) -> None:
        """`line` is written, waits for its turn, or is counted as lost."""
        with self._changed:
            if not self._in_background:
                self._put(line, 1)
            elif self._waiting_characters + len(line) > MAX_WAITING_CHARACTERS:
                self.lost += 1
                self._untold += 1
            else:
                self._waiting.append(line)
                self._waiting_characters += len(line)
                self._changed.notify()

    @contextmanager
    def in_background(self) -> Iterator[None]:
        """Within the block `write` waits for nobody; at its end what waits is written, if that takes no longer than
        `DRAIN_SECONDS`."""
        self._in_background = True
        thread = threading.Thread(target=self._run, name="log lines", daemon=True)
        thread.start()
        try:
            yield
        finally:
            with self._changed:
                self._in_background = False
                self._changed.notify()
            thread.join(DRAIN_SECONDS)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or not self._in_background)
                lines, self._waiting, self._waiting_characters = self._waiting, [], 0
                untold, self._untold = self._untold, 0
                ending = not self._in_background
            if untold:
                lines.append(as_line({"event": "log_lines_lost", "level": "error", "count": untold}))
            if lines:
                self._put("".join(lines), len(lines))
            if ending:
                return

    def _put(self, text: str, lines: int) -> None:
        try:
            self._file.write(text)
            self._file.flush()
        except (OSError, ValueError):  # nobody reads it any more: no reason to stop deciding
            self.lost += lines
