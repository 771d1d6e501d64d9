"""What a connection to webhook or broker is worth: more once it asked something, and the longer quiet the less."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Protocol

from edges.connections import Connections, Evictable, evict_oldest

MAX_CONNECTIONS = 1024
MAX_CONNECTIONS_PER_ADDRESS = 512
"""Replicas of an API server, or all nodes behind one address, need some dozens, and more for a moment."""


class Asking(Evictable, Protocol):
    """A connection as this module sees it."""

    @property
    def quiet_since(self) -> float:
        """When the last answer on it was given, in the event loop's time."""
        ...


class AskingConnections(Connections):
    """All connections of one server. Anyone may ask something, so that no connection is worth keeping for ever."""

    def __init__(self, limit: int, per_address: int) -> None:
        super().__init__(limit, per_address)
        self._asked: dict[Evictable, tuple[str, Asking]] = {}

    def asked(self, connection: Asking) -> None:
        """The first request on this connection was answered: it goes only when no other is left, the quietest first."""
        network = self._silent.pop(connection, None) or self._strangers.pop(connection, None)
        if network is not None:
            self._asked[connection] = (network, connection)

    def closed(self, connection: Evictable) -> None:
        """A connection that was `opened` is no more."""
        known = self._asked.pop(connection, None)
        if known is not None:
            self._leave(connection, known[0])
        super().closed(connection)

    def _evict_of(self, own: OrderedDict[Evictable, None]) -> bool:
        if evict_oldest(connection for connection in own if connection not in self._asked):
            return True
        return _evict_quietest(asking for _, asking in self._asked.values() if asking in own)

    def _evict_known(self) -> bool:
        return _evict_quietest(asking for _, asking in self._asked.values())


def _evict_quietest(candidates: Iterable[Asking]) -> bool:
    idle = [connection for connection in candidates if connection.is_idle()]
    if not idle:
        return False
    min(idle, key=lambda connection: connection.quiet_since).evict()
    return True
