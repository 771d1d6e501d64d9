"""The store on SQLite: reads on the event loop's own connection, writes through the group writer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import delete, select

from verifier.appraisal.context import IssuedChallenge
from verifier.store import attestation, audit, inventory, migrate, nodes
from verifier.store.ports import (
    AttestationCommit,
    AuditEntry,
    AuditHead,
    AuditRow,
    InventoryEk,
    InventoryEntry,
    NodeRecord,
    NonceState,
    PendingEnrolment,
    SignVoid,
    StoredResult,
)
from verifier.store.prepared import FIND_NEXT_NONCE, FIND_NONCE, KNOWN_BOOT_LOG, READ_EVENT, USED_NONCES
from verifier.store.rows import node_record, nonce_state, stored_result
from verifier.store.schema import (
    AUDIT,
    AUDIT_HEADS,
    BOOT_LOGS,
    CHALLENGES,
    NODES,
    REQUESTS,
    RESULTS,
)
from verifier.store.writer import GroupWriter, Transaction
from verifier.wire.failures import Rejection

_KEEP_CHALLENGES_SECONDS = 600
"""So long after its end a nonce is still known as used or expired; later it is unknown."""

KEEP_PENDING_SECONDS = 86_400
"""So long a node waits for a person to approve it; a name is not reserved for ever by whoever came first."""


class SqlStore:
    """`verifier.store.ports.Store` on one SQLite file. The reading methods belong to the event loop's thread."""

    def __init__(self, path: Path, now_ms: int, on_commit: Callable[[], None] = lambda: None) -> None:
        self._engine = migrate.open_engine(path)
        migrate.migrate(self._engine, now_ms)
        self._reader = self._engine.connect()
        self._cursor = self._reader.connection.cursor()
        self._writer = GroupWriter(self._engine, on_commit)

    def close(self) -> None:
        """Everything written before is durable; no connection is left open."""
        self._writer.close()
        self._cursor.close()
        self._reader.close()
        self._engine.dispose()

    # --- reads ---

    def find_nonce(self, nonce_sha256: bytes) -> NonceState | None:
        """The asked-for challenge whose nonce has this digest, with its node; None for one that no node has."""
        row = FIND_NONCE.run(self._driver(), nonce=nonce_sha256).fetchone()
        return None if row is None else nonce_state(nonce_sha256, row, in_row=False)

    def find_next_nonce(self, node_id: str, nonce_sha256: bytes) -> NonceState | None:
        """The challenge in the node's row, if its nonce has this digest."""
        row = FIND_NEXT_NONCE.run(self._driver(), node=node_id, nonce=nonce_sha256).fetchone()
        return None if row is None else nonce_state(nonce_sha256, row, in_row=True)

    def was_used(self, node_id: str, nonce_sha256: bytes) -> bool:
        """Whether the nonce with this digest is one of the last that were used up in the node's row."""
        row = USED_NONCES.run(self._driver(), node=node_id).fetchone()
        return row is not None and attestation.is_among(nonce_sha256, row[0] or b"")

    def _driver(self) -> Any:
        return self._cursor

    def known_boot_log(self, node_id: str) -> bytes | None:
        """The digest of the boot log with which this node was last accepted."""
        row = KNOWN_BOOT_LOG.run(self._driver(), node=node_id).fetchone()
        return None if row is None else row[0]

    def node(self, node_id: str) -> NodeRecord | None:
        """The enrolled node, or None."""
        row = self._reader.execute(select(NODES).where(NODES.c.node_id == node_id)).mappings().first()
        return None if row is None else node_record(row)

    def node_by_name(self, name: str) -> NodeRecord | None:
        """The enrolled node of this name, or None."""
        row = self._reader.execute(select(NODES).where(NODES.c.node_name == name)).mappings().first()
        return None if row is None else node_record(row)

    def nodes(self) -> list[tuple[NodeRecord, StoredResult | None]]:
        """All nodes by name, with their latest results."""
        found = self._reader.execute(select(NODES).order_by(NODES.c.node_name)).mappings().all()
        return [(node_record(row), self.result(row["node_id"])) for row in found]

    def result(self, node_id: str) -> StoredResult | None:
        """The node's latest result, or None."""
        row = self._reader.execute(select(RESULTS).where(RESULTS.c.node_id == node_id)).mappings().first()
        return None if row is None else stored_result(row)

    def last_event(self) -> int:
        """The last event that was given out; the next is higher, also after the database was restored."""
        return int(READ_EVENT.run(self._driver()).fetchone()[0])

    def results_after(self, event: int, limit: int) -> list[StoredResult]:
        """The latest results that entered the stream after `event`, in its order."""
        rows = self._reader.execute(
            select(RESULTS).where(RESULTS.c.event > event).order_by(RESULTS.c.event).limit(limit)
        ).mappings()
        return [result for row in rows if (result := stored_result(row)) is not None]

    def boot_log(self, sha256: bytes) -> bytes | None:
        """The boot log with this digest, if a node was accepted with it."""
        log = self._reader.execute(select(BOOT_LOGS.c.log).where(BOOT_LOGS.c.sha256 == sha256)).scalar()
        return None if log is None else bytes(log)

    def inventory(self) -> list[InventoryEntry]:
        """All inventory entries."""
        return inventory.read_inventory(self._reader)

    def inventory_entry(self, eks: tuple[InventoryEk, ...], node_name: str) -> InventoryEntry | None:
        """See `store.inventory.entry_for`."""
        return inventory.entry_for(self._reader, eks, node_name)

    def audit_after(self, row_id: int, limit: int) -> list[AuditRow]:
        """Committed audit rows after `row_id`."""
        found = self._reader.execute(
            select(AUDIT.c.id, AUDIT.c.record).where(AUDIT.c.id > row_id).order_by(AUDIT.c.id).limit(limit)
        )
        return [AuditRow(row[0], row[1]) for row in found]

    def audit_heads(self) -> list[AuditHead]:
        """All signed heads of the audit chain, oldest first."""
        rows = self._reader.execute(select(AUDIT_HEADS).order_by(AUDIT_HEADS.c.last_id)).mappings()
        return [AuditHead(row["last_id"], row["rows"], row["chain_sha256"], row["at_ms"], row["token"]) for row in rows]

    # --- writes ---

    async def commit_attestation(self, commit: AttestationCommit) -> None:
        """See `store.attestation.commit_attestation`."""
        savepoint = not commit.nonce.in_row
        await self._writer.write(lambda t: attestation.commit_attestation(t, commit), savepoint=savepoint)

    async def count_try(self, nonce: NonceState, audit: AuditEntry) -> None:
        """One failed try is counted and audited."""
        await self._writer.write(lambda t: attestation.count_try(t, nonce, audit))

    async def add_challenge(self, challenge: IssuedChallenge, jti: str, jti_expires_at: int) -> None:
        """The challenge is live. Raises Rejection `request-replayed`."""
        await self._writer.write(lambda t: attestation.add_challenge(t, challenge, jti, jti_expires_at))

    async def use_request(self, node_id: str, jti: str, expires_at: int) -> None:
        """The signed request is used up. Raises Rejection `request-replayed`."""
        await self._writer.write(lambda t: attestation.use_request(t, node_id, jti, expires_at))

    async def begin_enrolment(self, pending: PendingEnrolment, now: int, audit: AuditEntry) -> None:
        """See `store.nodes.begin_enrolment`."""
        await self._writer.write(lambda t: nodes.begin_enrolment(t, pending, now, audit))

    async def activate(
        self, enrolment_sha256: bytes, secret: bytes, now: int, void: SignVoid, audit: AuditEntry
    ) -> NodeRecord:
        """The enrolled node. Raises Rejection as `store.nodes.activate` says; the try stays used up."""
        outcome = await self._writer.write(lambda t: nodes.activate(t, enrolment_sha256, secret, now, void, audit))
        if isinstance(outcome, Rejection):
            raise outcome
        return outcome

    async def set_state(
        self, node_id: str, state: Literal["admitted", "revoked"], void: SignVoid | None, audit: AuditEntry
    ) -> NodeRecord:
        """See `store.nodes.set_state`."""
        return await self._writer.write(lambda t: nodes.set_state(t, node_id, state, void, audit))

    async def replace(self, node_id: str, ek: InventoryEk, void: SignVoid, audit: AuditEntry) -> NodeRecord:
        """See `store.nodes.replace`."""
        return await self._writer.write(lambda t: nodes.replace(t, node_id, ek, void, audit))

    async def forget(self, node_id: str, void: SignVoid, audit: AuditEntry) -> NodeRecord:
        """See `store.nodes.forget`."""
        return await self._writer.write(lambda t: nodes.forget(t, node_id, void, audit))

    async def add_inventory(self, entries: tuple[InventoryEntry, ...], void: SignVoid, audit: AuditEntry) -> list[str]:
        """See `store.inventory.add_inventory`."""
        return await self._writer.write(lambda t: inventory.add_inventory(t, entries, void, audit))

    async def write_audit(self, audit: AuditEntry) -> None:
        """The entry is an audit row."""
        await self._writer.write(lambda t: attestation.write_audit(t, audit))

    async def chain_audit(self, sign: Callable[[int, int, str], AuditHead]) -> AuditHead | None:
        """See `store.audit.chain_audit`."""
        return await self._writer.write(lambda t: audit.chain_audit(t, sign))

    async def purge(self, now: int) -> None:
        """Challenges, requests and boot logs that nothing refers to any more are gone; so are nodes nobody admitted."""

        def unit(transaction: Transaction) -> None:
            connection = transaction.connection
            connection.execute(delete(CHALLENGES).where(CHALLENGES.c.expires_at < now - _KEEP_CHALLENGES_SECONDS))
            nodes.drop_old_pending(transaction, now - KEEP_PENDING_SECONDS)
            connection.execute(delete(REQUESTS).where(REQUESTS.c.expires_at < now))
            used = select(RESULTS.c.boot_log_sha256).where(RESULTS.c.boot_log_sha256.is_not(None))
            connection.execute(delete(BOOT_LOGS).where(BOOT_LOGS.c.sha256.not_in(used)))

        await self._writer.write(unit)
