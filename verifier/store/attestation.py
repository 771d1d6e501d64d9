"""The units of the hot path: an accepted bundle, a failed try, a new challenge."""

from __future__ import annotations

import hashlib
import sqlite3

from pydantic_core import to_json
from sqlalchemy import delete, insert, select

from verifier.appraisal.context import IssuedChallenge
from verifier.store.ports import AttestationCommit, AuditEntry, NonceState, SequenceMoved
from verifier.store.prepared import (
    ADD_AUDIT,
    ADD_CHALLENGE,
    COUNT_NEXT_TRY,
    COUNT_TRY,
    LIVE_CHALLENGES,
    STORE_RESULT,
    STORE_RESULT_AND_NEXT,
    USE_NONCE,
    USE_REQUEST,
)
from verifier.store.schema import BOOT_LOGS, CHALLENGES
from verifier.store.writer import Transaction
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Rejection

MAX_LIVE_CHALLENGES = 8
"""A node runs one attester, and perhaps a person's `once` beside it; more is a fault or an attack on the table."""
MAX_USED_NONCES = 8
"""So many nonces of answers are still known as used, later they are unknown: more than a node uses in one's life."""
_SHA256_BYTES = 32


def commit_attestation(transaction: Transaction, commit: AttestationCommit) -> None:
    """Nonce used, result stored, audit row written, next challenge issued; all in the caller's unit.

    Where the nonce is in the node's row, one statement does all but the audit row, and nothing but a fault of the
    database can undo it: that unit needs no savepoint. Raises Rejection `nonce-used` when another bundle took the nonce
    first, `SequenceMoved` when the node's result is no longer the one that the appraisal started from (revoked,
    enrolled anew, or attested meanwhile).
    """
    cursor, nonce = transaction.cursor, commit.nonce
    if not nonce.in_row and USE_NONCE.run(cursor, nonce=nonce.nonce_sha256, now=commit.used_at).rowcount != 1:
        raise Rejection(ReasonCode.NONCE_USED, "bundle.nonce")
    result = commit.result
    values = {
        "node": nonce.node_id,
        "expected": nonce.moved,
        "sequence": result.sequence,
        "number": transaction.next_event(),
        "tier": result.verdict,
        "issued": result.issued_at,
        "expires": result.expires_at,
        "jwt": result.token,
        "why": result.explanation,
        "uid": result.kubernetes_node_uid,
        "reset": commit.last_seen.reset_count,
        "restart": commit.last_seen.restart_count,
        "clock": commit.last_seen.clock_ms,
        "boot_log": commit.boot_log_sha256,
    }
    if nonce.row_is_free(commit.used_at):
        following = commit.next_challenge
        values["row_nonce"] = nonce.row_nonce_sha256
        values["next_nonce"] = hashlib.sha256(following.nonce).digest()
        values["next_issued"] = following.issued_at
        values["next_expires"] = following.expires_at
        values["bank"] = following.pcr_bank
        values["pcr_list"] = _pcr_list(following.pcrs)
        values["wants_token"] = int(following.node_token)
        values["used"] = used_after(nonce)
        stored = STORE_RESULT_AND_NEXT.run(cursor, **values)
    else:
        stored = STORE_RESULT.run(cursor, **values)
    if stored.rowcount != 1:
        raise SequenceMoved
    if not nonce.row_is_free(commit.used_at):
        _insert_challenge(cursor, commit.next_challenge)
    if commit.new_boot_log is not None and commit.boot_log_sha256 is not None:
        _keep_boot_log(transaction, commit.boot_log_sha256, commit.new_boot_log)
    write_audit(transaction, commit.audit)


def used_after(nonce: NonceState) -> bytes:
    """The node's used nonces once `nonce` is used up; one that was asked for is marked in its own table instead."""
    if not nonce.in_row:
        return nonce.used_nonces
    return (nonce.nonce_sha256 + nonce.used_nonces)[: MAX_USED_NONCES * _SHA256_BYTES]


