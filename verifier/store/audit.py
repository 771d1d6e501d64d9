"""The audit chain: rows in commit order, each folded into one running digest, whose head is signed.

head(0) = 32 zero bytes; head(n) = SHA-256(head(n-1) || i64 id || record). Only heads are stored: the rows between two
heads recompute them, so nothing is gained by changing a row and its digest together.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable

from sqlalchemy import insert, select

from verifier.store.ports import AuditHead, AuditRow
from verifier.store.schema import AUDIT, AUDIT_HEADS
from verifier.store.writer import Transaction

START = "00" * 32
MAX_ROWS_PER_HEAD = 5000
"""Bounds how long one round of the chainer holds the writer."""


def extend(head: str, rows: Iterable[AuditRow]) -> str:
    """The chain's head (hex) after `rows` follow `head`."""
    digest = bytes.fromhex(head)
    for row in rows:
        digest = hashlib.sha256(digest + row.id.to_bytes(8, "big", signed=True) + row.record.encode()).digest()
    return digest.hex()


def chain_audit(transaction: Transaction, sign: Callable[[int, int, str], AuditHead]) -> AuditHead | None:
    """The new head over the rows since the last one, signed by `sign(last_id, rows, head)`; None without new rows."""
    connection = transaction.connection
    last = connection.execute(select(AUDIT_HEADS).order_by(AUDIT_HEADS.c.last_id.desc()).limit(1)).mappings().first()
    last_id, count, chain = (0, 0, START) if last is None else (last["last_id"], last["rows"], last["chain_sha256"])
    found = connection.execute(
        select(AUDIT.c.id, AUDIT.c.record).where(AUDIT.c.id > last_id).order_by(AUDIT.c.id).limit(MAX_ROWS_PER_HEAD)
    ).all()
    if not found:
        return None
    rows = [AuditRow(row[0], row[1]) for row in found]
    head = sign(rows[-1].id, count + len(rows), extend(chain, rows))
    connection.execute(
        insert(AUDIT_HEADS).values(
            last_id=head.last_id, rows=head.rows, chain_sha256=head.chain_sha256, at_ms=head.at_ms, token=head.token
        )
    )
    return head
