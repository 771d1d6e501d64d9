"""The inventory: which TPM is which machine, written down before the machine enrols."""

from __future__ import annotations

from sqlalchemy import ColumnElement, Connection, Update, and_, delete, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from verifier.store.attestation import write_audit
from verifier.store.ports import AuditEntry, EkKind, InventoryEk, InventoryEntry, NodeRecord
from verifier.store.schema import INVENTORY, INVENTORY_EKS, NODES, RESULTS
from verifier.store.writer import Transaction
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Rejection

_KINDS: dict[str, EkKind] = {"certificate": "certificate", "public-key": "public-key"}


def read_inventory(connection: Connection) -> list[InventoryEntry]:
    """All entries, by node name."""
    entries = connection.execute(select(INVENTORY).order_by(INVENTORY.c.node_name)).mappings().all()
    eks: dict[str, list[InventoryEk]] = {}
    for row in connection.execute(select(INVENTORY_EKS).order_by(INVENTORY_EKS.c.sha256)).mappings():
        eks.setdefault(row["node_name"], []).append(InventoryEk(_KINDS[row["kind"]], row["sha256"]))
    return [
        InventoryEntry(row["node_name"], row["tenant"], row["cohort"], tuple(eks.get(row["node_name"], ())))
        for row in entries
    ]


def entries_of(connection: Connection, eks: tuple[InventoryEk, ...]) -> list[InventoryEntry]:
    """The entries that list any of `eks`."""
    wanted = or_(*(and_(INVENTORY_EKS.c.kind == ek.kind, INVENTORY_EKS.c.sha256 == ek.sha256) for ek in eks))
    names = connection.execute(select(INVENTORY_EKS.c.node_name).where(wanted).distinct()).scalars().all()
    return [entry for name in names if (entry := _entry(connection, name)) is not None]


def _entry(connection: Connection, name: str) -> InventoryEntry | None:
    row = connection.execute(select(INVENTORY).where(INVENTORY.c.node_name == name)).mappings().first()
    if row is None:
        return None
    eks = connection.execute(select(INVENTORY_EKS).where(INVENTORY_EKS.c.node_name == name)).mappings()
    listed = tuple(InventoryEk(_KINDS[ek["kind"]], ek["sha256"]) for ek in eks)
    return InventoryEntry(row["node_name"], row["tenant"], row["cohort"], listed)


def same_machine(connection: Connection, node_name: str, node_ids: tuple[str, ...]) -> bool:
    """Whether the inventory lists all these EKs, by public key, as one machine's."""
    entry = _entry(connection, node_name)
    listed = set() if entry is None else {ek.sha256 for ek in entry.eks if ek.kind == "public-key"}
    return listed.issuperset(node_ids)


def add_inventory(transaction: Transaction, entries: tuple[InventoryEntry, ...], audit: AuditEntry) -> None:
    """All entries are written; one with a known name replaces the old, and its enrolled node follows in cohort.

    Raises Rejection `ek-conflict` when an EK is listed under another name, and keeps nothing then.
    """
    connection = transaction.connection
    for entry in entries:
        connection.execute(delete(INVENTORY_EKS).where(INVENTORY_EKS.c.node_name == entry.node_name))
        connection.execute(delete(INVENTORY).where(INVENTORY.c.node_name == entry.node_name))
        connection.execute(
            insert(INVENTORY).values(node_name=entry.node_name, tenant=entry.tenant, cohort=entry.cohort)
        )
        for ek in entry.eks:
            _add_ek(connection, entry.node_name, ek)
        connection.execute(
            update(NODES)
            .where(NODES.c.node_name == entry.node_name)
            .values(tenant=entry.tenant, cohort=entry.cohort, version=NODES.c.version + 1)
        )
        connection.execute(moved(RESULTS.c.node_name == entry.node_name))
    write_audit(transaction, audit)


def moved(which: ColumnElement[bool]) -> Update:
    """Evidence that is being judged by the node's former state will be judged again."""
    return update(RESULTS).where(which).values(moved=RESULTS.c.moved + 1)


def _add_ek(connection: Connection, node_name: str, ek: InventoryEk) -> None:
    try:
        connection.execute(insert(INVENTORY_EKS).values(kind=ek.kind, sha256=ek.sha256, node_name=node_name))
    except IntegrityError as error:
        raise Rejection(ReasonCode.EK_CONFLICT, f"inventory.{node_name}", ek.sha256, "an EK under one name") from error


def set_single_ek(connection: Connection, node: NodeRecord, ek: InventoryEk) -> None:
    """The name's entry lists `ek` and no other. Raises Rejection `ek-conflict` when another name has it."""
    known = connection.execute(select(INVENTORY.c.node_name).where(INVENTORY.c.node_name == node.node_name)).first()
    if known is None:
        connection.execute(insert(INVENTORY).values(node_name=node.node_name, tenant=node.tenant, cohort=node.cohort))
    connection.execute(delete(INVENTORY_EKS).where(INVENTORY_EKS.c.node_name == node.node_name))
    _add_ek(connection, node.node_name, ek)
