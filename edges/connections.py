"""Who may hold how many connections, counted from the moment they are accepted; the oldest idle one makes room.

Attack: connections that are opened and say nothing, or never end their TLS handshake, until there are no files, no
memory or no places left for anyone else. One address displaces its own first. Where the server is full, a newcomer
displaces the oldest that has not said a byte, then the oldest stranger: one in its handshake, or with no request of its
own answered. What a request that was answered is worth is for a part to say (`_evict_known`).
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Iterable
from typing import Protocol


class Evictable(Protocol):
    """A connection as this module sees it."""

    def is_idle(self) -> bool:
        """Whether no whole request is being answered on it."""
        ...

    def evict(self) -> None:
        """It is closed, and `Connections.closed` called."""
        ...


class Connections:
    """All connections of one server."""

    def __init__(self, limit: int, per_address: int) -> None:
        self._limit = limit
        self._per_address = per_address
        self._count = 0
        self._silent: OrderedDict[Evictable, str] = OrderedDict()
        self._strangers: OrderedDict[Evictable, str] = OrderedDict()
        self._by_network: dict[str, OrderedDict[Evictable, None]] = {}

    def opened(self, connection: Evictable, address: str) -> bool:
        """Whether the connection may stay; room is made for it where that is needed and can be had."""
        network = network_of(address)
        own = self._by_network.get(network)
        if own is not None and len(own) >= self._per_address and not self._evict_of(own):
            return False
        if self._count >= self._limit and not self._evict_any():
            return False
        self._count += 1
        self._silent[connection] = network
        self._by_network.setdefault(network, OrderedDict())[connection] = None
        return True

    def spoke(self, connection: Evictable) -> None:
        """A first byte came on this connection, which was `opened`."""
        network = self._silent.pop(connection, None)
        if network is not None:
            self._strangers[connection] = network

    def became(self, arrival: Evictable, connection: Evictable) -> bool:
        """Whether `connection` has the place of `arrival`, whose handshake ended; not where that was evicted before."""
        network = self._forget(arrival)
        if network is None:
            return False
        self._strangers[connection] = network
        self._by_network.setdefault(network, OrderedDict())[connection] = None
        return True

    def closed(self, connection: Evictable) -> None:
        """A connection that was `opened` is no more."""
        self._forget(connection)
        self._count -= 1

    def _forget(self, connection: Evictable) -> str | None:
        """Among those who may be displaced it is not. Returns its network, where it was."""
        network = self._silent.pop(connection, None) or self._strangers.pop(connection, None)
        if network is not None:
            self._leave(connection, network)
        return network

    def _leave(self, connection: Evictable, network: str) -> None:
        own = self._by_network[network]
        del own[connection]
        if not own:
            del self._by_network[network]

    def _evict_of(self, own: OrderedDict[Evictable, None]) -> bool:
        return evict_oldest(own)

    def _evict_any(self) -> bool:
        return evict_oldest(self._silent) or evict_oldest(self._strangers) or self._evict_known()

    def _evict_known(self) -> bool:
        return False


def evict_oldest(candidates: Iterable[Evictable]) -> bool:
    """Whether the first idle one of `candidates` was evicted, or there is none."""
    for connection in candidates:
        if connection.is_idle():
            connection.evict()
            return True
    return False


def network_of(address: str) -> str:
    """What one client is known by: its IPv4 address, or its IPv6 /64, which one host has to itself."""
    if ":" not in address:
        return address
    try:
        return str(ipaddress.IPv6Network((address, 64), strict=False))
    except ValueError:
        return address