def is_among(nonce_sha256: bytes, used: bytes) -> bool:
    """Whether the digest is one of those in `used_nonces`."""
    return any(used[at : at + _SHA256_BYTES] == nonce_sha256 for at in range(0, len(used), _SHA256_BYTES))


def _keep_boot_log(transaction: Transaction, sha256: bytes, log: bytes) -> None:
    known = transaction.connection.execute(select(BOOT_LOGS.c.sha256).where(BOOT_LOGS.c.sha256 == sha256)).first()
    if known is None:
        transaction.connection.execute(insert(BOOT_LOGS).values(sha256=sha256, log=log))


def count_try(transaction: Transaction, nonce: NonceState, audit: AuditEntry) -> None:
    """One more failed bundle is counted against this nonce, and audited."""
    if nonce.in_row:
        COUNT_NEXT_TRY.run(transaction.cursor, node=nonce.node_id, nonce=nonce.nonce_sha256)
    else:
        COUNT_TRY.run(transaction.cursor, nonce=nonce.nonce_sha256)
    write_audit(transaction, audit)


def add_challenge(transaction: Transaction, challenge: IssuedChallenge, jti: str, jti_expires_at: int) -> None:
    """The challenge is live, the request that asked for it is used, and no more than `MAX_LIVE_CHALLENGES` wait.

    The oldest make room: only the node itself can ask, so it takes them from nobody else. Raises Rejection
    `request-replayed`.
    """
    use_request(transaction, challenge.node_id, jti, jti_expires_at)
    cursor = transaction.cursor
    live = LIVE_CHALLENGES.run(cursor, node=challenge.node_id, now=challenge.issued_at).fetchone()[0]
    if live >= MAX_LIVE_CHALLENGES:
        _drop_oldest(transaction, challenge.node_id, live + 1 - MAX_LIVE_CHALLENGES)
    _insert_challenge(cursor, challenge)


def _drop_oldest(transaction: Transaction, node_id: str, count: int) -> None:
    unused = (CHALLENGES.c.node_id == node_id) & CHALLENGES.c.used_at.is_(None)
    oldest = select(CHALLENGES.c.nonce_sha256).where(unused).order_by(CHALLENGES.c.expires_at).limit(count)
    transaction.connection.execute(delete(CHALLENGES).where(CHALLENGES.c.nonce_sha256.in_(oldest)))


def use_request(transaction: Transaction, node_id: str, jti: str, expires_at: int) -> None:
    """The signed request `jti` of this node is used up. Raises Rejection `request-replayed`."""
    try:
        USE_REQUEST.run(transaction.cursor, node=node_id, request=jti, expires=expires_at)
    except sqlite3.IntegrityError as error:
        raise Rejection(ReasonCode.REQUEST_REPLAYED, "request.jti") from error


def _insert_challenge(cursor: sqlite3.Cursor, challenge: IssuedChallenge) -> None:
    ADD_CHALLENGE.run(
        cursor,
        nonce=hashlib.sha256(challenge.nonce).digest(),
        node=challenge.node_id,
        issued=challenge.issued_at,
        expires=challenge.expires_at,
        bank=challenge.pcr_bank,
        pcr_list=_pcr_list(challenge.pcrs),
        wants_token=int(challenge.node_token),
        no_tries=0,
        unused=None,
    )


def _pcr_list(pcrs: tuple[int, ...]) -> str:
    return ",".join(map(str, pcrs))


def write_audit(transaction: Transaction, entry: AuditEntry) -> None:
    """The entry is an audit row of this unit; the chainer signs it within a second of the commit."""
    record = {
        "at_ms": entry.at_ms,
        "kind": entry.kind,
        "actor": entry.actor,
        "request_id": entry.request_id,
        "node_id": entry.node_id,
        "node_name": entry.node_name,
        "detail": entry.detail,
    }
    ADD_AUDIT.run(transaction.cursor, text=to_json(record).decode())
