"""An API server that says what a test tells it to, over real TLS: for answers that a real one gives once in a year."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

from admission.kube import KubeClient
from tests.admission.served import make_certificate


@dataclass(frozen=True)
class Asked:
    """One request."""

    method: str
    path: str
    query: dict[str, str]
    body: Any

    @property
    def watching(self) -> bool:
        return self.query.get("watch") == "1"


@dataclass(frozen=True)
class Said:
    """One answer: JSON, or the parts of a stream; `cut` ends the stream without its end."""

    body: Any = None
    status: int = 200
    parts: Iterator[bytes] | None = None
    cut: bool = False
    headers: dict[str, str] = field(default_factory=dict)


Answers = Callable[[Asked], Said]


def a_list(*items: dict[str, Any], version: str = "1", proceed: str = "") -> Said:
    return Said({"kind": "List", "metadata": {"resourceVersion": version, "continue": proceed}, "items": list(items)})


def events(*given: tuple[str, dict[str, Any]], cut: bool = False, then: Callable[[], object] | None = None) -> Said:
    """A watch that tells `given`, then waits for `then`, then ends."""

    def parts() -> Iterator[bytes]:
        for kind, fields in given:
            yield json.dumps({"type": kind, "object": fields}).encode() + b"\n"
        if then is not None:
            then()

    return Said(parts=parts(), cut=cut)


def a_status(code: int, reason: str) -> dict[str, Any]:
    return {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": "as scripted"}


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - clients hang up on us on purpose
        return


@contextmanager
def scripted_api(folder: Path, answers: Answers) -> Iterator[tuple[KubeClient, list[Asked]]]:
    """A client of the server, and what was asked of it so far."""
    certificate = make_certificate(folder)
    asked: list[Asked] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            url = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(url.query).items()}
            body = json.loads(self.rfile.read(length)) if length else None
            request = Asked(self.command, url.path, query, body)
            asked.append(request)
            said = answers(request)
            self.send_response(said.status)
            for name, value in said.headers.items():
                self.send_header(name, value)
            if said.parts is None:
                content = said.body if isinstance(said.body, bytes) else json.dumps(said.body).encode()
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)
                return
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.flush()
            for part in said.parts:
                self.wfile.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
                self.wfile.flush()
            if said.cut:
                self.close_connection = True
            else:
                self.wfile.write(b"0\r\n\r\n")

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer  # noqa: N815 - the base class's names

        def log_message(self, *_: Any) -> None:
            return

    server = _Server(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.certificate, certificate.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        config = a_kubeconfig(f"https://127.0.0.1:{server.server_port}", certificate.certificate)
        path = folder / "kubeconfig"
        path.write_text(yaml.safe_dump(config))
        yield KubeClient.from_kubeconfig(path), asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


def a_kubeconfig(server: str, ca: Path, **cluster: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": server, "certificate-authority": str(ca), **cluster}}],
        "users": [{"name": "u", "user": {"token": "scripted-token"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }
