"""The units that change who a node is: enrolment, and the acts of people.

Whoever loses trust here loses it with a signed result of a higher sequence number, in the same unit.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import replace as changed
from typing import Literal

from sqlalchemy import ColumnElement, Connection, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from verifier.store.attestation import write_audit
from verifier.store.inventory import assigned, same_machine, set_single_ek
from verifier.store.ports import (
    AuditEntry,
    InventoryEk,
    NodeRecord,
    PendingEnrolment,
    SignVoid,
)
from verifier.store.rows import introduced_node, node_columns, node_record
from verifier.store.schema import ENROLMENTS, INVENTORY, NODES, RESULTS
from verifier.store.trust import end_challenges, end_enrolments, end_trust, moved, remove_node
from verifier.store.writer import Transaction
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Rejection

MAX_PENDING = 1024
"""Enrolment is open to anyone: started ones, and nodes that wait for a person, are bounded, oldest out first."""


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
    `credential-mismatch`, and those of `assigned` and `require_no_conflict`. A new AK for a known EK and name
    replaces the old one and voids the node's result and last-seen counters.
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
    node = introduced_node(row, "admitted" if row["admitted"] else "pending", now, 1)
    audit = changed(audit, node_id=node.node_id, node_name=node.node_name)
    try:
        _require_proof(row["expires_at"], row["secret_sha256"], secret, now)
        # The inventory as it is now: it may have changed since the enrolment began.
        node = assigned(connection, node)
        require_no_conflict(connection, node)
    except Rejection as refusal:
        write_audit(transaction, changed(audit, kind="enrolment-refused", detail={"code": refusal.code.value}))
        return refusal
    _make_room(transaction, node)
    _store_node(transaction, node, void)
    write_audit(transaction, audit)
    stored = _node(connection, node.node_id)
    if stored is None:
        raise TypeError("the node just stored is not there")
    return stored


def _require_proof(expires_at: int, secret_sha256: bytes, secret: bytes, now: int) -> None:
    if now >= expires_at:
        raise Rejection(ReasonCode.ENROLMENT_EXPIRED, "enrolment")
    if not hmac.compare_digest(hashlib.sha256(secret).digest(), secret_sha256):
        raise Rejection(ReasonCode.CREDENTIAL_MISMATCH, "activation.secret")


def _make_room(transaction: Transaction, node: NodeRecord) -> None:
    """Of nodes that wait for a person, the oldest go: strangers may enrol where a person decides."""
    if node.state == "pending":
        newest = (
            select(NODES.c.node_id)
            .where(NODES.c.state == "pending")
            .order_by(NODES.c.enrolled_at.desc())
            .limit(MAX_PENDING - 1)
        )
        _drop_pending(transaction, NODES.c.node_id.not_in(newest) & (NODES.c.node_id != node.node_id))


def drop_old_pending(transaction: Transaction, before: int) -> None:
    """Nodes that wait for a person since before then are gone, with their names, as if they had never enrolled.

    Not those that their TPM's maker vouches for: they are to be reported on, and only real TPMs can be so many.
    """
    _drop_pending(transaction, (NODES.c.enrolled_at < before) & (NODES.c.admission == "manual"))


def _drop_pending(transaction: Transaction, which: ColumnElement[bool]) -> None:
    connection = transaction.connection
    found = select(NODES.c.node_id).where(which & (NODES.c.state == "pending"))
    for node_id in connection.execute(found).scalars().all():
        # No result of such a node was ever better than `none`: there is nothing to revoke.
        end_challenges(transaction, node_id)
        connection.execute(delete(NODES).where(NODES.c.node_id == node_id))


def require_no_conflict(connection: Connection, node: NodeRecord) -> None:
    """Neither the name belongs to another TPM, nor the TPM to another name: a person settles that, never an overwrite.

    Raises Rejection `node-name-conflict`, `ek-conflict` (CVE-2025-13609), `node-revoked`.
    """
    same_tpm = _node(connection, node.node_id)
    if same_tpm is not None and same_tpm.node_name != node.node_name:
        # Not which name: whoever asks is anonymous.
        raise Rejection(ReasonCode.EK_CONFLICT, "enrolment.node_name", node.node_name)
    if same_tpm is not None and same_tpm.state == "revoked":
        # Attack: a revoked node that enrols again with a new AK to be admitted again.
        raise Rejection(ReasonCode.NODE_REVOKED, "node", node.node_name)
    row = connection.execute(select(NODES).where(NODES.c.node_name == node.node_name)).mappings().first()
    if row is not None and row["node_id"] != node.node_id:
        if same_machine(connection, node.node_name, (row["node_id"], node.node_id)):
            raise Rejection(ReasonCode.EK_CONFLICT, "enrolment.ek_public", node.node_id)
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
    end_trust(transaction, node, void, same_ak=False)
    # What the former AK was asked is not for the new one to answer.
    end_challenges(transaction, node.node_id)


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
        end_trust(transaction, node, void, same_ak=True)
    if state == "revoked":
        end_enrolments(transaction, node_id, node.node_name)
    transaction.connection.execute(moved(RESULTS.c.node_id == node_id))
    write_audit(transaction, changed(audit, node_id=node.node_id, node_name=node.node_name))
    return _required(transaction.connection, node_id)


def replace(transaction: Transaction, node_id: str, ek: InventoryEk, void: SignVoid, audit: AuditEntry) -> NodeRecord:
    """The old TPM is no node any more, and its name waits for the TPM with `ek`. Raises Rejection `node-unknown`."""
    node = _required(transaction.connection, node_id)
    remove_node(transaction, node, void)
    set_single_ek(transaction.connection, node, ek)
    write_audit(transaction, changed(audit, node_id=node.node_id, node_name=node.node_name))
    return node


def forget(transaction: Transaction, node_id: str, void: SignVoid, audit: AuditEntry) -> NodeRecord:
    """Node and inventory entry are gone; its sequence number and audit rows stay. Raises Rejection `node-unknown`."""
    node = _required(transaction.connection, node_id)
    remove_node(transaction, node, void)
    transaction.connection.execute(delete(INVENTORY).where(INVENTORY.c.node_name == node.node_name))
    write_audit(transaction, changed(audit, node_id=node.node_id, node_name=node.node_name))
    return node


def _node(connection: Connection, node_id: str) -> NodeRecord | None:
    row = connection.execute(select(NODES).where(NODES.c.node_id == node_id)).mappings().first()
    return None if row is None else node_record(row)


def _required(connection: Connection, node_id: str) -> NodeRecord:
    node = _node(connection, node_id)
    if node is None:
        raise Rejection(ReasonCode.NODE_UNKNOWN, "node", node_id)
    return node
