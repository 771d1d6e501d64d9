"""uvicorn's HTTP protocol with the limits that it lacks: time and size of a request's head, and connections.

Without them a client that opens connections and sends nothing, or headers without end, holds a slot for ever
(CVE-2023-38200). Idle kept-alive connections are uvicorn's own to close.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_SECONDS = 10
MAX_HEAD_BYTES = 16 * 1024
"""A bearer token or a request id takes a few hundred bytes; larger bodies have their own limits."""


class BoundedProtocol(HttpToolsProtocol):
    """One connection. `max_connections` is set on a subclass by `bounded_protocol`."""

    max_connections = 1000

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as the base narrows it
        self._busy = False
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        if len(self.connections) >= self.max_connections:
            transport.abort()
        super().connection_made(transport)
        self._await_head(0)

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_arrived()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._busy:
            # Bytes came and no request began: part of a head, or blank lines that keep the connection from ending.
            self._await_head(len(data))

    def on_headers_complete(self) -> None:
        self._busy = True
        if self._head_timer is not None:
            self._head_arrived()
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        self._busy = bool(self.pipeline)
        super().on_response_complete()

    def _await_head(self, size_bytes: int) -> None:
        self._head_bytes += size_bytes
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self._too_slow)
        if self._head_bytes > MAX_HEAD_BYTES:
            self.transport.abort()

    def _head_arrived(self) -> None:
        self._head_bytes = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _too_slow(self) -> None:
        self._head_timer = None
        self.transport.abort()


def bounded_protocol(max_connections: int) -> type[BoundedProtocol]:
    """The protocol class for a server that holds at most `max_connections`."""
    members: dict[str, Any] = {"max_connections": max_connections}
    return type("BoundedProtocol", (BoundedProtocol,), members)
