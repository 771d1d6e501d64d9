"""`/healthz` of the controller: 200 while every part runs, 503 otherwise, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from starlette.types import ASGIApp, Receive, Scope, Send

from admission.metrics_server import serving
from admission.settings import Listen


def serving_health(healthy: Callable[[], bool], listen: Listen) -> AbstractContextManager[int]:
    """The port where it is served while the block runs. Raises Unavailable `address-unavailable`."""
    return serving(health_app(healthy), listen, "controller health")


def health_app(healthy: Callable[[], bool]) -> ASGIApp:
    """`GET /healthz` and `GET /readyz`, which say the same."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001 - an ASGI application's signature
        if scope["path"] not in ("/healthz", "/readyz"):
            status = 404
        elif scope["method"] not in ("GET", "HEAD"):
            status = 405
        else:
            status = 200 if healthy() else 503
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    return app
