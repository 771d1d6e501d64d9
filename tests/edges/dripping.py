"""A TLS server whose answer never ends: it sends what it is told to, and then the same bytes now and then."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PAUSE_SECONDS = 0.1
LONGEST_SECONDS = 20.0


@contextmanager
def dripping(certificate: Path, key: Path, first: bytes, again: bytes) -> Iterator[str]:
    """The address of a server that sends `first` and, for `LONGEST_SECONDS`, `again` every `PAUSE_SECONDS`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    over = threading.Event()

    def serve(listening: socket.socket) -> None:
        with suppress(OSError), context.wrap_socket(listening.accept()[0], server_side=True) as connection:
            connection.recv(65536)
            connection.sendall(first)
            for _ in range(int(LONGEST_SECONDS / PAUSE_SECONDS)):
                if over.wait(PAUSE_SECONDS):
                    return
                connection.sendall(again)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, args=(listening,))
        thread.start()
        try:
            yield f"https://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            over.set()
            thread.join(20)
