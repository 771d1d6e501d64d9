"""uvicorn's HTTP protocol with the limits that it lacks: time of a request, size of its head, time to take an answer.

Without them a client that opens connections and sends nothing, or headers without end, or takes no answer, holds a
place for ever (CVE-2023-38200). How many connections there may be is for `edges.connections` to say. Idle kept-alive
connections are uvicorn's own to close.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from edges.connections import Connections
from edges.door import Arrival

REQUEST_SECONDS = 15.0
"""A whole request must arrive within this of its first byte, and a connection's first one within it of its handshake.
The largest, 4 MiB of evidence, needs 2.2 Mbit/s for that."""
MAX_HEAD_BYTES = 16 * 1024
"""A bearer token or a request id takes a few hundred bytes; bodies have their own limits."""
FREE_PIECES, PIECE_BYTES = 1024, 64
"""A body may come in so many pieces, and one more for each so many bytes. Attack: chunks of a byte, each of which costs
as much as one of sixteen thousand."""
TAKING_SECONDS = 60.0
"""Attack: requests without end whose answers are not taken: a connection that is busy, and so never displaced."""


class BoundedProtocol(HttpToolsProtocol):
    """One connection. A server gives its subclass the `registry` of all its connections."""

    registry = Connections(1000, 250)
    arrival: Arrival | None = None
    """Where it comes through a `Door`, which has counted it already."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # - as in the base
        self._in_head = True
        self._in_message = False
        self._whole = False
        self._has_body = False
        self._head_bytes = self._body_bytes = self._pieces = 0
        self._timer: asyncio.TimerHandle | None = None
        self._taking: asyncio.TimerHandle | None = None
        super().connection_made(transport)
        self._registered = self._register()
        if not self._registered:
            transport.abort()
            return
        self._await_rest()

    def _register(self) -> bool:
        if self.arrival is None:
            return self.registry.opened(self, "unknown" if self.client is None else self.client[0])
        arrival, self.arrival = self.arrival, None
        return arrival.entered(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._arrived()
        self._taken()
        self._leave()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def is_idle(self) -> bool:
        """Whether no whole request is being answered."""
        return not self._whole

    def evict(self) -> None:
        """Closed at once, to make room."""
        self._leave()
        self.connections.discard(self)
        self.transport.abort()

    def _leave(self) -> None:
        if self._registered:
            self._registered = False
            self.registry.closed(self)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._bound(data)

    def _bound(self, data: bytes) -> None:
        if self._whole:
            return
        # A request that came whole needs no timer: this is a part of one, or blank lines that keep the connection open.
        self._await_rest()
        # Attack: fields after a body in chunks, or the head of a request that came before the answer to another: both
        # are kept as a head's are. Whatever is not a body counts as one.
        if self._in_head or not self._has_body:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self.transport.abort()
        self._has_body = False

    def on_body(self, body: bytes) -> None:
        self._has_body = True
        self._head_bytes = 0
        self._pieces += 1
        self._body_bytes += len(body)
        if self._pieces > FREE_PIECES + self._body_bytes // PIECE_BYTES:
            self.transport.abort()
            return
        super().on_body(body)

    def on_message_begin(self) -> None:
        self._whole = self._has_body = False
        self._in_head = self._in_message = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._head_bytes = self._body_bytes = self._pieces = 0
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._whole = True
        self._in_message = False
        self._arrived()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        if not self.pipeline:
            self._whole = False
            # A request that was answered before its end is still in its body, which is no head that is too long.
            self._in_head = not self._in_message
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._taking is None:
            self._taking = self.loop.call_later(TAKING_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._taken()

    def _await_rest(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(REQUEST_SECONDS, self._too_slow)

    def _arrived(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _taken(self) -> None:
        if self._taking is not None:
            self._taking.cancel()
            self._taking = None

    def _too_slow(self) -> None:
        self._timer = None
        self.transport.abort()
