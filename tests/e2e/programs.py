"""Where the control plane's programs are, and running them: each with a log, each ended by whoever started it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

STOP_SECONDS = 15


class HarnessError(Exception):
    """The machine or a program did not do what the harness needs; the message says which and where its log is."""


def cache() -> Path:
    """The folder that deploy/control-plane/build.sh fills."""
    root = os.environ.get("NODEWARDEN_CACHE")
    return (Path(root) if root else Path.home() / ".cache/nodewarden") / "control-plane"


def find_program(name: str) -> Path:
    """The program `name`: from the cache, else from KUBEBUILDER_ASSETS. Raises HarnessError where there is none."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    folders = [cache(), Path(assets)] if assets else [cache()]
    for folder in folders:
        if (folder / name).exists():
            return folder / name
    raise HarnessError(f"{name} is not built: run deploy/control-plane/build.sh and build-node.sh")


def free_port() -> int:
    """A TCP port of loopback that was free just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Program:
    """A running program with its log."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def ended(self) -> bool:
        return self.process.poll() is not None

    def tail(self, lines: int = 15) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def stop(self) -> None:
        """Ends the program, by force where it does not end itself."""
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            print(f"{self.name} did not end within {STOP_SECONDS} s", file=sys.stderr)
            self.process.kill()
            self.process.wait(STOP_SECONDS)


@dataclass
class Programs:
    """Programs of one folder, stopped in the reverse of the order in which they were started."""

    folder: Path
    running: list[Program] = field(default_factory=list)

    def start(
        self, path: Path, *arguments: str, name: str = "", environment: Mapping[str, str] | None = None
    ) -> Program:
        """Starts `path`; it dies with the test process, even with a killed one."""
        title = name or path.name
        log = self.folder / f"{title}.log"
        command = [str(path), *arguments]
        if shutil.which("setpriv"):
            command = ["setpriv", "--pdeathsig", "TERM", *command]
        with log.open("wb") as output:
            # A session of its own: Ctrl-C at a terminal must reach the harness only, which stops all in order.
            process = subprocess.Popen(
                command, stdout=output, stderr=output, cwd=self.folder, env=environment, start_new_session=True
            )
        program = Program(title, process, log)
        self.running.append(program)
        return program

    def stop(self) -> None:
        while self.running:
            self.running.pop().stop()

    def require_running(self) -> None:
        """Raises HarnessError with the end of its log where a program has ended."""
        for program in self.running:
            if program.ended():
                raise HarnessError(f"{program.name} ended ({program.process.returncode}):\n{program.tail()}")


def wait_until(
    what: str, condition: Callable[[], bool], seconds: float = 60, check: Callable[[], None] | None = None
) -> None:
    """Returns once `condition()` holds. Raises HarnessError `what` after `seconds`, and whatever `check()` raises."""
    deadline = time.monotonic() + seconds
    while not condition():
        if check is not None:
            check()
        if time.monotonic() > deadline:
            raise HarnessError(f"not within {seconds:g} s: {what}")
        time.sleep(0.1)
