"""The stream of results (SSE): first what stands, then every change in commit order, and a sign of life.

An event's id is its place in commit order. A consumer that resumes from an id gets the latest result of every node that
changed since; results that were superseded meanwhile are left out, because only a node's latest counts.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator

from verifier.store.ports import Store, StoredResult

KEEP_ALIVE_SECONDS = 5
"""Relying parties count the stream as dead after ten silent seconds."""
_PAGE = 500
_PAUSE_SECONDS = 0.02
"""Between two looks at the store, so that a fleet's attestations are read in pages and not one by one."""
MAX_STREAMS = 256


class Commits:
    """Tells streams that something was committed. One event for all of them, replaced at each commit."""

    def __init__(self) -> None:
        self._event: asyncio.Event | None = None
        self.streams = 0
        self.ended = False

    def committed(self) -> None:
        """Wakes every stream that waits; costs nothing when none does."""
        if self._event is not None:
            self._event.set()
            self._event = None

    def end(self) -> None:
        """Every stream ends: the server stops, and its consumers must look for another at once."""
        self.ended = True
        self.committed()

    async def wait(self, seconds: float) -> None:
        """Returns at the next commit, or after `seconds`."""
        if self._event is None:
            self._event = asyncio.Event()
        try:
            async with asyncio.timeout(seconds):
                await self._event.wait()
        except TimeoutError:
            return


async def result_events(store: Store, commits: Commits, after: int) -> AsyncGenerator[bytes, None]:
    """The stream from event `after` (0, or one that never was: a snapshot of everything).

    It ends when the consumer goes, or the server stops.
    """
    commits.streams += 1
    try:
        # Attack, or a database restored from a backup: after an event that is yet to come, a consumer would wait for
        # ever and hear of no revocation meanwhile. What stands is told anew instead.
        last = after if after <= store.last_event() else 0
        first = True
        clock = asyncio.get_running_loop().time
        said = clock()
        while not commits.ended:
            page = store.results_after(last, _PAGE)
            for result in page:
                last = result.event
            if page:
                yield b"".join(_event(result) for result in page)
                said = clock()
            if len(page) == _PAGE:
                continue
            if first:
                # From here on the consumer knows all that stands, and may judge by absence.
                first = False
                yield b"event: snapshot-complete\ndata: {}\n\n"
                said = clock()
            if page:
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            # Commits that concern no result, such as the audit chain's each second, wake the stream as well: silence is
            # counted from what was last said.
            silent = clock() - said
            if silent < KEEP_ALIVE_SECONDS:
                await commits.wait(KEEP_ALIVE_SECONDS - silent)
                continue
            yield b": alive\n\n"
            said = clock()
    finally:
        commits.streams -= 1


def _event(result: StoredResult) -> bytes:
    fields = {
        "node_id": result.node_id,
        "node_name": result.node_name,
        "seq": result.sequence,
        "verdict": result.verdict,
        "result": result.token,
    }
    return f"id: {result.event}\nevent: result\ndata: {json.dumps(fields)}\n\n".encode()


def results_list(store: Store) -> list[dict[str, object]]:
    """The latest result of every node, in the stream's order."""
    found: list[dict[str, object]] = []
    last = 0
    while page := store.results_after(last, _PAGE):
        found += [{"node_id": r.node_id, "node_name": r.node_name, "event": r.event, "result": r.token} for r in page]
        last = page[-1].event
    return found
