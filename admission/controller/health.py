"""`/healthz` of the controller: 200 while every part runs, 503 otherwise, and nothing else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def serve_health(host: str, port: int, healthy: Callable[[], bool]) -> ThreadingHTTPServer:
    """A server in a thread of its own, until its `shutdown`."""

    class Handler(BaseHTTPRequestHandler):
        timeout = 5  # a caller that says nothing holds a thread no longer

        def do_GET(self) -> None:
            known = self.path in {"/healthz", "/readyz"}
            self.send_response(404 if not known else 200 if healthy() else 503)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_request(self, code: object = "-", size: object = "-") -> None:
            """Says nothing: probes would fill the log."""

    server = ThreadingHTTPServer((host, port), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="controller health", daemon=True).start()
    return server
