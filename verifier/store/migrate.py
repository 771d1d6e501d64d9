"""Making and opening the database: its file is the owner's only, and its schema is ours or is refused."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, event, insert, inspect, select, update

from verifier.store.schema import COUNTERS, METADATA, SCHEMA, SCHEMA_VERSION
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Rejection, Unavailable


def open_engine(path: Path) -> Engine:
    """An engine on the SQLite file at `path`, made with mode 0600 when absent.

    Raises Rejection `file-mode-unsafe`, Unavailable `store-unavailable`.

    WAL, so that readers never wait for the writer; synchronous=FULL, so that a commit survives a power cut.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise Unavailable(ReasonCode.STORE_UNAVAILABLE, str(path), error.strerror) from error
    if mode & 0o077:
        # Who can write it can make any TPM a node.
        raise Rejection(ReasonCode.FILE_MODE_UNSAFE, str(path), f"{mode:04o}", "0600")
    engine = create_engine(
        f"sqlite:///{path}", isolation_level="AUTOCOMMIT", connect_args={"timeout": 5, "check_same_thread": False}
    )

    @event.listens_for(engine, "connect")
    def _configure(connection: Any, _record: Any) -> None:
        for pragma in (
            "journal_mode=WAL",
            "synchronous=FULL",
            "foreign_keys=ON",
            "cache_size=-65536",
            "mmap_size=268435456",
            "wal_autocheckpoint=4000",
        ):
            connection.execute(f"PRAGMA {pragma}")

    return engine


def migrate(engine: Engine, now_ms: int) -> int:
    """The schema is at `SCHEMA_VERSION`; the answer is the version it had (0 for a new database).

    Places in the stream go on at `now_ms` at least: a database restored from a backup never gives one out twice, so a
    consumer that resumes misses nothing.

    Raises Rejection `schema-newer` when the database was written by a later release.
    """
    found = stored_version(engine)
    if found > SCHEMA_VERSION:
        raise Rejection(ReasonCode.SCHEMA_NEWER, "database", str(found), f"at most {SCHEMA_VERSION}")
    with engine.connect() as connection:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        if found == 0:
            METADATA.create_all(connection)
            connection.execute(insert(SCHEMA).values(version=SCHEMA_VERSION, migrated_at_ms=now_ms))
            connection.execute(insert(COUNTERS).values(name="event", value=now_ms))
        behind = (COUNTERS.c.name == "event") & (COUNTERS.c.value < now_ms)
        connection.execute(update(COUNTERS).where(behind).values(value=now_ms))
        connection.exec_driver_sql("COMMIT")
    return found


def stored_version(engine: Engine) -> int:
    """The database's schema version; 0 when it has none."""
    with engine.connect() as connection:
        if not inspect(connection).has_table(SCHEMA.name):
            return 0
        version = connection.execute(select(SCHEMA.c.version).order_by(SCHEMA.c.version.desc()).limit(1)).scalar()
    if version is None:
        return 0
    return int(version)
