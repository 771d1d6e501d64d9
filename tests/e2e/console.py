"""Terminal sessions in our documents: commands that are run for real, and outputs that are what they printed.

A session is the ```console blocks of a document, in order and in one shell: a line `$ COMMAND` is typed, `> ` goes on
with the line before, and the lines below it are what came out, wrapped at `MAX_COLUMNS` as a terminal would.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from tests.e2e.cluster import READY
from tests.e2e.playground import ROOT
from tests.e2e.programs import HarnessError

MAX_COLUMNS = 116
COMMAND_SECONDS = 180.0
CLUSTER_SECONDS = 300.0
HANGING = "    "
"""What a wrapped line goes on with."""
_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_VARIES = (
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z?"), "TIME"),
    (re.compile(r"/\w+/nw-\w+"), "FOLDER"),
    (re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "UUID"),
    (re.compile(r"\b[0-9a-f]{12,}\b"), "HEX"),
    (re.compile(r"\b(\d+h)?(\d+m)?\d+(\.\d+)?m?s\b"), "SPAN"),
    (re.compile(r"\b\d{1,3}(\.\d{1,3}){3}(:\d+)?\b"), "ADDRESS"),
    (re.compile(r"\b[0-9a-z]{5,10}-[0-9a-z]{5}\b"), "GENERATED"),
)


@dataclass(frozen=True)
class Typed:
    """A command, and what it printed, both as a document shows them."""

    command: str
    output: tuple[str, ...]


def sessions_of(text: str) -> list[list[Typed]]:
    """What each ```console block of a document shows. Raises HarnessError for one that begins without a command."""
    return [_typed(block.group(1)) for block in _BLOCK.finditer(text)]


def _typed(block: str) -> list[Typed]:
    found: list[tuple[str, list[str]]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif not found:
            raise HarnessError(f"a session begins without a command: {line}")
        elif line.startswith("> ") and not found[-1][1]:
            found[-1] = (f"{found[-1][0]}\n{line[2:]}", [])
        else:
            found[-1][1].append(line)
    return [Typed(command, tuple(output)) for command, output in found]


def with_sessions(text: str, sessions: list[list[Typed]]) -> str:
    """The document with `sessions` in place of those that it shows."""
    coming = iter(sessions)
    return _BLOCK.sub(lambda _: f"```console\n{_shown(next(coming))}```", text)


def _shown(session: list[Typed]) -> str:
    lines = []
    for typed in session:
        first, *more = typed.command.split("\n")
        lines += [f"$ {first}", *(f"> {line}" for line in more), *typed.output]
    return "".join(f"{line}\n" for line in lines)


def alike(shown: Typed, printed: Typed) -> bool:
    """Whether both outputs say the same, but for times, addresses, generated names, and the order of what is said."""
    return _compared(shown.output) == _compared(printed.output)


def _compared(output: tuple[str, ...]) -> list[str]:
    text = "\n".join(output)
    for pattern, name in _VARIES:
        text = pattern.sub(name, text)
    return sorted(text.split())


class Shell:
    """One bash in the root of the checkout; commands are typed one after the other."""

    def __init__(self) -> None:
        self._bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            text=True,
            start_new_session=True,
        )

    def type(self, command: str) -> Typed:
        """Returns once the command is over. Raises HarnessError where it takes longer than COMMAND_SECONDS."""
        end = f"end-{uuid4().hex}"
        assert self._bash.stdin is not None
        self._bash.stdin.write(f"{command}\necho; echo {end}\n")
        self._bash.stdin.flush()
        late = threading.Timer(COMMAND_SECONDS, self._bash.kill)
        late.start()
        try:
            lines = list(self._until(end))
        finally:
            late.cancel()
        if self._bash.poll() is not None:
            raise HarnessError(f"not over within {COMMAND_SECONDS:g} s: {command}")
        while lines and not lines[-1]:
            lines.pop()
        return Typed(command, tuple(part for line in lines for part in _wrapped(line)))

    def _until(self, end: str) -> Iterator[str]:
        assert self._bash.stdout is not None
        for line in self._bash.stdout:
            if line.rstrip() == end:
                return
            yield line.rstrip()

    def close(self) -> None:
        """The shell and what it left in the background have ended."""
        assert self._bash.stdin is not None
        self._bash.stdin.write("kill $(jobs -p) 2>/dev/null; wait\n")
        self._bash.stdin.close()
        try:
            self._bash.wait(30)
        except subprocess.TimeoutExpired:
            self._bash.kill()
            self._bash.wait(30)
        if self._bash.stdout is not None:
            self._bash.stdout.close()


def _wrapped(line: str) -> list[str]:
    made = textwrap.wrap(
        line,
        MAX_COLUMNS,
        subsequent_indent=HANGING,
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
        drop_whitespace=True,
    )
    return made or [""]


@contextmanager
def playing_cluster(log: Path) -> Iterator[None]:
    """`make cluster` runs while the block does. Raises HarnessError, with its last words, where it does not start."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.cluster"], cwd=ROOT, stdout=output, stderr=output, start_new_session=True
        )
    try:
        done = threading.Event()
        for _ in range(int(CLUSTER_SECONDS)):
            if READY in log.read_text() or process.poll() is not None:
                break
            done.wait(1)
        if READY not in log.read_text():
            raise HarnessError(f"make cluster: {log.read_text()[-2000:]}")
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(120)


def play(document: Path, log: Path) -> list[list[Typed]]:
    """What the sessions of `document` print now, on a cluster of their own."""
    shell = Shell()
    with playing_cluster(log):
        try:
            return [[shell.type(each.command) for each in part] for part in sessions_of(document.read_text())]
        finally:
            shell.close()
