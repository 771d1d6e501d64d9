"""Leader election by a Lease (coordination.k8s.io/v1): of several replicas, only one writes.

A holder counts itself as such only until `RENEW_SECONDS` after its last successful renewal, by its own monotonic
clock; others wait until they have seen no renewal for the whole `LEASE_SECONDS`, by theirs. So two clocks never meet.

A leader that does not hear the verifier is of no use while another replica does. It says so in the Lease; a replica
that hears the verifier asks for the lead there; the leader stops writing, then gives the Lease back, and stays away
for `STAY_AWAY_SECONDS`. While nobody hears the verifier nobody asks, and the leader goes on with what is known: what
was proved still ends in time, and pods are still evicted. Attack: whoever may write the Lease could take the lead
anyway, so that these words in it need no more trust than the rest of it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from admission.controller.lease_object import lease_path, lease_times
from admission.kube import KubeClient, KubeConflict, KubeNotFound
from verifier.wire.failures import Refusal

LEASE_NAME = "nodewarden-controller"
LEASE_SECONDS = 10.0
RENEW_SECONDS = 7.0
RETRY_SECONDS = 1.5
DEAF_SECONDS = 5.0
"""For how long a leader's stream has been dead when it says so. With the ten seconds until a silent stream counts as
dead, and three rounds until another leads, results flow again before webhook and broker deny (30 s)."""
STAY_AWAY_SECONDS = 6.0
"""Four rounds for whoever asked."""
DEAF = "nodewarden.dev/deaf"
"""Annotation of the Lease, there while its holder does not hear the verifier."""
WANTED_BY = "nodewarden.dev/wanted-by"
"""Annotation of the Lease: a replica that hears the verifier and asks a deaf holder for the lead."""


class Leadership:
    """One candidate, named `identity`. `run` blocks in a thread of its own; `holds` may be asked from any other."""

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        identity: str,
        hears: Callable[[], bool],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`hears` says whether the verifier's stream is alive here, now."""
        self._client, self._namespace, self._identity = client, namespace, identity
        self._hears, self._monotonic = hears, monotonic
        self._held_until = 0.0
        self._seen: tuple[str, float] = ("", 0.0)
        self._heard_at = monotonic()
        self._away_until = 0.0
        self._stop = threading.Event()

    def holds(self) -> bool:
        """Whether this replica may write, now."""
        return self._monotonic() < self._held_until

    def run(self) -> None:
        """Renews, or waits to take over, until `stop`; then gives the Lease back so that another need not wait."""
        while not self._stop.is_set():
            self.round()
            self._stop.wait(RETRY_SECONDS)
        if self.holds():
            self._give_back()

    def stop(self) -> None:
        self._stop.set()

    def round(self) -> None:
        """Looks at the Lease once, and renews it, takes it, asks for it, or gives it back."""
        began = self._monotonic()
        if self._hears():
            self._heard_at = began
        try:
            if self._renewed():
                self._held_until = began + RENEW_SECONDS
        except KubeConflict:
            self._held_until = 0.0  # another replica wrote it: look again before writing anything
        except Refusal as refusal:
            structlog.get_logger().warning("leadership_not_renewed", reason=str(refusal))

    def _renewed(self) -> bool:
        path = lease_path(self._namespace, LEASE_NAME)
        try:
            lease = self._client.request("GET", path, timeout_seconds=RETRY_SECONDS * 2)
        except KubeNotFound:
            self._client.request("POST", lease_path(self._namespace), self._object({}), timeout_seconds=RETRY_SECONDS)
            return True
        spec, said = lease.get("spec") or {}, lease["metadata"].get("annotations") or {}
        holder, version = spec.get("holderIdentity") or "", lease["metadata"]["resourceVersion"]
        if holder not in ("", self._identity) and not self._abandoned(version):
            self._held_until = 0.0
            if DEAF in said and WANTED_BY not in said and self._hears():
                self._ask(path, lease, said)
            return False
        if holder == self._identity and self._deaf() and WANTED_BY in said:
            structlog.get_logger().warning("leadership_left", identity=self._identity, to=said[WANTED_BY])
            self._away_until = self._monotonic() + STAY_AWAY_SECONDS
            self._give_back()
            return False
        if holder != self._identity and self._monotonic() < self._away_until:
            return False
        self._client.request("PUT", path, self._object(lease), timeout_seconds=RETRY_SECONDS * 2)
        return True

    def _deaf(self) -> bool:
        return self._monotonic() - self._heard_at >= DEAF_SECONDS

    def _ask(self, path: str, lease: dict[str, Any], said: Mapping[str, str]) -> None:
        lease["metadata"]["annotations"] = {**said, WANTED_BY: self._identity}
        try:
            self._client.request("PUT", path, lease, timeout_seconds=RETRY_SECONDS * 2)
        except KubeConflict:
            return  # the holder renewed it meanwhile: asked again at the next round

    def _abandoned(self, version: str) -> bool:
        now = self._monotonic()
        if self._seen[0] != version:
            self._seen = (version, now)
        return now - self._seen[1] >= LEASE_SECONDS

    def _object(self, lease: Mapping[str, Any]) -> dict[str, Any]:
        spec = lease.get("spec") or {}
        same = spec.get("holderIdentity") == self._identity
        transitions = int(spec.get("leaseTransitions") or 0)
        times = lease_times()
        metadata: dict[str, Any] = {"name": LEASE_NAME, **_version(lease)}
        if self._deaf():
            metadata["annotations"] = {DEAF: "true"}
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            # With the version that was read: a race has one winner.
            "metadata": metadata,
            "spec": {
                "holderIdentity": self._identity,
                "leaseDurationSeconds": int(LEASE_SECONDS),
                "acquireTime": spec.get("acquireTime") if same else times,
                "renewTime": times,
                "leaseTransitions": transitions if same else transitions + 1,
            },
        }

    def _give_back(self) -> None:
        self._held_until = 0.0  # first: nothing is written any more once another may hold it
        try:
            path = lease_path(self._namespace, LEASE_NAME)
            lease = self._client.request("GET", path)
            if (lease.get("spec") or {}).get("holderIdentity") == self._identity:
                lease["spec"]["holderIdentity"] = ""
                lease["metadata"].pop("annotations", None)
                self._client.request("PUT", path, lease)
        except Refusal as refusal:
            structlog.get_logger().warning("leadership_not_given_back", reason=str(refusal))


def _version(lease: Mapping[str, Any]) -> dict[str, str]:
    version = (lease.get("metadata") or {}).get("resourceVersion")
    return {} if version is None else {"resourceVersion": version}
