"""What a node's connections are worth: one that proved itself is not displaced, and each node has few.

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

from edges.connections import Connections, Evictable

SCOPE_KEY = "nodewarden.connection"
"""Where a request's scope holds the connection on which it came."""
MAX_UNPROVEN_PER_ADDRESS = 256
"""A fleet behind one address comes back with so many at once; each is proven with its first evidence."""
MAX_PROVEN_PER_NODE = 8
"""An attester has two, a person's `once` beside it another; what a cut line left open is closed later."""
PENDING = "pending"
"""Stands for all nodes that nobody admitted yet: anyone may enrol some."""
MAX_PROVEN_PENDING = 512


class NodeConnection(Evictable, Protocol):
    """A connection as a request's scope holds it."""

    def proved(self, by: str | None) -> None:
        """A request on it was accepted by a token (None), or by the AK of a node: its id, or `PENDING`."""
        ...

    def held(self) -> None:
        """It waits for word from us, and is worth less than one that may bring evidence."""
        ...


class NodeConnections(Connections):
    """All connections of the verifier: who proved nothing shares what is left, and the oldest idle one goes first."""

    def __init__(self, limit: int, per_address: int = MAX_UNPROVEN_PER_ADDRESS) -> None:
        super().__init__(limit, per_address)
        self._held: OrderedDict[Evictable, None] = OrderedDict()
        self._nodes: dict[str, OrderedDict[Evictable, None]] = {}
        self._node_of: dict[Evictable, str] = {}

    def proved(self, connection: Evictable, by: str | None) -> None:
        """An AK or a token spoke on this connection, for the first time: only its own client, or silence, closes it.

        `by` as in `NodeConnection.proved`; where a node has too many now, the one that it has had longest is closed.
        """
        self._forget(connection)
        if by is None:
            return
        own = self._nodes.setdefault(by, OrderedDict())
        own[connection] = None
        self._node_of[connection] = by
        if len(own) > (MAX_PROVEN_PENDING if by == PENDING else MAX_PROVEN_PER_NODE):
            next(iter(own)).evict()

    def held(self, connection: Evictable) -> None:
        """A long poll is being held on this connection, until `released`."""
        self._held[connection] = None

    def released(self, connection: Evictable) -> None:
        """Nothing is held on this connection."""
        self._held.pop(connection, None)

    def closed(self, connection: Evictable) -> None:
        """A connection that was `opened` is no more."""
        super().closed(connection)
        self.released(connection)
        node = self._node_of.pop(connection, None)
        if node is not None:
            own = self._nodes[node]
            del own[connection]
            if not own:
                del self._nodes[node]

    def _evict_known(self) -> bool:
        for connection in self._held:
            connection.evict()
            return True
        return False
