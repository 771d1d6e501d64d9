"""What people do with nodes and the inventory. Each act is audited in the transaction that performs it."""

from __future__ import annotations

import base64
import json
from typing import Any

from verifier.clock import Clock
from verifier.inventory import EkReference, Inventory, entry_json
from verifier.results import ResultMaker
from verifier.store.ports import AuditEntry, NodeRecord, SignVoid, Store, StoredResult
from verifier.wanted import Wanted
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure, Rejection
from verifier.wire.messages import decode_message

MAX_INVENTORY_BYTES = 4 * 1024 * 1024
_MAX_INVENTORY_MARKS = 1_000_000
"""Ten thousand entries, each with a few EKs; only operators may send one."""


class Administration:
    """Acts on one verifier's nodes; `node` is an id or a name."""

    def __init__(self, store: Store, results: ResultMaker, clock: Clock, wanted: Wanted) -> None:
        self._store = store
        self._results = results
        self._clock = clock
        self._wanted = wanted
        self.baselines_fault: Failure | None = None
        """Why the baselines on disk are not those in force, where they are not."""

    async def approve(self, node: str, actor: str, request_id: str) -> dict[str, Any]:
        """The node is admitted; its verdict is as bad as before until it attests again, which it is asked to."""
        record = self._find(node)
        audit = self._audit("node-approved", actor, request_id)
        changed = await self._store.set_state(record.node_id, "admitted", None, audit)
        self._wanted.want(changed.node_id)
        return self._json(changed)

    async def revoke(self, node: str, actor: str, request_id: str) -> dict[str, Any]:
        """The node is refused from now on, and a signed result of a higher sequence says so to relying parties."""
        record = self._find(node)
        audit = self._audit("node-revoked", actor, request_id)
        changed = await self._store.set_state(record.node_id, "revoked", self._void(ReasonCode.NODE_REVOKED), audit)
        return self._json(changed)

    async def replace(self, node: str, body: bytes, actor: str, request_id: str) -> dict[str, Any]:
        """After a mainboard change: the old TPM is out, and only the TPM of the EK in `body` may take the name."""
        ek = decode_message(EkReference, body, "replacement").as_ek()
        record = self._find(node)
        audit = self._audit("node-replaced", actor, request_id)
        await self._store.replace(record.node_id, ek, self._void(ReasonCode.NODE_REMOVED), audit)
        return {"node_name": record.node_name, "removed": record.node_id, "waits_for": ek.sha256}

    async def forget(self, node: str, actor: str, request_id: str) -> dict[str, Any]:
        """After decommissioning: node and inventory entry are gone."""
        record = self._find(node)
        audit = self._audit("node-forgotten", actor, request_id)
        await self._store.forget(record.node_id, self._void(ReasonCode.NODE_REMOVED), audit)
        return {"node_name": record.node_name, "removed": record.node_id}

    async def add_inventory(self, body: bytes, actor: str, request_id: str) -> dict[str, Any]:
        """All entries of the JSON inventory in `body` are written, or none; nodes that it moves must attest again."""
        inventory = decode_message(Inventory, body, "inventory", MAX_INVENTORY_BYTES, _MAX_INVENTORY_MARKS)
        entries = tuple(entry.as_entry() for entry in inventory.entries)
        audit = self._audit("inventory-written", actor, request_id, {"entries": len(entries)})
        moved = await self._store.add_inventory(entries, self._void(ReasonCode.NODE_REASSIGNED), audit)
        for node_id in moved:
            self._wanted.want(node_id)
        return {"written": len(entries), "reassigned": len(moved)}

    def inventory(self) -> dict[str, Any]:
        """All entries."""
        return {"entries": [entry_json(entry) for entry in self._store.inventory()]}

    def nodes(self) -> dict[str, Any]:
        """All nodes, each with its latest verdict and whether that still counts."""
        return {"nodes": [self._summary(record, result) for record, result in self._store.nodes()]}

    def node(self, node: str) -> dict[str, Any]:
        """One node, with its latest signed result."""
        return self._json(self._find(node))

    def explain(self, node: str) -> dict[str, Any]:
        """Why the node is trusted or not: its state, its result's reasons, and what each baseline version failed."""
        record = self._find(node)
        result = self._store.result(record.node_id)
        claims = {} if result is None else _claims(result.token)
        now = self._clock.now_ms() // 1000
        reasons = []
        if result is not None and now >= result.expires_at:
            ended = f"{now - result.expires_at} s ago"
            reasons.append(Failure(ReasonCode.RESULT_EXPIRED, "result.expires_at", ended).as_json())
        if self.baselines_fault is not None:
            reasons.append(self.baselines_fault.as_json())
        return self._summary(record, result) | {
            "reasons": [*reasons, *claims.get("nodewarden", {}).get("reasons", [])],
            "submods": claims.get("submods", {}),
            "candidates": [] if result is None else json.loads(result.explanation),
        }

    def _find(self, node: str) -> NodeRecord:
        record = self._store.node(node) or self._store.node_by_name(node)
        if record is None:
            raise Rejection(ReasonCode.NODE_UNKNOWN, "node", node)
        return record

    def _json(self, record: NodeRecord) -> dict[str, Any]:
        result = self._store.result(record.node_id)
        return self._summary(record, result) | {"result": None if result is None else result.token}

    def _summary(self, record: NodeRecord, result: StoredResult | None) -> dict[str, Any]:
        now = self._clock.now_ms() // 1000
        # A verdict that has run out is shown as none: the last good state must not look like a present one.
        current = None if result is None or now >= result.expires_at else result.verdict
        return {
            "node_id": record.node_id,
            "node_name": record.node_name,
            "tenant": record.tenant,
            "cohort": record.cohort,
            "state": record.state,
            "admission": record.admission,
            "ek_chain": record.endorsement.chain,
            "tpm_manufacturer": record.endorsement.manufacturer,
            "enrolled_at": record.enrolled_at,
            "verdict": current or "none",
            "last_verdict": None if result is None else result.verdict,
            "issued_at": None if result is None else result.issued_at,
            "expires_at": None if result is None else result.expires_at,
            "seq": None if result is None else result.sequence,
            "reason": _first_reason(result, expired=current is None),
        }

    def _void(self, code: ReasonCode) -> SignVoid:
        return lambda record, previous: self._results.void(record, previous, code, self._clock.now_ms())

    def _audit(
        self, kind: str, actor: str, request_id: str, detail: dict[str, str | int | None] | None = None
    ) -> AuditEntry:
        return AuditEntry(self._clock.now_ms(), kind, actor, request_id, detail=detail or {})


def _first_reason(result: StoredResult | None, *, expired: bool) -> str | None:
    if result is None:
        return ReasonCode.RESULT_MISSING.value
    if expired:
        return ReasonCode.RESULT_EXPIRED.value
    # Nothing is decoded for the many that are well.
    reasons = [] if result.verdict == "affirming" else _claims(result.token).get("nodewarden", {}).get("reasons", [])
    return reasons[0]["code"] if reasons else None


def _claims(token: str) -> dict[str, Any]:
    """The claims of a result of our own store; not verified, and only shown."""
    payload = token.split(".")[1]
    claims: dict[str, Any] = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    return claims
