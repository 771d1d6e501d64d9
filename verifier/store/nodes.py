"""The units that change who a node is: enrolment, and the acts of people.

Whoever loses trust here loses it with a signed result of a higher sequence number, in the same unit.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import replace as changed
from typing import Literal

from sqlalchemy import Connection, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from verifier.store.attestation import write_audit
from verifier.store.inventory import moved, same_machine, set_single_ek
from verifier.store.ports import (
    AuditEntry,
    InventoryEk,
    NodeRecord,
    PendingEnrolment,
    SignVoid,
)
from verifier.store.rows import endorsement, node_columns, node_record
from verifier.store.schema import CHALLENGES, ENROLMENTS, INVENTORY, NODES, RESULTS
from verifier.store.writer import Transaction
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Rejection

MAX_PENDING = 1024
"""Enrolment is open to anyone: the table of started ones is bounded, oldest out first."""


def begin_enrolment(transaction: Transaction, pending: PendingEnrolment, now: int, audit: AuditEntry) -> None:
    """The enrolment waits for its activation.

    Raises Rejection `node-name-conflict` or `ek-conflict`; they are checked again at activation, where they count.
    """
    connection = transaction.connection
    require_no_conflict(connection, pending.node)
    connection.execute(delete(ENROLMENTS).where(ENROLMENTS.c.expires_at < now - 600))
    newest = select(ENROLMENTS.c.enrolment_sha256).order_by(ENROLMENTS.c.expires_at.desc()).limit(MAX_PENDING)
    connection.execute(delete(ENROLMENTS).where(ENROLMENTS.c.enrolment_sha256.not_in(newest)))
    connection.execute(
        insert(ENROLMENTS).values(
            enrolment_sha256=pending.enrolment_sha256,
            secret_sha256=pending.secret_sha256,
            expires_at=pending.expires_at,
            admitted=int(pending.node.state == "admitted"),
            **node_columns(pending.node),
        )
    )
    write_audit(transaction, audit)


def activate(
    transaction: Transaction, enrolment_sha256: bytes, secret: bytes, now: int, void: SignVoid, audit: AuditEntry
) -> NodeRecord | Rejection:
    """The enrolled node; or why not, as a value, where the try must stay used up.

    One try, whatever its outcome (CVE-2023-38201): codes `enrolment-unknown`, `enrolment-used`, `enrolment-expired`,
    `credential-mismatch`, `node-name-conflict`, `ek-conflict`. A new AK for a known EK and name replaces the old one
    and voids the node's result and last-seen counters.
    """
    connection = transaction.connection
    row = (
        connection.execute(select(ENROLMENTS).where(ENROLMENTS.c.enrolment_sha256 == enrolment_sha256))
        .mappings()
        .first()
    )
    if row is None:
        return Rejection(ReasonCode.ENROLMENT_UNKNOWN, "enrolment")
    if row["used_at"] is not None:
        return Rejection(ReasonCode.ENROLMENT_USED, "enrolment")
    connection.execute(update(ENROLMENTS).where(ENROLMENTS.c.enrolment_sha256 == enrolment_sha256).values(used_at=now))
    node = NodeRecord(
        node_id=row["node_id"],
        node_name=row["node_name"],
        tenant=row["tenant"],
        cohort=row["cohort"],
        ek_public=row["ek_public"],
        ak_public=row["ak_public"],
        endorsement=endorsement(row),
        admission=row["admission"],
        state="admitted" if row["admitted"] else "pending",
        kubernetes_node_uid=row["kubernetes_node_uid"],
        enrolled_at=now,
        version=1,
    )
    audit = changed(audit, node_id=node.node_id, node_name=node.node_name)
    refusal = _activation_refusal(connection, row["expires_at"], row["secret_sha256"], secret, now, node)
    if refusal is not None:
        write_audit(transaction, changed(audit, kind="enrolment-refused", detail={"code": refusal.code.value}))
        return refusal
    _store_node(transaction, node, void)
    write_audit(transaction, audit)
    stored = _node(connection, node.node_id)
    if stored is None:
        raise TypeError("the node just stored is not there")
    return stored


def _activation_refusal(
    connection: Connection, expires_at: int, secret_sha256: bytes, secret: bytes, now: int, node: NodeRecord
) -> Rejection | None:
    if now >= expires_at:
        return Rejection(ReasonCode.ENROLMENT_EXPIRED, "enrolment")
    if not hmac.compare_digest(hashlib.sha256(secret).digest(), secret_sha256):
        return Rejection(ReasonCode.CREDENTIAL_MISMATCH, "activation.secret")
    try:
        require_no_conflict(connection, node)
    except Rejection as rejection:
        return rejection
    return None


def require_no_conflict(connection: Connection, node: NodeRecord) -> None:
    """Neither the name belongs to another TPM, nor the TPM to another name: a person settles that, never an overwrite.

    Raises Rejection `node-name-conflict`, `ek-conflict` (CVE-2025-13609), `node-revoked`.
    """
    same_tpm = _node(connection, node.node_id)
    if same_tpm is not None and same_tpm.node_name != node.node_name:
        raise Rejection(ReasonCode.EK_CONFLICT, "enrolment.node_name", node.node_name, same_tpm.node_name)
    if same_tpm is not None and same_tpm.state == "revoked":
        # Attack: a revoked node that enrols again with a new AK to be admitted again.
        raise Rejection(ReasonCode.NODE_REVOKED, "node", node.node_name)
    row = connection.execute(select(NODES).where(NODES.c.node_name == node.node_name)).mappings().first()
    if row is not None and row["node_id"] != node.node_id:
        if same_machine(connection, node.node_name, (row["node_id"], node.node_id)):
            raise Rejection(ReasonCode.EK_CONFLICT, "enrolment.ek_public", node.node_id, row["node_id"])
        raise Rejection(ReasonCode.NODE_NAME_CONFLICT, "enrolment.node_name", node.node_name)


def _store_node(transaction: Transaction, node: NodeRecord, void: SignVoid) -> None:
    connection = transaction.connection
    columns = node_columns(node) | {"state": node.state, "enrolled_at": node.enrolled_at}
    previous = _node(connection, node.node_id)
    try:
        if previous is None:
            connection.execute(insert(NODES).values(version=1, **columns))
        else:
            connection.execute(
                update(NODES).where(NODES.c.node_id == node.node_id).values(version=NODES.c.version + 1, **columns)
            )
    except IntegrityError as error:
        raise Rejection(ReasonCode.NODE_NAME_CONFLICT, "enrolment.node_name", node.node_name) from error
    _void(transaction, node, void)
    # What the former AK was asked is not for the new one to answer.
    _end_challenges(connection, node.node_id)


def _end_challenges(connection: Connection, node_id: str) -> None:
    connection.execute(delete(CHALLENGES).where(CHALLENGES.c.node_id == node_id))
    ended = {"next_nonce_sha256": None, "next_expires_at": None}
    connection.execute(update(RESULTS).where(RESULTS.c.node_id == node_id).values(ended))


def _void(transaction: Transaction, node: NodeRecord, void: SignVoid) -> None:
    """A signed end of trust replaces the node's result, if it ever had one; counters and boot log start anew."""
    connection = transaction.connection
    row = connection.execute(select(RESULTS).where(RESULTS.c.node_id == node.node_id)).mappings().first()
    fresh = {"reset_count": None, "restart_count": None, "clock_ms": None, "boot_log_sha256": None}
    if row is None:
        connection.execute(
            insert(RESULTS).values(node_id=node.node_id, node_name=node.node_name, seq=0, moved=0, event=0)
        )
        return
    result = void(node, row["seq"])
    values = {
        "node_name": node.node_name,
        "seq": result.sequence,
        "moved": row["moved"] + 1,
        "event": transaction.next_event(),
        "verdict": result.verdict,
        "issued_at": result.issued_at,
        "expires_at": result.expires_at,
        "token": result.token,
        "explanation": result.explanation,
        "kubernetes_node_uid": result.kubernetes_node_uid,
    }
    connection.execute(update(RESULTS).where(RESULTS.c.node_id == node.node_id).values(**values, **fresh))


