"""uvicorn's HTTP protocol with the limits that it lacks: time of a request, size of its head, connections.

Attack: connections that are opened and say nothing. With a mere bound on requests 512 of them switched the webhook off,
and with it every pod of the governed namespaces. Here a full house makes room: the longest idle connection goes, first
of those that never asked anything.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

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

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # - as in the base
        self._in_head = True
        self._whole = False
        self._head_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._asked = False
        self._busy = False
        self._quiet_since = self.loop.time()
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        self._make_room()
        self._await_rest()

    def connection_lost(self, exc: Exception | None) -> None:
        self._arrived()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
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
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._head_bytes = 0
        self._busy = True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._whole = True
        self._arrived()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._asked = True
        self._busy = False
        self._quiet_since = self.loop.time()
        if not self.pipeline:
            self._whole = False
            self._in_head = True
        super().on_response_complete()

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


def bounded_protocol(max_connections: int, per_address: int) -> type[BoundedProtocol]:
    """The protocol class for a server that holds at most so many connections."""
    members: dict[str, Any] = {"max_connections": max_connections, "max_connections_per_address": per_address}
    return type("BoundedProtocol", (BoundedProtocol,), members)
