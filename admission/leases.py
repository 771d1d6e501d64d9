"""Leases: who holds which secret until when, remembered before the secret is read and never with its content.

A lease's key is the hash of (pod UID, node UID, boot id, secret). Asking again gives the same lease to the same pod
and binding key until it ends, and to nobody else.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from uuid import uuid4

from admission.decision import Release
from admission.durable_state import DurableState
from verifier.wire.codes import ReasonCode
from verifier.wire.encoding import canonical_json
from verifier.wire.failures import Rejection

KEEP_ENDED_SECONDS = 7 * 24 * 3600
"""Ended leases stay for a week for whoever asks where a secret went; the log keeps them longer."""


@dataclass(frozen=True, slots=True)
class Lease:
    """One secret for one pod on one node in one boot, until `expires_at`."""

    lease_id: str
    secret: str
    expires_at: int


def lease_key(pod_uid: str, node_uid: str, boot_id: str, secret: str) -> str:
    """SHA-256 of the JCS list [pod UID, node UID, boot id, secret]."""
    return hashlib.sha256(canonical_json([pod_uid, node_uid, boot_id, secret])).hexdigest()


class Leases:
    """The leases in `state`; also a `RequestMemory` and in the same file, since a release needs both."""

    def __init__(self, state: DurableState) -> None:
        self._state = state

    def use(self, node_id: str, jti: str, now: int, forget_at: int) -> None:
        """The request counts as used. Raises Rejection `request-replayed`, Unavailable `store-unavailable`."""
        with self._state.transaction() as connection:
            connection.execute("DELETE FROM used_requests WHERE forget_at < ?", (now,))
            added = connection.execute(
                "INSERT INTO used_requests VALUES (?, ?, ?) ON CONFLICT DO NOTHING", (node_id, jti, forget_at)
            ).rowcount
        if added == 0:
            raise Rejection(ReasonCode.REQUEST_REPLAYED, "request.jti", "used before")

    def take(self, release: Release, key_sha256: str, now: int) -> tuple[Lease, ...]:
        """A lease for each grant of `release`, all or none; those that run already are returned unchanged.

        Expiry is the result's, or the grant's ttl if that is sooner. Raises Rejection `lease-held` when a running
        lease was given to another binding key, Unavailable `store-unavailable`.
        """
        leases = []
        with self._state.transaction() as connection:
            connection.execute("DELETE FROM leases WHERE expires_at < ?", (now - KEEP_ENDED_SECONDS,))
            for grant in release.grants:
                key = lease_key(release.pod.uid, release.node.uid, release.boot_id, grant.name)
                row = connection.execute(
                    "SELECT lease_id, expires_at, key_sha256 FROM leases WHERE key = ? AND expires_at > ?", (key, now)
                ).fetchone()
                if row is not None:
                    if row[2] != key_sha256:
                        raise Rejection(ReasonCode.LEASE_HELD, f"secrets.{grant.name}", row[0])
                    leases.append(Lease(row[0], grant.name, row[1]))
                    continue
                lease = Lease(str(uuid4()), grant.name, min(release.result.expires_at, now + grant.ttl_seconds))
                connection.execute(
                    "INSERT OR REPLACE INTO leases VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (
                        key,
                        lease.lease_id,
                        grant.name,
                        release.pod.uid,
                        f"{release.pod.namespace}/{release.pod.name}",
                        release.node.uid,
                        release.node.name,
                        release.boot_id,
                        key_sha256,
                        release.result.evidence_sha256,
                        now,
                        lease.expires_at,
                    ),
                )
                leases.append(lease)
        return tuple(leases)
