"""The verifier's tables, and the version of their form.

Only types that SQLite and PostgreSQL share. Uniqueness that security rests on (one node a name, one node an EK, one use
a nonce) is a constraint here, so that a race ends in the database and not in a check made before.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
)

SCHEMA_VERSION = 1

METADATA = MetaData()

SCHEMA = Table(
    "schema_version",
    METADATA,
    Column("version", Integer, primary_key=True),
    Column("migrated_at_ms", BigInteger, nullable=False),
)

INVENTORY = Table(
    "inventory",
    METADATA,
    Column("node_name", Text, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("cohort", Text, nullable=False),
)

INVENTORY_EKS = Table(
    "inventory_eks",
    METADATA,
    # "certificate" (SHA-256 of the DER without padding) or "public-key" (of the SubjectPublicKeyInfo).
    Column("kind", Text, primary_key=True),
    Column("sha256", Text, primary_key=True),
    Column("node_name", Text, ForeignKey("inventory.node_name", ondelete="CASCADE"), nullable=False, index=True),
)


def _introduced() -> tuple[Column[Any], ...]:
    """What an enrolment says of a node and the node keeps, new columns for each table."""
    return (
        Column("tenant", Text, nullable=False),
        Column("cohort", Text, nullable=False),
        Column("ek_public", LargeBinary, nullable=False),
        Column("ak_public", LargeBinary, nullable=False),
        Column("ek_chain", Text, nullable=False),
        Column("ek_certificate_sha256", Text),
        Column("tpm_manufacturer", Text),
        Column("tpm_model", Text),
        Column("tpm_version", Text),
        Column("admission", Text, nullable=False),
    )


NODES = Table(
    "nodes",
    METADATA,
    Column("node_id", Text, primary_key=True),
    Column("node_name", Text, nullable=False, unique=True),
    *_introduced(),
    # "admitted", "pending" or "revoked".
    Column("state", Text, nullable=False),
    Column("kubernetes_node_uid", Text),
    Column("enrolled_at", BigInteger, nullable=False),
    # Rises with every change above, so that what is cached of a node is known to be old.
    Column("version", BigInteger, nullable=False),
)

RESULTS = Table(
    # One row a node id, kept after the node is gone: sequence numbers must not start again.
    "results",
    METADATA,
    Column("node_id", Text, primary_key=True),
    Column("node_name", Text, nullable=False),
    Column("seq", BigInteger, nullable=False),
    # Rises with everything that happens to the node: who decides from an older state decides again.
    Column("moved", BigInteger, nullable=False),
    # Position in the stream; assigned in commit order, from the time of a start on. 0 before the first result.
    Column("event", BigInteger, nullable=False),
    Column("verdict", Text),
    Column("issued_at", BigInteger),
    Column("expires_at", BigInteger),
    Column("token", Text),
    Column("explanation", Text),
    Column("kubernetes_node_uid", Text),
    # Counters and clock of the last accepted quote of the present AK; null after enrolment.
    Column("reset_count", BigInteger),
    Column("restart_count", BigInteger),
    Column("clock_ms", BigInteger),
    Column("boot_log_sha256", LargeBinary),
    # The challenge that the last answer carried, which the next evidence uses up in this very row; null when there is
    # none. It is looked up by node, so it needs no index. Challenges that a node asks for are in their own table.
    Column("next_nonce_sha256", LargeBinary),
    Column("next_issued_at", BigInteger),
    Column("next_expires_at", BigInteger),
    Column("next_pcr_bank", Text),
    Column("next_pcrs", Text),
    Column("next_node_token", Integer),
    Column("next_tries", Integer),
    # Digests of the last nonces that were used up in this row, one after another, the newest first.
    Column("used_nonces", LargeBinary),
    Index("results_event", "event"),
)

CHALLENGES = Table(
    "challenges",
    METADATA,
    # Only the digest: a thief of the database cannot answer a live challenge.
    Column("nonce_sha256", LargeBinary, primary_key=True),
    Column("node_id", Text, nullable=False, index=True),
    Column("issued_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False, index=True),
    Column("pcr_bank", Text, nullable=False),
    Column("pcrs", Text, nullable=False),
    Column("node_token", Integer, nullable=False),
    Column("tries", Integer, nullable=False),
    Column("used_at", BigInteger),
    sqlite_with_rowid=False,
)

ENROLMENTS = Table(
    "enrolments",
    METADATA,
    Column("enrolment_sha256", LargeBinary, primary_key=True),
    Column("secret_sha256", LargeBinary, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    Column("used_at", BigInteger),
    Column("node_id", Text, nullable=False),
    Column("node_name", Text, nullable=False),
    *_introduced(),
    Column("admitted", Integer, nullable=False),
    Column("kubernetes_node_uid", Text),
)

REQUESTS = Table(
    # Signed requests already answered: each identifier is good once while it is fresh.
    "requests",
    METADATA,
    Column("node_id", Text, primary_key=True),
    Column("jti", Text, primary_key=True),
    Column("expires_at", BigInteger, nullable=False, index=True),
    sqlite_with_rowid=False,
)

BOOT_LOGS = Table(
    "boot_logs",
    METADATA,
    Column("sha256", LargeBinary, primary_key=True),
    Column("log", LargeBinary, nullable=False),
)

AUDIT = Table(
    "audit",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=True),
    # JSON, exactly as the chain covers it.
    Column("record", Text, nullable=False),
    sqlite_autoincrement=True,
)

AUDIT_HEADS = Table(
    "audit_heads",
    METADATA,
    Column("last_id", Integer, primary_key=True),
    Column("rows", BigInteger, nullable=False),
    Column("chain_sha256", Text, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("token", Text, nullable=False),
)

COUNTERS = Table(
    "counters",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("value", BigInteger, nullable=False),
)
