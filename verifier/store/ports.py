"""What the service keeps, as values, and the promise of the store that keeps it.

Every write is one unit: all of it is committed, or nothing. Its caller resumes only after the commit is durable.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeVar

from verifier.appraisal.context import EkEndorsement, IssuedChallenge, LastSeen
from verifier.wire.bundle import NodeId

EkKind = Literal["certificate", "public-key"]
Admission = Literal["inventory", "manual", "manufacturer"]
NodeState = Literal["admitted", "pending", "revoked"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class InventoryEk:
    """One EK of a TPM: by SHA-256 of its certificate, or of its SubjectPublicKeyInfo (hex)."""

    kind: EkKind
    sha256: str


@dataclass(frozen=True, slots=True)
class InventoryEntry:
    """One machine, written down before it enrols. All EKs of its TPM, so that none makes a second node."""

    node_name: str
    tenant: str
    cohort: str
    eks: tuple[InventoryEk, ...]


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """One enrolled TPM: EK, AK, name, cohort and state in one row (CVE-2022-1053)."""

    node_id: NodeId
    node_name: str
    tenant: str
    cohort: str
    ek_public: bytes
    ak_public: bytes
    endorsement: EkEndorsement
    admission: Admission
    state: NodeState
    kubernetes_node_uid: str | None
    enrolled_at: int
    version: int
    ek_certificate_sha256: str | None = None
    """Of the certificate with which it enrolled, if any: the inventory may list it by that."""


@dataclass(frozen=True, slots=True)
class StoredResult:
    """A node's latest signed result, and its place in the stream."""

    node_id: str
    node_name: str
    sequence: int
    event: int
    verdict: str
    issued_at: int
    expires_at: int
    token: str
    explanation: str
    kubernetes_node_uid: str | None


@dataclass(frozen=True, slots=True)
class NonceState:
    """A challenge as stored, with what its node was last seen to be.

    A node has at most one challenge in its own row, the one that the last answer carried (`in_row`: this is that one);
    others it asked for. `row_nonce_sha256` and `row_expires_at` are of the one in the row, None and 0 without one.
    """

    nonce_sha256: bytes
    node_id: NodeId
    issued_at: int
    expires_at: int
    pcr_bank: str
    pcrs: tuple[int, ...]
    node_token: bool
    tries: int
    used: bool
    node_version: int
    node_state: NodeState
    previous_sequence: int
    moved: int
    last_seen: LastSeen | None
    boot_log_sha256: bytes | None
    in_row: bool
    row_nonce_sha256: bytes | None
    row_expires_at: int
    used_nonces: bytes

    def row_is_free(self, now: int) -> bool:
        """Whether the next challenge goes to the node's row: its present one is this one, or is over.

        A person's `once` beside a running attester must not void the challenge that the attester holds.
        """
        return self.in_row or now >= self.row_expires_at


@dataclass(frozen=True, slots=True)
class PendingEnrolment:
    """An enrolment that waits for its activation: one try, until `expires_at`."""

    enrolment_sha256: bytes
    secret_sha256: bytes
    expires_at: int
    node: NodeRecord


@dataclass(frozen=True, slots=True)
class SignedResult:
    """A result ready to be stored."""

    sequence: int
    verdict: str
    issued_at: int
    expires_at: int
    token: str
    explanation: str
    kubernetes_node_uid: str | None


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One act or verdict. `actor` is a token's name, a node, or the verifier; details hold no secret."""

    at_ms: int
    kind: str
    actor: str
    request_id: str
    node_id: str | None = None
    node_name: str | None = None
    detail: dict[str, str | int | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AttestationCommit:
    """All that one accepted bundle changes, in one unit. `nonce` is the state that it was judged from."""

    nonce: NonceState
    used_at: int
    result: SignedResult
    last_seen: LastSeen
    boot_log_sha256: bytes | None
    new_boot_log: bytes | None
    next_challenge: IssuedChallenge
    audit: AuditEntry


@dataclass(frozen=True, slots=True)
class AuditRow:
    """A committed audit row, its text exactly as the chain covers it."""

    id: int
    record: str


@dataclass(frozen=True, slots=True)
class AuditHead:
    """The signed head of the audit chain after `rows` rows, the last of which is `last_id`."""

    last_id: int
    rows: int
    chain_sha256: str
    at_ms: int
    token: str


SignVoid = Callable[[NodeRecord, int], SignedResult]
"""Makes the signed result that ends trust in a node; the argument is the last sequence number used."""


class SequenceMoved(Exception):
    """The node's result changed after it was read: look again, then decide."""


class Store(Protocol):
    """Reads show what is committed; writes return once they are durable.

    Writes raise Rejection with the code that their name promises, `SequenceMoved`, or Unavailable
    `store-unavailable`; then nothing of the unit is kept, unless it says otherwise.
    """

    def find_nonce(self, nonce_sha256: bytes) -> NonceState | None: ...
    def find_next_nonce(self, node_id: str, nonce_sha256: bytes) -> NonceState | None: ...
    def was_used(self, node_id: str, nonce_sha256: bytes) -> bool: ...
    def node(self, node_id: str) -> NodeRecord | None: ...
    def node_by_name(self, name: str) -> NodeRecord | None: ...
    def nodes(self) -> list[tuple[NodeRecord, StoredResult | None]]: ...
    def result(self, node_id: str) -> StoredResult | None: ...
    def last_event(self) -> int: ...
    def results_after(self, event: int, limit: int) -> list[StoredResult]: ...
    def known_boot_log(self, node_id: str) -> bytes | None: ...
    def boot_log(self, sha256: bytes) -> bytes | None: ...
    def inventory(self) -> list[InventoryEntry]: ...
    def inventory_entry(self, eks: tuple[InventoryEk, ...], node_name: str) -> InventoryEntry | None: ...
    def audit_after(self, row_id: int, limit: int) -> list[AuditRow]: ...
    def audit_heads(self) -> list[AuditHead]: ...

    async def commit_attestation(self, commit: AttestationCommit) -> None: ...
    async def count_try(self, nonce: NonceState, audit: AuditEntry) -> None: ...
    async def add_challenge(self, challenge: IssuedChallenge, jti: str, jti_expires_at: int) -> None: ...
    async def use_request(self, node_id: str, jti: str, expires_at: int) -> None: ...
    async def begin_enrolment(self, pending: PendingEnrolment, now: int, audit: AuditEntry) -> None: ...
    async def activate(
        self, enrolment_sha256: bytes, secret: bytes, now: int, void: SignVoid, audit: AuditEntry
    ) -> NodeRecord: ...
    async def set_state(
        self, node_id: str, state: Literal["admitted", "revoked"], void: SignVoid | None, audit: AuditEntry
    ) -> NodeRecord: ...
    async def replace(self, node_id: str, ek: InventoryEk, void: SignVoid, audit: AuditEntry) -> NodeRecord: ...
    async def forget(self, node_id: str, void: SignVoid, audit: AuditEntry) -> NodeRecord: ...
    async def add_inventory(
        self, entries: tuple[InventoryEntry, ...], void: SignVoid, audit: AuditEntry
    ) -> list[str]: ...
    async def write_audit(self, audit: AuditEntry) -> None: ...
    async def chain_audit(self, sign: Callable[[int, int, str], AuditHead]) -> AuditHead | None: ...
    async def purge(self, now: int) -> None: ...
    def close(self) -> None: ...
