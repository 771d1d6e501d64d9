"""An HTTPS server that answers as a test says: for answers that no correct verifier or broker gives."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from verifier.clock import SystemClock
from verifier.tls import ensure_tls


@dataclass(frozen=True, slots=True)
class Received:
    """One request as it came."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    client_port: int


@dataclass(frozen=True, slots=True)
class Scripted:
    """An answer. `chunks` are sent one by one, each after `before_chunk` was called."""

    status: int = 200
    chunks: tuple[bytes, ...] = (b"{}",)
    headers: Mapping[str, str] = field(default_factory=dict)
    before_chunk: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class Server:
    """A running server, and what it received."""

    url: str
    ca_file: Path
    received: list[Received]


@contextmanager
def answering(directory: Path, answer: Callable[[Received], Scripted]) -> Iterator[Server]:
    """A server for 127.0.0.1 whose CA is made in `directory`."""
    certificate, key = ensure_tls(directory, ("127.0.0.1",), SystemClock().now_ms() // 1000)
    received: list[Received] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            length = int(self.headers.get("content-length", "0"))
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = Received(self.command, self.path, headers, self.rfile.read(length), self.client_address[1])
            received.append(request)
            scripted = answer(request)
            self.send_response(scripted.status)
            for name, value in scripted.headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(sum(len(chunk) for chunk in scripted.chunks)))
            self.end_headers()
            try:
                for chunk in scripted.chunks:
                    scripted.before_chunk()
                    self.wfile.write(chunk)
                    self.wfile.flush()
            except OSError:
                # The client hung up, as the test wants it to.
                self.close_connection = True

        do_GET = do_POST = _serve  # noqa: N815 - the base class looks for these names

        def log_message(self, *_: object) -> None:
            pass

    class Quiet(HTTPServer):
        def handle_error(self, *_: object) -> None:
            pass

    server = Quiet(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield Server(f"https://127.0.0.1:{server.server_address[1]}", directory / "ca.pem", received)
    finally:
        server.shutdown()
        thread.join(20)
        server.server_close()
