"""The Lease `nodewarden-results`: renewed only as long as what the verifier says reaches the NodeAttestations.

Webhook and broker deny once they have seen no renewal for 30 seconds, by their own monotonic clock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from admission.controller.lease_object import lease_path, lease_times
from admission.controller.writer import Writer
from admission.kube import KubeNotFound
from verifier.wire.failures import Refusal

LEASE_NAME = "nodewarden-results"
RENEW_SECONDS = 5.0
CONSUMER_SECONDS = 30
"""What webhook and broker wait for; written for people, since consumers have their own."""


class ResultsHeartbeat:
    """Renews while `fresh` says so. `run` blocks in a thread of its own."""

    def __init__(self, writer: Writer, namespace: str, identity: str, fresh: Callable[[], bool]) -> None:
        self._writer, self._namespace, self._identity, self._fresh = writer, namespace, identity, fresh
        self._stop = threading.Event()

    def stop(self) -> None:
        self._stop.set()

    def run(self) -> None:
        """Renews every five seconds, or sooner once it may again, until `stop`."""
        while not self._stop.is_set():
            pause = 0.5
            if self._fresh():
                try:
                    self._renew()
                    pause = RENEW_SECONDS
                except Refusal as refusal:
                    structlog.get_logger().warning("results_lease_not_renewed", reason=str(refusal))
            self._stop.wait(pause)

    def _renew(self) -> None:
        spec = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": CONSUMER_SECONDS,
            "renewTime": lease_times(),
        }
        try:
            self._writer.merge(lease_path(self._namespace, LEASE_NAME), {"spec": spec})
        except KubeNotFound:
            lease = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": LEASE_NAME},
                "spec": spec,
            }
            self._writer.create(lease_path(self._namespace), lease)
