"""`GET /metrics` on a port of its own, in a thread of its own: who reads figures is not in the way of decisions.

`serving` is for whatever a process answers in the clear beside its work; what strangers cost there is bounded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from starlette.types import ASGIApp, Receive, Scope, Send

from admission.connections import AskingConnections
from admission.protocol import answering
from admission.settings import Listen
from edges.listening import listening_sockets
from edges.server import BoundedServer, http_config

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
MAX_CONNECTIONS = 16
MAX_CONNECTIONS_PER_ADDRESS = 8
STOP_SECONDS = 5.0


@contextmanager
def serving_metrics(text: Callable[[], bytes], listen: Listen) -> Iterator[int]:
    """The port where `text()` is served at /metrics while the block runs, over plain HTTP.

    Raises Unavailable `address-unavailable`.
    """
    with serving(metrics_app(text), listen, "metrics") as port:
        yield port


@contextmanager
def serving(app: ASGIApp, listen: Listen, name: str) -> Iterator[int]:
    """The port where `app` is served over plain HTTP while the block runs, by a thread called `name`.

    Attack: connections that ask nothing, or slowly: there are few, they have their time, and the longest idle goes.
    Raises Unavailable `address-unavailable`.
    """
    listening = listening_sockets(listen.host, listen.port)
    connections = AskingConnections(MAX_CONNECTIONS, MAX_CONNECTIONS_PER_ADDRESS)
    config = http_config(app, answering({}), connections, lifespan="off", timeout_graceful_shutdown=1)
    port = listening[0].getsockname()[1]
    server = BoundedServer(config, listening)
    thread = threading.Thread(target=server.run, name=name, daemon=True)
    thread.start()
    try:
        yield port
    finally:
        server.should_exit = True
        thread.join(STOP_SECONDS)


def metrics_app(text: Callable[[], bytes]) -> ASGIApp:
    """`GET /metrics` and nothing else."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001 - an ASGI application's signature
        if scope["path"] != "/metrics":
            status, kind, body = 404, b"text/plain", b""
        elif scope["method"] not in ("GET", "HEAD"):
            status, kind, body = 405, b"text/plain", b""
        else:
            status, kind, body = 200, CONTENT_TYPE, text()
        headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return app
