"""Requests for large answers that nobody reads: each holds a seat at the API server for nearly a minute, at no cost.

The server writes until the connection's buffers are full, and the seat is free again when it gives the request up.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from tests.e2e.programs import wait_until

HOLD_SECONDS = 50.0
"""The API server gives a request up after a minute."""
AGAIN_SECONDS = 0.2
ANSWER_SECONDS = 40.0
BUFFER_BYTES = 4096
ANSWER_BYTES = 8_000_000
"""More than the kernel keeps for one connection that is not read (4 MB and what the reader's side has)."""


class SlowReaders:
    """`count` connections, spread over `tokens`, that ask for `path` again and again until `stop`."""

    def __init__(self, server: str, ca: Path, path: str, tokens: Sequence[str], count: int) -> None:
        where = urlsplit(server)
        self._address = (where.hostname or "127.0.0.1", where.port or 443)
        self._context = ssl.create_default_context(cafile=str(ca))
        self._path, self._ended = path, threading.Event()
        self._lock = threading.Lock()
        self.holding = self.turned_away = 0
        self._threads = [
            threading.Thread(target=self._run, args=(tokens[number % len(tokens)],), daemon=True)
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(ANSWER_SECONDS)

    def _run(self, token: str) -> None:
        while not self._ended.is_set():
            with suppress(OSError):
                self._ask(token)
            self._ended.wait(AGAIN_SECONDS)

    def _ask(self, token: str) -> None:
        plain = socket.socket()
        # Before the connection is made: it decides how much the server may send unread.
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        plain.settimeout(ANSWER_SECONDS)
        plain.connect(self._address)
        with self._context.wrap_socket(plain, server_hostname=self._address[0]) as connection:
            head = f"GET {self._path} HTTP/1.1\r\nHost: apiserver\r\nAuthorization: Bearer {token}\r\n\r\n"
            connection.sendall(head.encode())
            served = self._status(connection) == b"200"
            with self._lock:
                self.holding += served
                self.turned_away += not served
            if served:
                self._ended.wait(HOLD_SECONDS)
                with self._lock:
                    self.holding -= 1

    def _status(self, connection: ssl.SSLSocket) -> bytes:
        connection.settimeout(0.5)
        for _ in range(int(ANSWER_SECONDS * 2)):
            with suppress(TimeoutError):
                return connection.recv(12).rpartition(b" ")[2]
            if self._ended.is_set():
                break
        return b""


@contextmanager
def slow_readers(
    server: str, ca: Path, path: str, tokens: Sequence[str], *, count: int, seats: int
) -> Iterator[SlowReaders]:
    """Once at least `seats` of them hold one, and until the block ends. Raises HarnessError where they never do."""
    running = SlowReaders(server, ca, path, tokens, count)
    try:
        wait_until(f"{seats} seats are taken", lambda: running.holding >= seats, 40)
        yield running
    finally:
        running.stop()
