"""Connections to webhook and broker: what `edges.http_protocol` bounds, and requests that are answered at once.

A request of a hot route that arrived whole is answered where it was parsed (`admission.direct`): its task, scope and
stream would cost more than a decision does. Whatever is unusual about a request leads it the long way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from admission.connections import AskingConnections
from admission.direct import JSON_TYPE, Headers, Route, answer
from edges.http_protocol import BoundedProtocol


class DirectProtocol(BoundedProtocol):
    """One connection."""

    registry: AskingConnections
    routes: Mapping[bytes, Route] = {}

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # - as in the base
        self._asked = False
        self._busy = False
        self.quiet_since = self.loop.time()
        self._direct: Route | None = None
        self._parts: list[bytes] = []
        self._answered_here = False
        self._ok: tuple[object, bytes] = (None, b"")
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self._answered_here = False
        idle, self.timeout_keep_alive_task = self.timeout_keep_alive_task, None
        # Past the base, whose bounds are for what was not answered here.
        HttpToolsProtocol.data_received(self, data)
        if self._direct is not None:
            self._go_the_long_way()
        if self._answered_here and not self._in_message and not self._busy:
            # One timer for all requests that were answered at once: it looks how long the connection has been quiet.
            self.timeout_keep_alive_task = idle or self._close_when_quiet(self.timeout_keep_alive)
            return
        if idle is not None:
            idle.cancel()
        self._bound(data)

    def on_headers_complete(self) -> None:
        self._direct = self._direct_route()
        self._busy = True
        if self._direct is None:
            super().on_headers_complete()
        else:
            self._in_head = False
            self._head_bytes = 0

    def on_body(self, body: bytes) -> None:
        if self._direct is None:
            super().on_body(body)
        else:
            self._parts.append(body)

    def on_message_complete(self) -> None:
        if self._direct is None:
            super().on_message_complete()
        else:
            self._in_message = False
            self._arrived()
            self._answer(self._direct)

    def on_response_complete(self) -> None:
        self._answered()
        self._busy = bool(self.pipeline)
        super().on_response_complete()

    def _answered(self) -> None:
        self.quiet_since = self.loop.time()
        if not self._asked:
            self._asked = True
            if self._registered:
                self.registry.asked(self)

    def _direct_route(self) -> Route | None:
        """Who may answer this request where it is parsed; None where anything about it is unusual."""
        route = self.routes.get(self.url.partition(b"?")[0])
        parser = self.parser
        if (
            route is None
            # An answer to the request before is still to come.
            or self._busy
            # Attack: hundreds of requests in one piece, which would be answered before anyone else's.
            or self._answered_here
            or self.flow.write_paused
            or self.transport.is_closing()
            or self.expect_100_continue
            or parser.get_method() != b"POST"
            or parser.get_http_version() != "1.1"
            or parser.should_upgrade()
            or not parser.should_keep_alive()
        ):
            return None
        return route

    def _go_the_long_way(self) -> None:
        # The rest of the body is still to come: bounded in size and time as any other, in a task of its own.
        parts, self._parts, self._direct = self._parts, [], None
        if self.transport.is_closing():
            return
        super().on_headers_complete()
        for part in parts:
            super().on_body(part)

    def _answer(self, route: Route) -> None:
        parts, self._parts, self._direct = self._parts, [], None
        self._answered_here = True
        found = answer(route, parts[0] if len(parts) == 1 else b"".join(parts), self.headers)
        if isinstance(found, bytes):
            self.transport.write(b"%b%d\r\n\r\n%b" % (self._head_of_200(), len(found), found))
        else:
            headers = [*self.server_state.default_headers, *found.raw_headers]
            self.transport.write(_head(found.status_code, headers) + b"\r\n" + bytes(found.body))
        self._busy = self._whole = False
        self._in_head = True
        self._answered()
        self.server_state.total_requests += 1

    def _close_when_quiet(self, seconds: float) -> asyncio.TimerHandle:
        return self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def timeout_keep_alive_handler(self) -> None:
        rest = self.quiet_since + self.timeout_keep_alive - self.loop.time()
        if rest > 0:
            self.timeout_keep_alive_task = self._close_when_quiet(rest)
        else:
            super().timeout_keep_alive_handler()

    def _head_of_200(self) -> bytes:
        defaults = self.server_state.default_headers
        if self._ok[0] is not defaults:  # the server makes new ones every second, for the date
            head = _head(200, [*defaults, (b"content-type", JSON_TYPE)])
            self._ok = (defaults, head + b"content-length: ")
        return self._ok[1]


def answering(routes: Mapping[bytes, Route]) -> type[DirectProtocol]:
    """The protocol that answers `routes` at once."""
    return type("DirectProtocol", (DirectProtocol,), {"routes": routes})


def _head(status: int, headers: Headers) -> bytes:
    return STATUS_LINE[status] + b"".join(b"%b: %b\r\n" % header for header in headers)
