"""The real services as child processes on loopback, started as an operator starts them, and always stopped."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

_START_SECONDS = 30.0
_STOP_SECONDS = 10.0
_COMMAND_SECONDS = 60.0


def free_port() -> int:
    """A port of 127.0.0.1 that was free a moment ago."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def nodewarden(*arguments: str, standard_input: bytes = b"") -> str:
    """Standard output of one `nodewarden` command. Raises RuntimeError with its error line when it fails."""
    done = subprocess.run(  # noqa: S603 - our own command
        [sys.executable, "-m", "nodewarden", *arguments],
        input=standard_input,
        capture_output=True,
        timeout=_COMMAND_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"nodewarden {' '.join(arguments[:2])}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout.decode()


@dataclass(slots=True)
class Services:
    """Child processes; leaving the context stops them all."""

    logs: Path
    _running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, name: str, arguments: Sequence[str], url: str, ca_file: Path) -> None:
        """`nodewarden ARGUMENTS` runs and answers `url`/healthz. Raises RuntimeError with the end of its log."""
        log = self.logs / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(  # noqa: S603 - our own command
                [sys.executable, "-m", "nodewarden", *arguments], stdout=output, stderr=output
            )
        self._running.append(process)
        deadline = time.monotonic() + _START_SECONDS
        with https(url, ca_file) as client:
            while time.monotonic() < deadline and process.poll() is None:
                try:
                    if client.get("/healthz").status_code == httpx.codes.OK:
                        return
                except httpx.HTTPError:
                    time.sleep(0.05)
        raise RuntimeError(f"{name} does not start: {log.read_text(errors='replace')[-2000:]}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._running:
            process.terminate()
        for process in self._running:
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def https(url: str, ca_file: Path, token_file: Path | None = None) -> httpx.Client:
    """A client of `url` that trusts the CA in `ca_file` alone, with the bearer token in `token_file` where given."""
    headers = {} if token_file is None else {"authorization": f"Bearer {token_file.read_text().strip()}"}
    context = ssl.create_default_context(cafile=str(ca_file))
    return httpx.Client(base_url=url, verify=context, headers=headers, timeout=10.0, trust_env=False)


def answer_json(response: httpx.Response) -> Any:
    """The JSON of a successful answer. Raises httpx.HTTPStatusError otherwise."""
    return response.raise_for_status().json()
