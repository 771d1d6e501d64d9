"""A connection that its `Connections` may count and evict, without a socket."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from edges.connections import Connections


@dataclass(eq=False)
class Counted:
    """It is `open` until it is evicted."""

    registry: Connections
    idle: bool = True
    open: bool = True
    quiet_since: float = 0.0

    def is_idle(self) -> bool:
        return self.idle

    def evict(self) -> None:
        self.open = False
        self.registry.closed(self)


CountedT = TypeVar("CountedT", bound=Counted)


def opened(kind: type[CountedT], registry: Connections, address: str, count: int) -> list[CountedT]:
    """So many connections from `address`, each of which might stay when it came."""
    made = []
    for _ in range(count):
        made.append(kind(registry))
        assert registry.opened(made[-1], address)
    return made
