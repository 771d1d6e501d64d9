"""uvicorn's HTTP protocol with the limits that it lacks: time of a request, size of its head, connections by address.

Without them a client that opens connections and sends nothing, or headers without end, holds a slot for ever
(CVE-2023-38200). Idle kept-alive connections are uvicorn's own to close.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from verifier.api.connections import SCOPE_KEY, Connections

REQUEST_SECONDS = 15
"""A whole request must arrive within this of its first byte (a connection: its first request within it of opening).
The largest, 4 MiB of evidence, needs 2.2 Mbit/s for that."""
MAX_HEAD_BYTES = 16 * 1024
"""A bearer token or a request id takes a few hundred bytes; larger bodies have their own limits."""


class BoundedProtocol(HttpToolsProtocol):
    """One connection. `registry` is set on a subclass by `bounded_protocol`."""

    registry = Connections(1000)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # - as in the base
        self._in_head = True
        self._whole = False
        self._head_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._proven = False
        super().connection_made(transport)
        self._registered = self.registry.opened(self, "unknown" if self.client is None else self.client[0])
        if not self._registered:
            transport.abort()
            return
        self._await_rest()

    def connection_lost(self, exc: Exception | None) -> None:
        self._arrived()
        self._leave()
        super().connection_lost(exc)

    def is_idle(self) -> bool:
        """Whether no whole request is being answered."""
        return not self._whole

    def evict(self) -> None:
        """Closed at once, to make room."""
        self._leave()
        self.transport.abort()

    def proved(self, by: str | None) -> None:
        """A request on this connection was accepted by an AK or a token; who the first was, counts."""
        if not self._proven:
            self._proven = True
            if self._registered:
                self.registry.proved(self, by)

    def held(self) -> None:
        """The request on this connection is a long poll."""
        if self._registered:
            self.registry.held(self)

    def _leave(self) -> None:
        if self._registered:
            self._registered = False
            self.registry.closed(self)

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
        self.scope[SCOPE_KEY] = self  # type: ignore[literal-required] # - ours, beside the keys of ASGI

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._head_bytes = 0
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._whole = True
        self._arrived()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self.registry.released(self)
        if not self.pipeline:
            self._whole = False
            self._in_head = True
        super().on_response_complete()

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


def bounded_protocol(max_connections: int) -> type[BoundedProtocol]:
    """The protocol class for a server that holds at most `max_connections`."""
    members: dict[str, Any] = {"registry": Connections(max_connections)}
    return type("BoundedProtocol", (BoundedProtocol,), members)
