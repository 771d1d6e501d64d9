"""uvicorn's HTTP protocol with the limits that it lacks: time of a request, size of its head, connections.

Attack: connections that are opened and say nothing. With a mere bound on requests 512 of them switched the webhook off,
and with it every pod of the governed namespaces. Here a full house makes room: the longest idle connection goes, first
of those that never asked anything.

A request of a hot route that arrived whole is answered where it was parsed (`admission.direct`): its task, scope and
stream would cost more than a decision does. Whatever is unusual about a request leads it the long way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from admission.direct import JSON_TYPE, Headers, Route, answer

REQUEST_SECONDS = 15.0
"""A whole request must arrive within this of its first byte, and a connection's first one within it of opening."""
MAX_HEAD_BYTES = 16 * 1024
"""An API server's request has a head of a few hundred bytes; a broker's token travels in the body."""
MAX_CONNECTIONS = 1024
MAX_CONNECTIONS_PER_ADDRESS = 256
"""Replicas of an API server, or all nodes behind one address, need some dozens."""


class BoundedProtocol(HttpToolsProtocol):
    """One connection."""

    max_connections = MAX_CONNECTIONS
    max_connections_per_address = MAX_CONNECTIONS_PER_ADDRESS
    routes: Mapping[bytes, Route] = {}

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # - as in the base
        self._in_head = True
        self._in_message = False
        self._whole = False
        self._head_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._asked = False
        self._busy = False
        self._quiet_since = self.loop.time()
        self._direct: Route | None = None
        self._parts: list[bytes] = []
        self._answered_here = False
        self._ok: tuple[object, bytes] = (None, b"")
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        self._make_room()
        self._await_rest()

    def connection_lost(self, exc: Exception | None) -> None:
        self._arrived()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._answered_here = False
        idle, self.timeout_keep_alive_task = self.timeout_keep_alive_task, None
        super().data_received(data)
        if self._direct is not None:
            self._go_the_long_way()
        if self._answered_here and not self._in_message and not self._busy:
            # One timer for all requests that were answered at once: it looks how long the connection has been quiet.
            self.timeout_keep_alive_task = idle or self._close_when_quiet(self.timeout_keep_alive)
            return
        if idle is not None:
            idle.cancel()
        if self._whole:
            return
        # A request that came whole needs no timer: this is a part of one, or blank lines that keep the connection open.
        self._await_rest()
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self.transport.abort()

    def on_message_begin(self) -> None:
        self._whole = False
        self._in_head = self._in_message = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._head_bytes = 0
        self._direct = self._direct_route()
        self._busy = True
        if self._direct is None:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self._direct is None:
            super().on_body(body)
        else:
            self._parts.append(body)

    def on_message_complete(self) -> None:
        self._whole = True
        self._in_message = False
        self._arrived()
        if self._direct is None:
            super().on_message_complete()
        else:
            self._answer(self._direct)

    def on_response_complete(self) -> None:
        self._asked = True
        self._busy = bool(self.pipeline)
        self._quiet_since = self.loop.time()
        if not self.pipeline:
            self._whole = False
            # A request that was answered before its end is still in its body, which is no head that is too long.
            self._in_head = not self._in_message
        super().on_response_complete()

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
        self._asked = True
        self._busy = self._whole = False
        self._in_head = True
        self._quiet_since = self.loop.time()
        self.server_state.total_requests += 1

    def _close_when_quiet(self, seconds: float) -> asyncio.TimerHandle:
        return self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def timeout_keep_alive_handler(self) -> None:
        rest = self._quiet_since + self.timeout_keep_alive - self.loop.time()
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

    @property
    def rank(self) -> tuple[bool, bool, float]:
        """Who goes first when there is no room: idle before busy, never heard before heard, long quiet before short."""
        return self._busy, self._asked, self._quiet_since

    def _make_room(self) -> None:
        peers = [peer for peer in self.connections if isinstance(peer, BoundedProtocol) and peer is not self]
        own = [peer for peer in peers if peer.address == self.address]
        if len(own) >= self.max_connections_per_address:
            _end_first(own)
        elif len(peers) >= self.max_connections:
            _end_first(peers)

    def end(self) -> None:
        """Closes the connection at once and forgets it."""
        self.connections.discard(self)
        self.transport.abort()

    def _await_rest(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(REQUEST_SECONDS, self._too_slow)

    def _arrived(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        self._timer = None
        self.transport.abort()


def _end_first(connections: list[BoundedProtocol]) -> None:
    min(connections, key=lambda connection: connection.rank).end()


def _head(status: int, headers: Headers) -> bytes:
    return STATUS_LINE[status] + b"".join(b"%b: %b\r\n" % header for header in headers)


def bounded_protocol(
    max_connections: int, per_address: int, routes: Mapping[bytes, Route] | None = None
) -> type[BoundedProtocol]:
    """The protocol class for a server that holds at most so many connections, and answers `routes` at once."""
    members: dict[str, Any] = {
        "max_connections": max_connections,
        "max_connections_per_address": per_address,
        "routes": routes or {},
    }
    return type("BoundedProtocol", (BoundedProtocol,), members)
