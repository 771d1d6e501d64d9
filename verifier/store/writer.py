"""Group commit: one thread writes, and concurrent units share one transaction and one sync to disk.

Guarantees: a unit is all or nothing (each runs in its own savepoint, so that one that fails takes no other with it);
its future resolves only after COMMIT returned; when COMMIT fails, every unit of the batch fails. With
synchronous=FULL a resolved future means that the change survives a power cut.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Unavailable

MAX_BATCH = 256
"""Bounds how long the first unit of a batch waits for the last."""
MAX_WAITING = 4096
"""Bounds memory: beyond it a write is refused at once rather than queued behind a stuck disk."""

T = TypeVar("T")


class Transaction:
    """What a unit writes with: SQLAlchemy for rare statements, the driver's cursor for prepared ones."""

    __slots__ = ("connection", "cursor")

    def __init__(self, connection: Connection, cursor: sqlite3.Cursor) -> None:
        self.connection = connection
        self.cursor = cursor


@dataclass(slots=True)
class _Waiting(Generic[T]):
    unit: Callable[[Transaction], T]
    future: asyncio.Future[T]
    outcome: T | None = None
    error: BaseException | None = None


class GroupWriter:
    """The only writer of this process. `write` may be called from one event loop."""

    def __init__(self, engine: Engine, on_commit: Callable[[], None]) -> None:
        self._engine = engine
        self._on_commit = on_commit
        self._queue: queue.SimpleQueue[_Waiting[Any] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._closed = False
        self._thread.start()

    async def write(self, unit: Callable[[Transaction], T]) -> T:
        """What `unit` returned, after its changes are durable.

        Raises what `unit` raised (its changes are undone), or Unavailable `store-unavailable`.
        """
        if self._closed or self._queue.qsize() >= MAX_WAITING:
            raise Unavailable(ReasonCode.STORE_UNAVAILABLE, "store", "too many writes are waiting")
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queue.put(_Waiting(unit, future))
        return await future

    def close(self) -> None:
        """Everything queued before is written; the thread has ended."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
            self._thread.join()

    def _run(self) -> None:
        with self._engine.connect() as connection:
            driver = connection.connection.driver_connection
            if not isinstance(driver, sqlite3.Connection):
                raise TypeError("this writer drives SQLite only")
            transaction = Transaction(connection, driver.cursor())
            while self._one_batch(transaction):
                pass

    def _one_batch(self, transaction: Transaction) -> bool:
        first = self._queue.get()
        batch: list[_Waiting[Any]] = []
        waiting = first
        while waiting is not None:
            batch.append(waiting)
            if len(batch) == MAX_BATCH:
                break
            try:
                waiting = self._queue.get_nowait()
            except queue.Empty:
                break
        if batch:
            self._commit(transaction, batch)
            self._resolve(batch)
        return waiting is not None

    def _commit(self, transaction: Transaction, batch: list[_Waiting[Any]]) -> None:
        cursor = transaction.cursor
        try:
            cursor.execute("BEGIN IMMEDIATE")
            for waiting in batch:
                cursor.execute("SAVEPOINT unit")
                try:
                    waiting.outcome = waiting.unit(transaction)
                except Exception as error:  # noqa: BLE001 - every failure belongs to the unit's caller, who denies
                    cursor.execute("ROLLBACK TO unit")
                    waiting.error = _store_error(error)
                cursor.execute("RELEASE unit")
            cursor.execute("COMMIT")
        except Exception as error:  # noqa: BLE001 - the batch is lost: each caller must hear of it
            if cursor.connection.in_transaction:
                cursor.execute("ROLLBACK")
            for waiting in batch:
                waiting.error = waiting.error or _store_error(error)

    def _resolve(self, batch: list[_Waiting[Any]]) -> None:
        # One wake-up of the event loop for the whole batch.
        loop = batch[0].future.get_loop()

        def resolve() -> None:
            for waiting in batch:
                if waiting.future.cancelled():
                    continue
                if waiting.error is None:
                    waiting.future.set_result(waiting.outcome)
                else:
                    waiting.future.set_exception(waiting.error)
            self._on_commit()

        if not loop.is_closed():
            loop.call_soon_threadsafe(resolve)


def _store_error(error: Exception) -> Exception:
    """Driver errors as `store-unavailable`: their text may quote values, so it goes no further."""
    if isinstance(error, sqlite3.Error | SQLAlchemyError):
        unavailable = Unavailable(ReasonCode.STORE_UNAVAILABLE, "store", type(error).__name__)
        unavailable.__cause__ = error
        return unavailable
    return error
