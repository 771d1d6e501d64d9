"""Leases as SecretRelease objects: all replicas of the broker see the same ones, and a restart forgets none.

An object's name is its lease's key, so that two replicas cannot give two leases for one key: the second one finds the
first one's. Known records are in memory, fed by a watch; only a lease that begins asks the API server.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping

from admission.decision import Release
from admission.informers import Informer, Key
from admission.kube import KubeClient, KubeConflict, KubeNotFound
from admission.lease_records import LeaseRecord, read_record, release_object
from admission.leases import Lease, LeaseState, key_of
from admission.trust_objects import SecretGrant
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure, Refusal, Unavailable

RELEASES = "/apis/nodewarden.dev/v1alpha1/secretreleases"
MAX_SILENCE_SECONDS = 30.0
"""A watch that is silent for longer counts for nothing: what it lost may be an order to revoke."""
REQUEST_SECONDS = 5.0
_TRIES = 4
"""How often a record may change between our look at it and our write."""


class ClusterLeases:
    """A `LeaseBook` of the objects that `client` sees. `start` once; then safe to use from any thread."""

    def __init__(self, client: KubeClient, clock: Callable[[], float] = time.monotonic) -> None:
        self._client, self._clock = client, clock
        self._opened: Callable[[str], None] = lambda _: None
        self._informer: Informer[LeaseRecord] = Informer(
            client, RELEASES, read_record, clock=clock, on_change=self._changed
        )

    def on_order(self, opened: Callable[[str], None]) -> None:
        """`opened` hears the name of each record whose order waits for an answer, in the watch's thread."""
        self._opened = opened

    def start(self) -> None:
        """Begins to list and watch; until the first list is complete nothing is leased."""
        self._informer.start()

    def stop(self) -> None:
        self._informer.stop()

    def get(self, name: str) -> LeaseRecord | None:
        """The record of that name, where it can be read."""
        return self._informer.get(name)

    def records(self) -> list[LeaseRecord]:
        """All records that can be read, of one moment."""
        return self._informer.values()

    # --- LeaseBook ---

    def unready(self) -> Failure | None:
        alive_at, limit = self._informer.alive_at, f"within {MAX_SILENCE_SECONDS:.0f} s"
        if alive_at is None:
            return Failure(ReasonCode.VIEW_STALE, "view.secretreleases", "never heard of", limit)
        silence = self._clock() - alive_at
        if silence < MAX_SILENCE_SECONDS:
            return None
        return Failure(ReasonCode.VIEW_STALE, "view.secretreleases", f"silent for {silence:.0f} s", limit)

    def count(self, now: int) -> Mapping[LeaseState, int]:
        """As `LeaseBook.count`."""
        found: Counter[LeaseState] = Counter({"live": 0, "ordered": 0, "revoked": 0, "ended": 0, "unreadable": 0})
        records = self._informer.moment()[1].values()
        found.update("unreadable" if isinstance(one, Failure) else one.state(now) for one in records)
        return found

    def take(self, release: Release, key_sha256: str, now: int) -> tuple[Lease, ...]:
        """As `LeaseBook.take`. Raises Unavailable `view-stale`, `lease-not-recorded`.

        A record may be left behind where a later one of the same request is refused: it shows a lease under which
        nothing was released, and serves the next try.
        """
        self._require_heard()
        known = [(grant, self._find(key_of(release, grant))) for grant in release.grants]
        for _, record in known:
            # All before the first is written: a request of which one part was revoked leaves nothing behind.
            if isinstance(record, LeaseRecord):
                record.standing(key_sha256, now)
        return tuple(self._leased(release, grant, record, key_sha256, now) for grant, record in known)

    def require_standing(self, leases: tuple[Lease, ...]) -> None:
        """As `LeaseBook.require_standing`. Raises Unavailable `view-stale`, `lease-not-recorded` as `take` does."""
        self._require_heard()
        for lease in leases:
            record = self._find(lease.key)
            if isinstance(record, Failure):
                # What cannot be read may be a revocation.
                raise _unreadable(lease.key, record)
            if record is not None:
                record.require_not_revoked()

    def _require_heard(self) -> None:
        stale = self.unready()
        if stale is not None:
            raise Unavailable(stale.code, stale.claim, stale.observed, stale.expected)

    def _leased(
        self, release: Release, grant: SecretGrant, record: LeaseRecord | Failure | None, key_sha256: str, now: int
    ) -> Lease:
        path = f"{RELEASES}/{key_of(release, grant)}"
        try:
            for _ in range(_TRIES):
                if isinstance(record, Failure):
                    # Attack, or a newer version's object: what cannot be read may be a revocation.
                    raise _unreadable(key_of(release, grant), record)
                if record is None:
                    record = self._create(release, grant, key_sha256, now)
                else:
                    lease = record.standing(key_sha256, now)
                    if lease is not None:
                        return lease
                    self._remove(record)
                    record = self._fetch(path)
        except Refusal as refusal:
            if refusal.code in (ReasonCode.LEASE_REVOKED, ReasonCode.LEASE_HELD, ReasonCode.LEASE_NOT_RECORDED):
                raise
            raise _unrecorded(path, refusal) from refusal
        raise Unavailable(ReasonCode.LEASE_NOT_RECORDED, path, "changes faster than it can be read")

    def _create(self, release: Release, grant: SecretGrant, key_sha256: str, now: int) -> LeaseRecord | None:
        body = release_object(release, grant, key_sha256, now)
        try:
            return read_record(self._client.request("POST", RELEASES, body, timeout_seconds=REQUEST_SECONDS))
        except KubeConflict:
            # Recorded since we last heard, by a replica or by ourselves.
            return self._fetch(f"{RELEASES}/{body['metadata']['name']}")

    def _fetch(self, path: str) -> LeaseRecord | None:
        try:
            return read_record(self._client.request("GET", path, timeout_seconds=REQUEST_SECONDS))
        except KubeNotFound:
            return None

    def _remove(self, record: LeaseRecord) -> None:
        # Exactly what we know: an order to revoke that came since makes it another version, and stays.
        try:
            self.delete(record)
        except (KubeNotFound, KubeConflict):
            return

    def delete(self, record: LeaseRecord) -> None:
        """The record is gone, if it is still as it is known. Raises as `KubeClient.request`."""
        conditions = {"preconditions": {"uid": record.uid, "resourceVersion": record.version}}
        self._client.request("DELETE", f"{RELEASES}/{record.name}", conditions, timeout_seconds=REQUEST_SECONDS)

    def _find(self, name: str) -> LeaseRecord | Failure | None:
        return self._informer.moment()[1].get(("", name))

    def _changed(self, _key: Key, _old: LeaseRecord | None, new: LeaseRecord | None) -> None:
        if new is not None and new.open:
            self._opened(new.name)


def _unreadable(name: str, failure: Failure) -> Unavailable:
    return Unavailable(ReasonCode.LEASE_NOT_RECORDED, f"{RELEASES}/{name}", failure.line())


def _unrecorded(path: str, refusal: Refusal) -> Unavailable:
    return Unavailable(ReasonCode.LEASE_NOT_RECORDED, path, f"{refusal.code.value}: {refusal.failure.observed}")
