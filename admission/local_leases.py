"""Leases where there is no cluster: in the broker's own state file. Nobody orders their revocation there; they end."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import uuid4

from admission.decision import Release
from admission.durable_state import DurableState
from admission.leases import Lease, LeaseState, end_of, key_of
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure, Rejection

KEEP_ENDED_SECONDS = 7 * 24 * 3600
"""Ended leases stay for a week for whoever asks where a secret went; the log keeps them longer."""


class LocalLeases:
    """A `LeaseBook` in `state`."""

    def __init__(self, state: DurableState) -> None:
        self._state = state

    def unready(self) -> Failure | None:
        return None

    def count(self, now: int) -> Mapping[LeaseState, int]:
        """As `LeaseBook.count`."""
        with self._state.transaction() as connection:
            live, all_of_them = connection.execute(
                "SELECT COUNT(*) FILTER (WHERE expires_at > ?), COUNT(*) FROM leases", (now,)
            ).fetchone()
        return {"live": live, "ended": all_of_them - live}

    def require_standing(self, leases: tuple[Lease, ...]) -> None:  # noqa: ARG002 - none is ever revoked here
        return

    def take(self, release: Release, key_sha256: str, now: int) -> tuple[Lease, ...]:
        """As `LeaseBook.take`, all or none. Raises Unavailable `store-unavailable`."""
        leases = []
        with self._state.transaction() as connection:
            connection.execute("DELETE FROM leases WHERE expires_at < ?", (now - KEEP_ENDED_SECONDS,))
            for grant in release.grants:
                key = key_of(release, grant)
                row = connection.execute(
                    "SELECT lease_id, expires_at, key_sha256 FROM leases WHERE key = ? AND expires_at > ?", (key, now)
                ).fetchone()
                if row is not None:
                    if row[2] != key_sha256:
                        raise Rejection(ReasonCode.LEASE_HELD, f"secrets.{grant.name}", row[0])
                    leases.append(Lease(key, row[0], grant.name, row[1]))
                    continue
                lease = Lease(key, str(uuid4()), grant.name, end_of(release, grant, now))
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
