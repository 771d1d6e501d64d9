"""The audit log for those who check it: read-only, so that checking a log can neither make nor change one."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import create_engine, select
from sqlalchemy.exc import SQLAlchemyError

from verifier.store.migrate import stored_version
from verifier.store.ports import AuditHead, AuditRow
from verifier.store.schema import AUDIT, AUDIT_HEADS, SCHEMA_VERSION
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Rejection, Unavailable


class AuditReader:
    """Rows and heads of the audit log in one SQLite file; close it.

    Raises Unavailable `store-unavailable` when there is no such file or it is no database of ours, Rejection
    `schema-newer`. Nothing is created: a log that was deleted must not be proved as an empty one.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise Unavailable(ReasonCode.STORE_UNAVAILABLE, str(path), "no such file", "the verifier's database")

        def connect() -> Any:
            return sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=5)

        self._engine = create_engine("sqlite://", creator=connect)
        try:
            version = stored_version(self._engine)
            self._connection = self._engine.connect()
        except SQLAlchemyError as error:
            raise Unavailable(ReasonCode.STORE_UNAVAILABLE, str(path), type(error).__name__) from error
        if version > SCHEMA_VERSION:
            raise Rejection(ReasonCode.SCHEMA_NEWER, str(path), str(version), f"at most {SCHEMA_VERSION}")
        if version == 0:
            raise Unavailable(ReasonCode.STORE_UNAVAILABLE, str(path), "no schema", "the verifier's database")

    def close(self) -> None:
        """No connection is left open."""
        self._connection.close()
        self._engine.dispose()

    def audit_after(self, row_id: int, limit: int) -> list[AuditRow]:
        """Committed audit rows after `row_id`."""
        found = self._connection.execute(
            select(AUDIT.c.id, AUDIT.c.record).where(AUDIT.c.id > row_id).order_by(AUDIT.c.id).limit(limit)
        )
        return [AuditRow(row[0], row[1]) for row in found]

    def audit_heads(self) -> list[AuditHead]:
        """All signed heads of the audit chain, oldest first."""
        rows = self._connection.execute(select(AUDIT_HEADS).order_by(AUDIT_HEADS.c.last_id)).mappings()
        return [AuditHead(row["last_id"], row["rows"], row["chain_sha256"], row["at_ms"], row["token"]) for row in rows]