def set_state(
    transaction: Transaction,
    node_id: str,
    state: Literal["admitted", "revoked"],
    void: SignVoid | None,
    audit: AuditEntry,
) -> NodeRecord:
    """The node is in `state`; with `void`, its result ended too. Raises Rejection `node-unknown`."""
    node = _required(transaction.connection, node_id)
    transaction.connection.execute(
        update(NODES).where(NODES.c.node_id == node_id).values(state=state, version=NODES.c.version + 1)
    )
    if void is not None:
        counters = transaction.connection.execute(
            select(RESULTS.c.reset_count, RESULTS.c.restart_count, RESULTS.c.clock_ms).where(
                RESULTS.c.node_id == node_id
            )
        ).first()
        _void(transaction, node, void)
        if counters is not None:
            # The AK stays, so what was last seen of its counters stays: a revocation must not hide a roll-back.
            transaction.connection.execute(
                update(RESULTS)
                .where(RESULTS.c.node_id == node_id)
                .values(reset_count=counters[0], restart_count=counters[1], clock_ms=counters[2])
            )
    transaction.connection.execute(moved(RESULTS.c.node_id == node_id))
    write_audit(transaction, changed(audit, node_id=node.node_id, node_name=node.node_name))
    return _required(transaction.connection, node_id)


def replace(transaction: Transaction, node_id: str, ek: InventoryEk, void: SignVoid, audit: AuditEntry) -> NodeRecord:
    """The old TPM is no node any more, and its name waits for the TPM with `ek`. Raises Rejection `node-unknown`."""
    node = _required(transaction.connection, node_id)
    _remove(transaction, node, void)
    set_single_ek(transaction.connection, node, ek)
    write_audit(transaction, changed(audit, node_id=node.node_id, node_name=node.node_name))
    return node


def forget(transaction: Transaction, node_id: str, void: SignVoid, audit: AuditEntry) -> NodeRecord:
    """Node and inventory entry are gone; its sequence number and audit rows stay. Raises Rejection `node-unknown`."""
    node = _required(transaction.connection, node_id)
    _remove(transaction, node, void)
    transaction.connection.execute(delete(INVENTORY).where(INVENTORY.c.node_name == node.node_name))
    write_audit(transaction, changed(audit, node_id=node.node_id, node_name=node.node_name))
    return node


def _remove(transaction: Transaction, node: NodeRecord, void: SignVoid) -> None:
    _void(transaction, node, void)
    _end_challenges(transaction.connection, node.node_id)
    transaction.connection.execute(delete(NODES).where(NODES.c.node_id == node.node_id))


def _node(connection: Connection, node_id: str) -> NodeRecord | None:
    row = connection.execute(select(NODES).where(NODES.c.node_id == node_id)).mappings().first()
    return None if row is None else node_record(row)


def _required(connection: Connection, node_id: str) -> NodeRecord:
    node = _node(connection, node_id)
    if node is None:
        raise Rejection(ReasonCode.NODE_UNKNOWN, "node", node_id)
    return node
