"""Which nodes should send evidence before their interval is over, and the requests that wait to hear of it."""

from __future__ import annotations

import asyncio

HOLD_SECONDS = 55
"""Longest that a long poll is held: below the 60 s after which common proxies cut a silent connection."""


class Wanted:
    """In memory only: what is lost with the process costs at most one interval."""

    def __init__(self) -> None:
        self._wanted: set[str] = set()
        self._waiting: dict[str, asyncio.Event] = {}

    def want(self, node_id: str) -> None:
        """The node is asked for evidence, now or when it next asks."""
        self._wanted.add(node_id)
        waiting = self._waiting.get(node_id)
        if waiting is not None:
            waiting.set()

    def want_all(self, node_ids: list[str]) -> None:
        """As `want`, for each."""
        for node_id in node_ids:
            self.want(node_id)

    def attested(self, node_id: str) -> None:
        """Evidence came; nothing more is wanted of the node."""
        self._wanted.discard(node_id)

    def end(self) -> None:
        """Every long poll is answered now: the server stops."""
        for waiting in self._waiting.values():
            waiting.set()

    async def wait(self, node_id: str, seconds: float = HOLD_SECONDS) -> bool:
        """Whether evidence is wanted, at once or within `seconds`. A newer wait of the same node ends the older."""
        if node_id in self._wanted:
            return True
        previous = self._waiting.get(node_id)
        if previous is not None:
            previous.set()
        event = self._waiting[node_id] = asyncio.Event()
        try:
            async with asyncio.timeout(seconds):
                await event.wait()
        except TimeoutError:
            return False
        finally:
            if self._waiting.get(node_id) is event:
                del self._waiting[node_id]
        return node_id in self._wanted
