"""Leases: who holds which secret until when, recorded before the secret is read and never with its content.

A lease's key is the hash of (pod UID, node UID, boot id, secret). Asking again gives the same lease to the same pod
and binding key until it ends, and to nobody else. Records are kept by a `LeaseBook`: objects of a cluster
(`admission.cluster_leases`), or a file where there is no cluster (`admission.local_leases`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from admission.decision import Release
from admission.trust_objects import SecretGrant
from verifier.wire.encoding import canonical_json
from verifier.wire.failures import Failure

LeaseState = Literal["live", "ordered", "revoked", "ended", "unreadable"]
"""`ordered`: to be revoked, and that has no answer yet. What is `unreadable` gives no lease."""


@dataclass(frozen=True, slots=True)
class Lease:
    """One secret for one pod on one node in one boot, until `expires_at`."""

    key: str
    lease_id: str
    secret: str
    expires_at: int


def lease_key(pod_uid: str, node_uid: str, boot_id: str, secret: str) -> str:
    """SHA-256 of the JCS list [pod UID, node UID, boot id, secret]."""
    return hashlib.sha256(canonical_json([pod_uid, node_uid, boot_id, secret])).hexdigest()


def key_of(release: Release, grant: SecretGrant) -> str:
    """The key of the lease under which `release` hands `grant` out."""
    return lease_key(release.pod.uid, release.node.uid, release.boot_id, grant.name)


def end_of(release: Release, grant: SecretGrant, now: int) -> int:
    """When a lease that begins now ends: with the result, or after the grant's ttl if that is sooner."""
    return min(release.result.expires_at, now + grant.ttl_seconds)


class LeaseBook(Protocol):
    """Where leases are recorded."""

    def unready(self) -> Failure | None:
        """Why no lease can be given now; None while the book is as good as what it is a copy of."""
        ...

    def count(self, now: int) -> Mapping[LeaseState, int]:
        """How many leases are recorded, by their state. Raises Unavailable `store-unavailable`."""
        ...

    def take(self, release: Release, key_sha256: str, now: int) -> tuple[Lease, ...]:
        """A recorded lease for each grant of `release`, in its order; those that run already are returned unchanged.

        `key_sha256` is the binding key's thumbprint. Raises Rejection `lease-revoked` when one was revoked or shall
        be, `lease-held` when a running one was given to another binding key; Unavailable when one cannot be recorded.
        """
        ...

    def require_standing(self, leases: tuple[Lease, ...]) -> None:
        """None of `leases` was revoked since it was taken, as far as is known.

        Raises Rejection `lease-revoked`; Unavailable when it cannot be told.
        """
        ...
