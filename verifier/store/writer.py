"""Group commit: concurrent units share one transaction and one sync to disk.

Guarantees: a unit is all or nothing (it runs in its own savepoint, so that one that fails takes no other with it; one
that does without a savepoint loses the batch if it fails after its first change, so nothing of its own may fail then);
its caller resumes only after COMMIT returned; when COMMIT fails, every unit of the batch fails. With synchronous=FULL a
resumed caller means that the change survives a power cut.

Statements run on the event loop, where they cost microseconds on cached pages; only COMMIT, which waits for the disk,
runs on a thread of its own. While it does, the next batch gathers. (Statements on the thread made the two fight for the
interpreter's lock at every statement; see docs/performance.md.)
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from verifier.store.prepared import READ_EVENT, WRITE_EVENT
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Unavailable

MAX_BATCH = 256
"""Bounds how long the first unit of a batch waits for the last."""
MAX_WAITING = 4096
"""Bounds memory: beyond it a write is refused at once rather than queued behind a stuck disk."""
GATHER_SECONDS = 0.003
"""Under load a batch waits so long for more units: little beside a network, and it makes one sync of many."""

T = TypeVar("T")


class Transaction:
    """What a unit writes with: SQLAlchemy for rare statements, the driver's cursor for prepared ones."""

    __slots__ = ("_event", "connection", "cursor")

    def __init__(self, connection: Connection, cursor: sqlite3.Cursor) -> None:
        self.connection = connection
        self.cursor = cursor
        self._event: int | None = None

    def next_event(self) -> int:
        """The next place in the stream, in commit order. A unit that fails leaves its place empty."""
        if self._event is None:
            self._event = int(READ_EVENT.run(self.cursor).fetchone()[0])
        self._event += 1
        return self._event

    def finish(self) -> None:
        """The counter is written, once for the batch."""
        if self._event is not None:
            WRITE_EVENT.run(self.cursor, last=self._event)
            self._event = None

    def forget(self) -> None:
        """The batch is lost, and its places with it."""
        self._event = None


@dataclass(slots=True)
class _Waiting(Generic[T]):
    unit: Callable[[Transaction], T]
    future: asyncio.Future[T]
    savepoint: bool
    outcome: T | None = None
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class _Batch:
    loop: asyncio.AbstractEventLoop
    units: list[_Waiting[Any]]


class GroupWriter:
    """The only writer of this process; it belongs to one event loop at a time."""

    def __init__(self, engine: Engine, on_commit: Callable[[], None]) -> None:
        self._connection = engine.connect()
        driver = self._connection.connection.driver_connection
        if not isinstance(driver, sqlite3.Connection):
            raise TypeError("this writer drives SQLite only")
        self._transaction = Transaction(self._connection, driver.cursor())
        self._on_commit = on_commit
        self._waiting: deque[_Waiting[Any]] = deque()
        self._busy = False
        self._loaded = False
        self._closed = False
        self._commits: queue.SimpleQueue[_Batch | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._commit_batches, name="store-commit", daemon=True)
        self._thread.start()

    async def write(self, unit: Callable[[Transaction], T], *, savepoint: bool = True) -> T:
        """What `unit` returned, after its changes are durable.

        Without `savepoint`, a unit that fails after its first change loses the batch.

        Raises what `unit` raised (its changes are undone), or Unavailable `store-unavailable`.
        """
        if self._closed or len(self._waiting) >= MAX_WAITING:
            raise Unavailable(ReasonCode.STORE_UNAVAILABLE, "store", "too many writes are waiting")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._waiting.append(_Waiting(unit, future, savepoint))
        if not self._busy:
            self._busy = True
            self._schedule(loop)
        return await future

    def close(self) -> None:
        """What was committed is durable; the thread has ended and the connection is closed."""
        if not self._closed:
            self._closed = True
            self._commits.put(None)
            self._thread.join()
            self._transaction.cursor.close()
            self._connection.close()

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loaded:
            loop.call_later(GATHER_SECONDS, self._run_batch, loop)
        else:
            loop.call_soon(self._run_batch, loop)

    def _run_batch(self, loop: asyncio.AbstractEventLoop) -> None:
        """On the event loop: the statements of one batch; its COMMIT goes to the thread."""
        batch = _Batch(loop, [self._waiting.popleft() for _ in range(min(MAX_BATCH, len(self._waiting)))])
        self._loaded = len(batch.units) > 1
        cursor = self._transaction.cursor
        try:
            cursor.execute("BEGIN IMMEDIATE")
            for waiting in batch.units:
                if waiting.savepoint:
                    self._run_unit(waiting)
                else:
                    self._run_bare_unit(waiting)
            self._transaction.finish()
        except Exception as error:  # noqa: BLE001 - the batch is lost: each caller must hear of it, and deny
            self._lose(batch, error)
            self._resolve(batch)
            return
        self._commits.put(batch)

    def _run_unit(self, waiting: _Waiting[Any]) -> None:
        cursor = self._transaction.cursor
        cursor.execute("SAVEPOINT unit")
        try:
            waiting.outcome = waiting.unit(self._transaction)
        except Exception as error:  # noqa: BLE001 - every failure belongs to the unit's caller, who denies
            cursor.execute("ROLLBACK TO unit")
            waiting.error = _store_error(error)
        cursor.execute("RELEASE unit")

    def _run_bare_unit(self, waiting: _Waiting[Any]) -> None:
        connection = self._transaction.cursor.connection
        changes = connection.total_changes
        try:
            waiting.outcome = waiting.unit(self._transaction)
        except Exception as error:
            if connection.total_changes != changes:
                raise
            waiting.error = _store_error(error)

    def _commit_batches(self) -> None:
        """On the thread: waits for the disk, with the interpreter's lock released."""
        while (batch := self._commits.get()) is not None:
            try:
                self._transaction.cursor.execute("COMMIT")
            except Exception as error:  # noqa: BLE001 - as in _run_batch
                self._lose(batch, error)
            if not batch.loop.is_closed():
                batch.loop.call_soon_threadsafe(self._resolve, batch)

    def _lose(self, batch: _Batch, error: Exception) -> None:
        self._transaction.forget()
        try:
            if self._transaction.cursor.connection.in_transaction:
                self._transaction.cursor.execute("ROLLBACK")
        except sqlite3.Error as second:
            # The next batch fails at its BEGIN, and says so; callers of this one must not wait for that.
            second.__context__ = error
            error = second
        for waiting in batch.units:
            waiting.error = waiting.error or _store_error(error)

    def _resolve(self, batch: _Batch) -> None:
        """On the event loop: every caller of the batch resumes, and the next batch begins."""
        for waiting in batch.units:
            if waiting.future.cancelled():
                continue
            if waiting.error is None:
                waiting.future.set_result(waiting.outcome)
            else:
                waiting.future.set_exception(waiting.error)
        self._on_commit()
        if self._waiting:
            self._schedule(batch.loop)
        else:
            self._busy = False


def _store_error(error: Exception) -> Exception:
    """Driver errors as `store-unavailable`: their text may quote values, so it goes no further."""
    if isinstance(error, sqlite3.Error | SQLAlchemyError):
        unavailable = Unavailable(ReasonCode.STORE_UNAVAILABLE, "store", type(error).__name__)
        unavailable.__cause__ = error
        return unavailable
    return error
