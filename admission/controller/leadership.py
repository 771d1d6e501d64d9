"""Leader election by a Lease (coordination.k8s.io/v1): of several replicas, only one writes.

A holder counts itself as such only until `RENEW_SECONDS` after its last successful renewal, by its own monotonic
clock; others wait until they have seen no renewal for the whole `LEASE_SECONDS`, by theirs. So two clocks never meet.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

import structlog

from admission.controller.lease_object import lease_path, lease_times
from admission.kube import KubeClient, KubeConflict, KubeNotFound
from verifier.wire.failures import Refusal

LEASE_NAME = "nodewarden-controller"
LEASE_SECONDS = 10.0
RENEW_SECONDS = 7.0
RETRY_SECONDS = 1.5


class Leadership:
    """One candidate, named `identity`. `run` blocks in a thread of its own; `holds` may be asked from any other."""

    def __init__(self, client: KubeClient, namespace: str, identity: str) -> None:
        self._client, self._namespace, self._identity = client, namespace, identity
        self._held_until = 0.0
        self._seen: tuple[str, float] = ("", 0.0)
        self._stop = threading.Event()

    def holds(self) -> bool:
        """Whether this replica may write, now."""
        return time.monotonic() < self._held_until

    def run(self) -> None:
        """Renews, or waits to take over, until `stop`; then gives the Lease back so that another need not wait."""
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                if self._renewed():
                    self._held_until = began + RENEW_SECONDS
            except KubeConflict:
                self._held_until = 0.0  # another replica wrote it: look again before writing anything
            except Refusal as refusal:
                structlog.get_logger().warning("leadership_not_renewed", reason=str(refusal))
            self._stop.wait(RETRY_SECONDS)
        self._give_back()

    def stop(self) -> None:
        self._stop.set()

    def _renewed(self) -> bool:
        path = lease_path(self._namespace, LEASE_NAME)
        try:
            lease = self._client.request("GET", path, timeout_seconds=RETRY_SECONDS * 2)
        except KubeNotFound:
            self._client.request("POST", lease_path(self._namespace), self._object({}), timeout_seconds=RETRY_SECONDS)
            return True
        spec = lease.get("spec") or {}
        holder, version = spec.get("holderIdentity") or "", lease["metadata"]["resourceVersion"]
        if holder not in ("", self._identity) and not self._abandoned(version):
            self._held_until = 0.0
            return False
        self._client.request("PUT", path, self._object(lease), timeout_seconds=RETRY_SECONDS * 2)
        return True

    def _abandoned(self, version: str) -> bool:
        now = time.monotonic()
        if self._seen[0] != version:
            self._seen = (version, now)
        return now - self._seen[1] >= LEASE_SECONDS

    def _object(self, lease: Mapping[str, Any]) -> dict[str, Any]:
        spec = lease.get("spec") or {}
        same = spec.get("holderIdentity") == self._identity
        transitions = int(spec.get("leaseTransitions") or 0)
        times = lease_times()
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            # With the version that was read: a race has one winner.
            "metadata": {"name": LEASE_NAME, **_version(lease)},
            "spec": {
                "holderIdentity": self._identity,
                "leaseDurationSeconds": int(LEASE_SECONDS),
                "acquireTime": spec.get("acquireTime") if same else times,
                "renewTime": times,
                "leaseTransitions": transitions if same else transitions + 1,
            },
        }

    def _give_back(self) -> None:
        if not self.holds():
            return
        self._held_until = 0.0
        try:
            path = lease_path(self._namespace, LEASE_NAME)
            lease = self._client.request("GET", path)
            if (lease.get("spec") or {}).get("holderIdentity") == self._identity:
                lease["spec"]["holderIdentity"] = ""
                self._client.request("PUT", path, lease)
        except Refusal as refusal:
            structlog.get_logger().warning("leadership_not_given_back", reason=str(refusal))


def _version(lease: Mapping[str, Any]) -> dict[str, str]:
    version = (lease.get("metadata") or {}).get("resourceVersion")
    return {} if version is None else {"resourceVersion": version}
