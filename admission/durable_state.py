"""What admission must remember across restarts, in one SQLite file: sequences seen, requests used, leases.

Every write is durable when the call returns (synchronous FULL), and one lock makes each method one atomic step for all
threads of the process. Never holds the content of a secret, a token or a result.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from edges.private_files import create_private, is_there, require_private
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Rejection, Unavailable

SCHEMA_VERSION = 1
_SCHEMA = """
CREATE TABLE sequences (node TEXT PRIMARY KEY, sequence INTEGER NOT NULL, digest TEXT NOT NULL) STRICT;
CREATE TABLE used_requests (node_id TEXT NOT NULL, jti TEXT NOT NULL, forget_at INTEGER NOT NULL,
  PRIMARY KEY (node_id, jti)) STRICT;
CREATE INDEX used_requests_forget_at ON used_requests (forget_at);
CREATE TABLE leases (key TEXT PRIMARY KEY, lease_id TEXT NOT NULL UNIQUE, secret TEXT NOT NULL, pod_uid TEXT NOT NULL,
  pod TEXT NOT NULL, node_uid TEXT NOT NULL, node TEXT NOT NULL, boot_id TEXT NOT NULL, key_sha256 TEXT NOT NULL,
  evidence_sha256 TEXT, created_at INTEGER NOT NULL, expires_at INTEGER NOT NULL) STRICT;
CREATE INDEX leases_expires_at ON leases (expires_at);
"""


class DurableState:
    """One open file; `path` is created 0600, and a looser one is refused.

    Raises Rejection `file-mode-unsafe`, Unavailable `file-unreadable`, `store-unavailable` (no SQLite file, or of a
    newer version).
    """

    def __init__(self, path: Path) -> None:
        if not is_there(path):
            create_private(path, b"")
        require_private(path)
        self._lock = threading.Lock()
        try:
            self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=10)
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("PRAGMA synchronous=FULL")
        except sqlite3.Error as error:
            raise Unavailable(ReasonCode.STORE_UNAVAILABLE, str(path), type(error).__name__, "a state file") from error
        with self.transaction() as connection:
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version == 0:
                for statement in _SCHEMA.split(";"):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
            elif version != SCHEMA_VERSION:
                raise Unavailable(ReasonCode.STORE_UNAVAILABLE, str(path), f"schema {version}", f"{SCHEMA_VERSION}")

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """One exclusive transaction, committed on a normal end; after any other there is none open.

        Raises Unavailable `store-unavailable`, also for a value that SQLite cannot hold.
        """
        with self._lock:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                try:
                    yield self._connection
                    self._connection.execute("COMMIT")
                finally:
                    # Also after a COMMIT that failed: an open transaction would fail every later BEGIN.
                    if self._connection.in_transaction:
                        with suppress(sqlite3.Error):
                            self._connection.execute("ROLLBACK")
            except (sqlite3.Error, OverflowError) as error:
                raise Unavailable(ReasonCode.STORE_UNAVAILABLE, "state", type(error).__name__) from error

    def close(self) -> None:
        with self._lock:
            self._connection.close()


class DurableSequences:
    """A `SequenceMemory` that survives restarts, so that a restart is no way back to an older result."""

    def __init__(self, state: DurableState) -> None:
        self._state = state

    def highest(self, node: str) -> tuple[int, str] | None:
        with self._state.transaction() as connection:
            row = connection.execute("SELECT sequence, digest FROM sequences WHERE node = ?", (node,)).fetchone()
        return None if row is None else (row[0], row[1])

    def remember(self, nodes: tuple[str, ...], sequence: int, digest: str) -> None:
        with self._state.transaction() as connection:
            connection.executemany(
                "INSERT INTO sequences VALUES (?, ?, ?) ON CONFLICT (node) DO UPDATE SET sequence = excluded.sequence, "
                "digest = excluded.digest WHERE excluded.sequence > sequence",
                [(node, sequence, digest) for node in nodes],
            )


class UsedRequests:
    """A `RequestMemory` that survives restarts, so that a restart is no way to send a request again."""

    def __init__(self, state: DurableState) -> None:
        self._state = state

    def use(self, node_id: str, jti: str, now: int, forget_at: int) -> None:
        """The request counts as used. Raises Rejection `request-replayed`, Unavailable `store-unavailable`."""
        with self._state.transaction() as connection:
            connection.execute("DELETE FROM used_requests WHERE forget_at < ?", (now,))
            added = connection.execute(
                "INSERT INTO used_requests VALUES (?, ?, ?) ON CONFLICT DO NOTHING", (node_id, jti, forget_at)
            ).rowcount
        if added == 0:
            raise Rejection(ReasonCode.REQUEST_REPLAYED, "request.jti", "used before")
