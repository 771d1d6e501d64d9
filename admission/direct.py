"""An application whose hot routes are functions from body to answer, so that the protocol may call them itself.

A request that arrived whole needs no task, no stream and no framework: the connection's protocol answers it where it
parsed it (`admission.protocol`). What arrives in parts, too large or out of turn comes through `DirectApp.__call__`
instead, where bodies are bounded in size, time and number; both ways end in the same `answer`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import structlog
from fastapi import Request
from fastapi.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from admission.events import reasons_of, request_id
from admission.http_edge import internal_error, problem, read_body, status_of
from verifier.wire.failures import Failure, Refusal

JSON_TYPE = b"application/json"
Headers = Sequence[tuple[bytes, bytes]]
"""As ASGI has them: names in lower case."""
Handler = Callable[[bytes], bytes]
"""From a request's JSON to its answer's. It must not block; it raises Refusal."""


def _unheard(_: Failure | None) -> None:
    return None


@dataclass(frozen=True, slots=True)
class Route:
    """A hot route. `turned_away` hears of each request that had no answer of `handler`: why, or None for our fault."""

    handler: Handler
    turned_away: Callable[[Failure | None], None] = _unheard


class DirectApp:
    """Answers POST on the paths of `routes` itself, bodies up to `max_bytes`, and leaves all else to `app`."""

    def __init__(self, app: ASGIApp, routes: Mapping[str, Route], max_bytes: int) -> None:
        self._app, self._max_bytes = app, max_bytes
        self.routes: Mapping[bytes, Route] = {path.encode(): route for path, route in routes.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = None
        if scope["type"] == "http" and scope["method"] == "POST":
            route = self.routes.get(scope["path"].encode())
        if route is None:
            await self._app(scope, receive, send)
            return
        headers: Headers = scope["headers"]
        try:
            body = await read_body(Request(scope, receive), self._max_bytes)
        except Refusal as refusal:
            response = _refused(route, refusal, headers)
        else:
            found = answer(route, body, headers)
            response = Response(found, media_type=JSON_TYPE.decode()) if isinstance(found, bytes) else found
        await response(scope, receive, send)


def answer(route: Route, body: bytes, headers: Headers) -> bytes | Response:
    """The JSON of a 200, or the response that says why there is none. Raises nothing."""
    try:
        return route.handler(body)
    except Refusal as refusal:
        return _refused(route, refusal, headers)
    except Exception as error:  # noqa: BLE001 - the edge: the API server takes any 500 as a denial
        route.turned_away(None)
        identity = request_id(_claimed_id(headers))
        structlog.get_logger().error("review_failed", request_id=identity, error=type(error).__name__)
        return internal_error(identity)


def _refused(route: Route, refusal: Refusal, headers: Headers) -> Response:
    route.turned_away(refusal.failure)
    identity = request_id(_claimed_id(headers))
    structlog.get_logger().warning("review_refused", request_id=identity, reasons=reasons_of((refusal.failure,)))
    return problem(status_of(refusal), (refusal.failure,), identity)


def _claimed_id(headers: Headers) -> str | None:
    return next((value.decode("latin-1") for name, value in headers if name == b"x-request-id"), None)
