"""Acts on orders to revoke leases, and forgets records that have served their time.

An order is obeyed in memory the moment the watch tells it (`LeaseRecord.standing`). What is done here is the rest:
the backend ends what it can, and the record says so (`revokedAt`, condition `Revoked`), tried until it is done. While
that fails the condition says for what.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from admission.broker_metrics import BrokerMeter
from admission.clock import Clock
from admission.cluster_leases import RELEASES, REQUEST_SECONDS, ClusterLeases
from admission.cluster_view import AdmissionState
from admission.kube import MERGE_PATCH, KubeClient, KubeConflict, KubeNotFound
from admission.lease_records import LeaseRecord, failing_status, revoked_status
from admission.sealed_store import SecretBackend
from admission.work_queue import WorkQueue
from verifier.wire.failures import Refusal

KEEP_ENDED_SECONDS = 24 * 3600
"""A record stays for a day after its lease ended, for whoever asks where a secret went; the log keeps it longer."""
KEEP_REVOKED_SECONDS = 7 * 24 * 3600
"""A revoked one stays for a week, and in any case as long as its pod: it is what denies the pod the secret."""
SWEEP_SECONDS = 60.0
WORKERS = 4


class Revocations:
    """Revokes and forgets the leases of `leases`, from threads of its own."""

    def __init__(
        self,
        leases: ClusterLeases,
        client: KubeClient,
        backend: SecretBackend,
        state: Callable[[], AdmissionState],
        clock: Clock,
        meter: BrokerMeter | None = None,
    ) -> None:
        self._meter = BrokerMeter() if meter is None else meter
        self._leases, self._client, self._backend = leases, client, backend
        self._state, self._clock = state, clock
        self._queue: WorkQueue[str] = WorkQueue(self.reconcile)
        self._stop = threading.Event()
        leases.on_order(self._queue.add)

    def start(self) -> None:
        """Works until `stop`; to be called before the leases are read, so that no order is missed."""
        for _ in range(WORKERS):
            threading.Thread(target=self._queue.work, name="revocation", daemon=True).start()
        threading.Thread(target=self._sweep_for_ever, name="lease sweep", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()
        self._queue.stop()

    def reconcile(self, name: str) -> None:
        """Does what is due about one record. Raises Refusal when it is to be tried again."""
        record = self._leases.get(name)
        if record is None:
            return
        if record.open:
            self._revoke(record)
        elif self._served(record, self._clock()):
            self._forget(record)

    def sweep(self) -> None:
        """Everything that is due is in the queue."""
        now = self._clock()
        for record in self._leases.records():
            if record.open or self._served(record, now):
                self._queue.add(record.name)

    def _sweep_for_ever(self) -> None:
        while not self._stop.wait(SWEEP_SECONDS):
            try:
                self.sweep()
            except Exception as error:  # noqa: BLE001 - a thread that ends silently would let records pile up
                structlog.get_logger().error("lease_sweep_failed", error=type(error).__name__)

    def _revoke(self, record: LeaseRecord) -> None:
        try:
            message = self._backend.end_lease(record.secret, record.uid)
        except Refusal as refusal:
            self._meter.revocation("failed")
            self._write(record, failing_status(record, str(refusal), self._clock()))
            raise
        if self._write(record, revoked_status(record, message, self._clock())):
            self._meter.revocation("done")
            structlog.get_logger().info(
                "lease_revoked",
                lease_id=record.uid,
                secret=record.secret,
                pod=f"{record.namespace}/{record.pod_name}",
                pod_uid=record.pod_uid,
                node=record.node_name,
            )

    def _write(self, record: LeaseRecord, status: dict[str, object] | None) -> bool:
        if status is None:
            return False
        # Of this version only: the conditions are one list, which the controller writes too.
        body = {"metadata": {"uid": record.uid, "resourceVersion": record.version}, "status": status}
        path = f"{RELEASES}/{record.name}/status"
        try:
            self._client.request("PATCH", path, body, content_type=MERGE_PATCH, timeout_seconds=REQUEST_SECONDS)
        except KubeNotFound:
            return False
        return True

    def _served(self, record: LeaseRecord, now: int) -> bool:
        """Whether the record is of no more use: long ended, answered, and denying nothing to a pod that still is."""
        if record.open:
            return False
        if not record.revoked:
            return now - record.expires_at > KEEP_ENDED_SECONDS
        return now - record.expires_at > KEEP_REVOKED_SECONDS and not self._pod_may_be(record)

    def _pod_may_be(self, record: LeaseRecord) -> bool:
        state = self._state()
        if state.stale(record.namespace) is not None:
            return True
        pod = state.pod(record.namespace, record.pod_name)
        return pod is not None and pod.uid == record.pod_uid

    def _forget(self, record: LeaseRecord) -> None:
        try:
            self._leases.delete(record)
        except KubeNotFound:
            return
        except KubeConflict:
            # Changed since: the watch tells, and the next sweep looks again.
            return
