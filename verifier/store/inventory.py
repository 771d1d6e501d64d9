"""The inventory: which TPM is which machine, written down before the machine enrols."""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import Connection, and_, delete, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from verifier.store.attestation import write_audit
from verifier.store.ports import AuditEntry, EkKind, InventoryEk, InventoryEntry, NodeRecord, SignVoid
from verifier.store.rows import node_record
from verifier.store.schema import INVENTORY, INVENTORY_EKS, NODES, RESULTS
from verifier.store.trust import end_enrolments, end_trust, moved, remove_node
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


def entry_for(connection: Connection, eks: tuple[InventoryEk, ...], node_name: str) -> InventoryEntry | None:
    """The one machine that lists any of `eks`; None where neither they nor the name are in the inventory.

    Raises Rejection `ek-conflict` when several machines list them, `node-name-mismatch` when the machine has another
    name, or the name another TPM: whatever decides on admission, a listed name is for its own TPM only. Says no name
    of the inventory, because whoever enrols is anonymous.
    """
    entries = entries_of(connection, eks)
    if len(entries) > 1:
        raise Rejection(ReasonCode.EK_CONFLICT, "inventory", f"{len(entries)} entries", "one entry")
    if entries and entries[0].node_name == node_name:
        return entries[0]
    if entries or _entry(connection, node_name) is not None:
        raise Rejection(ReasonCode.NODE_NAME_MISMATCH, "enrolment.node_name", node_name)
    return None


def eks_of(node: NodeRecord) -> tuple[InventoryEk, ...]:
    """By what the inventory may list the node's EK."""
    key = InventoryEk("public-key", node.node_id)
    certificate = node.ek_certificate_sha256
    return (key,) if certificate is None else (key, InventoryEk("certificate", certificate))


def assigned(connection: Connection, node: NodeRecord) -> NodeRecord:
    """`node` with the tenant and cohort that the inventory gives it now.

    Raises Rejection as `entry_for`, and `ek-not-in-inventory` where admission rests on the inventory.
    """
    entry = entry_for(connection, eks_of(node), node.node_name)
    if entry is not None:
        return replace(node, tenant=entry.tenant, cohort=entry.cohort)
    if node.admission == "inventory":
        raise Rejection(ReasonCode.EK_NOT_IN_INVENTORY, "enrolment.ek_public", node.node_id)
    return node


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


def add_inventory(
    transaction: Transaction, entries: tuple[InventoryEntry, ...], void: SignVoid, audit: AuditEntry
) -> list[str]:
    """All entries are written; one with a known name replaces the old. The answer: ids of nodes that were moved.

    An enrolled node follows its entry into another tenant or cohort, and its result, which the former one's baselines
    made, ends. A node that only waits for a person gives its name up to the TPM that is listed. Raises Rejection
    `ek-conflict`, and keeps nothing, when an EK is listed under another name, or the enrolled TPM is not in its name's
    new list: that it is another machine now is for `nodes replace` to say.
    """
    reassigned = []
    for entry in entries:
        _write_entry(transaction.connection, entry)
        end_enrolments(transaction, None, entry.node_name)
        row = transaction.connection.execute(select(NODES).where(NODES.c.node_name == entry.node_name)).mappings()
        if (found := row.first()) is not None and _follow(transaction, node_record(found), entry, void):
            reassigned.append(str(found["node_id"]))
    write_audit(transaction, audit)
    return reassigned


def _write_entry(connection: Connection, entry: InventoryEntry) -> None:
    connection.execute(delete(INVENTORY_EKS).where(INVENTORY_EKS.c.node_name == entry.node_name))
    connection.execute(delete(INVENTORY).where(INVENTORY.c.node_name == entry.node_name))
    connection.execute(insert(INVENTORY).values(node_name=entry.node_name, tenant=entry.tenant, cohort=entry.cohort))
    for ek in entry.eks:
        _add_ek(connection, entry.node_name, ek)


def _follow(transaction: Transaction, node: NodeRecord, entry: InventoryEntry, void: SignVoid) -> bool:
    if not set(eks_of(node)) & set(entry.eks):
        if node.state != "pending":
            raise Rejection(
                ReasonCode.EK_CONFLICT, f"inventory.{node.node_name}", "another TPM", f"the enrolled {node.node_id}"
            )
        remove_node(transaction, node, void)
        return False
    if (node.tenant, node.cohort) == (entry.tenant, entry.cohort):
        return False
    following = replace(node, tenant=entry.tenant, cohort=entry.cohort)
    transaction.connection.execute(
        update(NODES)
        .where(NODES.c.node_id == node.node_id)
        .values(tenant=entry.tenant, cohort=entry.cohort, version=NODES.c.version + 1)
    )
    if node.state == "revoked":
        # The result says so already, and better than that it moved.
        transaction.connection.execute(moved(RESULTS.c.node_id == node.node_id))
    else:
        end_trust(transaction, following, void, same_ak=True)
    return True


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
