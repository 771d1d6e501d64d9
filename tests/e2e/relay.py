"""A TCP relay on loopback that a test can cut: the link between one of our processes and the API server."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from urllib.parse import urlsplit

_CHUNK = 65536


class Relay:
    """Passes bytes to `server` until `cut`; then every connection hangs without a word, as behind a lost network."""

    def __init__(self, server: str) -> None:
        where = urlsplit(server)
        self._target = (where.hostname or "127.0.0.1", where.port or 443)
        self._open = threading.Event()
        self._open.set()
        self._ended = threading.Event()
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"https://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._open.clear()

    def mend(self) -> None:
        self._open.set()

    def drop(self) -> None:
        """Ends every connection; new ones pass."""
        while self._sockets:
            _end(self._sockets.pop())

    def close(self) -> None:
        self._ended.set()
        self._open.set()
        _end(self._listener)
        self.drop()

    def _accept(self) -> None:
        while not self._ended.is_set():
            try:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
            except OSError:
                return
            self._sockets += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while received := source.recv(_CHUNK):
                self._open.wait()
                sink.sendall(received)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


def _end(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
