"""A queue of keys to reconcile: each key at most once in it and never in two hands, at a time of its own.

Level-triggered: a key says that something about it may have changed, and its reconciler looks at everything. One that
raises comes again after a growing pause, for ever.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

import structlog

from verifier.wire.failures import Refusal

FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 5.0

KeyT = TypeVar("KeyT", bound=Hashable)


@dataclass(frozen=True, slots=True)
class QueueLoad:
    """How many keys are due and wait for a worker, are in a worker's hands, and failed when they last were."""

    ready: int
    busy: int
    failing: int


class WorkQueue(Generic[KeyT]):
    """Keys with due times. `reconcile` answers after how many seconds it wants its key again, or None."""

    def __init__(self, reconcile: Callable[[KeyT], float | None]) -> None:
        self._reconcile = reconcile
        self._ready = threading.Condition()
        self._due: dict[KeyT, float] = {}
        self._heap: list[tuple[float, int, KeyT]] = []
        self._count = itertools.count()
        self._busy: set[KeyT] = set()
        self._failures: dict[KeyT, int] = {}
        self._stopped = False

    def add(self, key: KeyT, after_seconds: float = 0.0) -> None:
        """`key` is reconciled after that many seconds, or sooner if it was due sooner; once, however often added.

        With fewer than none it goes before whatever has not been due for that long.
        """
        due = time.monotonic() + after_seconds
        with self._ready:
            if self._due.get(key, due + 1.0) <= due:
                return
            self._due[key] = due
            heapq.heappush(self._heap, (due, next(self._count), key))
            self._ready.notify()

    def clear(self) -> None:
        """Nothing waits any more; what is in hand is finished."""
        with self._ready:
            self._due.clear()
            self._heap.clear()

    def load(self) -> QueueLoad:
        """How much there is to do now."""
        now = time.monotonic()
        with self._ready:
            ready = sum(due <= now for due in self._due.values())
            return QueueLoad(ready, len(self._busy), len(self._failures))

    def stop(self) -> None:
        """Workers return when they have finished what is in their hands."""
        with self._ready:
            self._stopped = True
            self._ready.notify_all()

    def work(self) -> None:
        """Reconciles keys until `stop`; to be run by as many threads as there shall be workers."""
        while (key := self._next()) is not None:
            again: float | None
            try:
                again = self._reconcile(key)
                self._failures.pop(key, None)
            except Refusal as refusal:
                structlog.get_logger().warning("reconcile_refused", key=str(key), reason=str(refusal))
                again = self._pause(key)
            except Exception as error:  # noqa: BLE001 - one object's fault must not stop the work on all others
                structlog.get_logger().error("reconcile_failed", key=str(key), error=repr(error))
                again = self._pause(key)
            with self._ready:
                self._busy.discard(key)
                self._ready.notify_all()
            if again is not None:
                self.add(key, again)

    def _pause(self, key: KeyT) -> float:
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        return min(FIRST_PAUSE_SECONDS * 2.0 ** min(failures, 16), LONGEST_PAUSE_SECONDS)

    def _next(self) -> KeyT | None:
        with self._ready:
            while not self._stopped:
                taken = self._pop()
                if not isinstance(taken, float):
                    self._busy.add(taken)
                    return taken
                self._ready.wait(taken)
            return None

    def _pop(self) -> KeyT | float:
        now = time.monotonic()
        waiting: list[tuple[float, int, KeyT]] = []
        found: KeyT | None = None
        while self._heap and self._heap[0][0] <= now:
            due, number, key = heapq.heappop(self._heap)
            if self._due.get(key) != due:
                continue  # superseded by a sooner time, done, or cleared
            if key in self._busy:
                waiting.append((due, number, key))
                continue
            del self._due[key]
            found = key
            break
        for entry in waiting:
            heapq.heappush(self._heap, entry)
        if found is not None:
            return found
        # Past those in hand, which are due and cannot be taken: what is due next must not wait for them.
        first = heapq.nsmallest(len(self._busy) + 1, self._heap)
        soonest = next((due for due, _, key in first if key not in self._busy), now + 1.0)
        return max(soonest - now, 0.001)
