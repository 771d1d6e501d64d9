"""Statements of the hot path: written once in SQLAlchemy Core, compiled once, run on the driver's cursor.

Core's execution layer costs about forty microseconds a statement, more than SQLite itself; see docs/performance.md.
"""

from __future__ import annotations

import sqlite3
from typing import Any

from sqlalchemy import ColumnElement, Executable, bindparam, func, insert, literal_column, select, update
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.sql.expression import ClauseElement

from verifier.store.schema import AUDIT, CHALLENGES, COUNTERS, NODES, REQUESTS, RESULTS

_DIALECT = SQLiteDialect_pysqlite(paramstyle="qmark")


class Prepared:
    """One compiled statement; `run` takes exactly its parameters by name."""

    __slots__ = ("_names", "_text")

    def __init__(self, statement: Executable) -> None:
        if not isinstance(statement, ClauseElement):
            raise TypeError("not a statement")
        compiled = statement.compile(dialect=_DIALECT)
        self._text = str(compiled)
        self._names: tuple[str, ...] = tuple(getattr(compiled, "positiontup", None) or ())

    def run(self, cursor: sqlite3.Cursor, **values: Any) -> sqlite3.Cursor:
        """The cursor after the statement ran. Raises KeyError when a parameter is missing."""
        return cursor.execute(self._text, [values[name] for name in self._names])


_b = bindparam
_ONE: ColumnElement[int] = literal_column("1")
"""Literal, so that a statement has no parameters but those that its caller names."""

_OF_NODE = (
    NODES.c.version,
    NODES.c.state,
    RESULTS.c.seq,
    RESULTS.c.moved,
    RESULTS.c.reset_count,
    RESULTS.c.restart_count,
    RESULTS.c.clock_ms,
    RESULTS.c.boot_log_sha256,
    RESULTS.c.next_nonce_sha256,
    RESULTS.c.next_expires_at,
    RESULTS.c.used_nonces,
)

FIND_NONCE = Prepared(
    select(
        CHALLENGES.c.node_id,
        CHALLENGES.c.issued_at,
        CHALLENGES.c.expires_at,
        CHALLENGES.c.pcr_bank,
        CHALLENGES.c.pcrs,
        CHALLENGES.c.node_token,
        CHALLENGES.c.tries,
        CHALLENGES.c.used_at,
        *_OF_NODE,
    )
    .select_from(CHALLENGES.join(NODES, NODES.c.node_id == CHALLENGES.c.node_id))
    .join(RESULTS, RESULTS.c.node_id == CHALLENGES.c.node_id)
    .where(CHALLENGES.c.nonce_sha256 == _b("nonce"))
)

FIND_NEXT_NONCE = Prepared(
    select(
        RESULTS.c.node_id,
        RESULTS.c.next_issued_at,
        RESULTS.c.next_expires_at,
        RESULTS.c.next_pcr_bank,
        RESULTS.c.next_pcrs,
        RESULTS.c.next_node_token,
        RESULTS.c.next_tries,
        literal_column("NULL"),
        *_OF_NODE,
    )
    .select_from(RESULTS.join(NODES, NODES.c.node_id == RESULTS.c.node_id))
    .where(RESULTS.c.node_id == _b("node"), RESULTS.c.next_nonce_sha256 == _b("nonce"))
)

USED_NONCES = Prepared(select(RESULTS.c.used_nonces).where(RESULTS.c.node_id == _b("node")))

USE_NONCE = Prepared(
    update(CHALLENGES)
    .where(CHALLENGES.c.nonce_sha256 == _b("nonce"), CHALLENGES.c.used_at.is_(None))
    .values(used_at=_b("now"))
)

COUNT_TRY = Prepared(
    update(CHALLENGES).where(CHALLENGES.c.nonce_sha256 == _b("nonce")).values(tries=CHALLENGES.c.tries + _ONE)
)

COUNT_NEXT_TRY = Prepared(
    update(RESULTS)
    .where(RESULTS.c.node_id == _b("node"), RESULTS.c.next_nonce_sha256 == _b("nonce"))
    .values(next_tries=RESULTS.c.next_tries + _ONE)
)

ADD_CHALLENGE = Prepared(
    insert(CHALLENGES).values(
        nonce_sha256=_b("nonce"),
        node_id=_b("node"),
        issued_at=_b("issued"),
        expires_at=_b("expires"),
        pcr_bank=_b("bank"),
        pcrs=_b("pcr_list"),
        node_token=_b("wants_token"),
        tries=_b("no_tries"),
        used_at=_b("unused"),
    )
)

READ_EVENT = Prepared(select(COUNTERS.c.value).where(COUNTERS.c.name == literal_column("'event'")))

WRITE_EVENT = Prepared(update(COUNTERS).where(COUNTERS.c.name == literal_column("'event'")).values(value=_b("last")))

_RESULT = {
    "moved": RESULTS.c.moved + _ONE,
    "seq": _b("sequence"),
    "event": _b("number"),
    "verdict": _b("tier"),
    "issued_at": _b("issued"),
    "expires_at": _b("expires"),
    "token": _b("jwt"),
    "explanation": _b("why"),
    "kubernetes_node_uid": _b("uid"),
    "reset_count": _b("reset"),
    "restart_count": _b("restart"),
    "clock_ms": _b("clock"),
    "boot_log_sha256": _b("boot_log"),
}
_SAME_STATE = (RESULTS.c.node_id == _b("node"), RESULTS.c.moved == _b("expected"))

STORE_RESULT = Prepared(update(RESULTS).where(*_SAME_STATE).values(_RESULT))

STORE_RESULT_AND_NEXT = Prepared(
    # The nonce too, though `moved` rises whenever it changes: that a nonce is good once rests on this line.
    update(RESULTS)
    .where(*_SAME_STATE, RESULTS.c.next_nonce_sha256.is_not_distinct_from(_b("row_nonce")))
    .values(
        _RESULT
        | {
            "next_nonce_sha256": _b("next_nonce"),
            "next_issued_at": _b("next_issued"),
            "next_expires_at": _b("next_expires"),
            "next_pcr_bank": _b("bank"),
            "next_pcrs": _b("pcr_list"),
            "next_node_token": _b("wants_token"),
            "next_tries": literal_column("0"),
            "used_nonces": _b("used"),
        }
    )
)

ADD_AUDIT = Prepared(insert(AUDIT).values(record=_b("text")))

USE_REQUEST = Prepared(insert(REQUESTS).values(node_id=_b("node"), jti=_b("request"), expires_at=_b("expires")))

KNOWN_BOOT_LOG = Prepared(select(RESULTS.c.boot_log_sha256).where(RESULTS.c.node_id == _b("node")))

LIVE_CHALLENGES = Prepared(
    select(func.count())
    .select_from(CHALLENGES)
    .where(CHALLENGES.c.node_id == _b("node"), CHALLENGES.c.used_at.is_(None), CHALLENGES.c.expires_at > _b("now"))
)
