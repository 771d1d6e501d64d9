"""Who may hold how many connections: those that proved nothing share what is left, and the oldest idle one goes first.

A connection has proved something once a request on it was accepted by an AK or a token. Attack: one address opens idle
connections until no node can attest, and every verdict runs out.

A node holds few connections: one that has proved itself on more loses its oldest. Attack: root on one node, or whoever
may enrol and wait for a person, proves connection after connection until there is no room for any other node.

A long poll is a node's second connection. Where the server is full it is closed for a newcomer, who may have evidence:
what the node would have heard it learns an interval later.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

from verifier.api.limits import network_of

SCOPE_KEY = "nodewarden.connection"
"""Where a request's scope holds the connection on which it came."""
MAX_UNPROVEN_PER_ADDRESS = 256
"""A fleet behind one address comes back with so many at once; each is proven with its first evidence."""
MAX_PROVEN_PER_NODE = 8
"""An attester has two, a person's `once` beside it another; what a cut line left open is closed later."""
PENDING = "pending"
"""Stands for all nodes that nobody admitted yet: anyone may enrol some."""
MAX_PROVEN_PENDING = 512


class Evictable(Protocol):
    """A connection as this module sees it."""

    def is_idle(self) -> bool:
        """Whether no whole request is being answered on it."""
        ...

    def evict(self) -> None:
        """It is closed, and `Connections.closed` called."""
        ...

    def proved(self, by: str | None) -> None:
        """A request on it was accepted by a token (None), or by the AK of a node: its id, or `PENDING`."""
        ...

    def held(self) -> None:
        """It waits for word from us, and is worth less than one that may bring evidence."""
        ...


class Connections:
    """All connections of one server."""

    def __init__(self, limit: int, per_address: int = MAX_UNPROVEN_PER_ADDRESS) -> None:
        self._limit = limit
        self._per_address = per_address
        self._count = 0
        self._unproven: dict[str, OrderedDict[Evictable, None]] = {}
        self._ages: OrderedDict[Evictable, str] = OrderedDict()
        self._held: OrderedDict[Evictable, None] = OrderedDict()
        self._nodes: dict[str, OrderedDict[Evictable, None]] = {}
        self._node_of: dict[Evictable, str] = {}

    def opened(self, connection: Evictable, address: str) -> bool:
        """Whether the connection may stay; room is made for it by closing the oldest idle one that proved nothing.

        First among its own address's, where those are too many; else, where the server is full, among all, and then
        the oldest that is held.
        """
        network = network_of(address)
        own = self._unproven.get(network)
        if own is not None and len(own) >= self._per_address and not _evict_oldest(own):
            return False
        if self._count >= self._limit and not _evict_oldest(self._ages) and not self._evict_held():
            return False
        self._count += 1
        self._ages[connection] = network
        self._unproven.setdefault(network, OrderedDict())[connection] = None
        return True

    def proved(self, connection: Evictable, by: str | None) -> None:
        """An AK or a token spoke on this connection, for the first time: only its own client, or silence, closes it.

        `by` as in `Evictable.proved`; where a node has too many now, the one that it has had longest is closed.
        """
        self._known(connection)
        if by is None:
            return
        own = self._nodes.setdefault(by, OrderedDict())
        own[connection] = None
        self._node_of[connection] = by
        if len(own) > (MAX_PROVEN_PENDING if by == PENDING else MAX_PROVEN_PER_NODE):
            next(iter(own)).evict()

    def _known(self, connection: Evictable) -> None:
        network = self._ages.pop(connection, None)
        if network is not None:
            own = self._unproven[network]
            del own[connection]
            if not own:
                del self._unproven[network]

    def held(self, connection: Evictable) -> None:
        """A long poll is being held on this connection, until `released`."""
        self._held[connection] = None

    def released(self, connection: Evictable) -> None:
        """Nothing is held on this connection."""
        self._held.pop(connection, None)

    def closed(self, connection: Evictable) -> None:
        """A connection that was `opened` is no more."""
        self._known(connection)
        self.released(connection)
        node = self._node_of.pop(connection, None)
        if node is not None:
            own = self._nodes[node]
            del own[connection]
            if not own:
                del self._nodes[node]
        self._count -= 1

    def _evict_held(self) -> bool:
        for connection in self._held:
            connection.evict()
            return True
        return False


def _evict_oldest(candidates: OrderedDict[Evictable, None] | OrderedDict[Evictable, str]) -> bool:
    for connection in candidates:
        if connection.is_idle():
            connection.evict()
            return True
    return False
