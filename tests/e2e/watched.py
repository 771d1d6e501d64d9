"""Admission's view of a real cluster, fed as the webhook's own ServiceAccount, and hands that change what it sees.

Here the test, not the controller, writes attestations and the Lease, as someone who breaks the glass.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from admission.clock import system_clock
from admission.decision import BindingRequest, Deny, decide_binding
from admission.kinds import attestation_manifest
from admission.kube import KubeClient
from admission.live_view import LiveClusterView
from admission.results import InMemorySequences, ResultVerifier
from admission.serving_certificate import KINDS
from tests.admission.world import AUDIENCE, IMAGE, ISSUER, Signer, a_result
from tests.e2e import pods
from tests.e2e.client import Client
from tests.e2e.control_plane import ControlPlane
from tests.e2e.install import NAMESPACE, WEBHOOKS, apply, install_manifests
from tests.e2e.programs import wait_until
from tests.e2e.system import by_address
from verifier.wire.codes import ReasonCode

CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1"
GROUP = "/apis/nodewarden.dev/v1alpha1"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/nodewarden-system/leases"
NODE = "fake-0"
BOOT = "11111111-2222-4333-8444-555555555555"
POLICY = {
    "apiVersion": "nodewarden.dev/v1alpha1",
    "kind": "NodeTrustPolicy",
    "metadata": {"name": "h200-prod"},
    "spec": {"baselines": [{"name": "h200-prod", "floor": "4.1.0"}], "minRemainingValidity": "1s"},
}


def a_workload(namespace: str) -> dict[str, Any]:
    return {
        "apiVersion": "nodewarden.dev/v1alpha1",
        "kind": "SensitiveWorkload",
        "metadata": {"name": namespace},
        "spec": {
            "subjects": [{"namespace": namespace, "serviceAccount": "llm"}],
            "policyRef": "h200-prod",
            "images": [IMAGE],
        },
    }


@dataclass
class Watched:
    """A live view, and hands that change what it sees."""

    plane: ControlPlane
    admin: Client
    namespace: str
    client: KubeClient
    verifier: Signer
    reported: list[ReasonCode] = field(default_factory=list)
    offset_seconds: float = 0.0

    def __post_init__(self) -> None:
        self.view = self.another_view()

    def another_view(self) -> LiveClusterView:
        """A view that remembers nothing yet; its clock is ahead by `offset_seconds`."""
        verifier = ResultVerifier(self.verifier.key_set, ISSUER, AUDIENCE, InMemorySequences())
        clock = lambda: time.monotonic() + self.offset_seconds  # noqa: E731 - one line, and it needs `self`
        return LiveClusterView(self.client, verifier, lambda failure: self.reported.append(failure.code), clock)

    def renew(self) -> None:
        at = datetime.fromtimestamp(time.time_ns() / 1e9, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": "nodewarden-results", "namespace": "nodewarden-system"},
            "spec": {"holderIdentity": "test", "renewTime": at},
        }
        self.admin.must_apply(f"{LEASES}/nodewarden-results", lease)

    def attest(self, token: str | None = None, **changes: Any) -> str:
        """Writes the NodeAttestation of NODE, signed by the verifier unless `token` is given."""
        node = self.admin.must_get(f"/api/v1/nodes/{NODE}")
        now = system_clock()
        fields = {
            "node_name": NODE,
            "kubernetes_node_uid": node["metadata"]["uid"],
            "linux_boot_id": BOOT,
            "issued_at": now,
            "expires_at": now + 300,
            "sequence": time.time_ns() // 1_000_000,
        }
        token = token or self.verifier.result(a_result(**{**fields, **changes}))
        manifest = attestation_manifest(NODE, node["metadata"]["uid"], token)
        path = f"{GROUP}/nodeattestations/{NODE}"
        self.admin.must_apply(path, {key: part for key, part in manifest.items() if key != "status"})
        self.admin.must_patch(f"{path}/status", {"status": manifest["status"]})
        return token

    def pod(self, name: str) -> dict[str, Any]:
        # No scheduler may take it: the test binds.
        made = pods.a_pod(name, IMAGE, serviceAccountName="llm", schedulerName="nobody")
        answer: dict[str, Any] = self.admin.must_create(pods.pods_path(self.namespace), made)
        return answer

    def decide(self, pod: dict[str, Any], view: LiveClusterView | None = None, now: int = 0) -> list[ReasonCode]:
        """Why the binding of `pod` to NODE is denied now, or at `now`; empty when it is allowed."""
        metadata = pod["metadata"]
        binding = BindingRequest(self.namespace, metadata["name"], metadata["uid"], NODE)
        decision = decide_binding((view or self.view).state(), binding, now or system_clock())
        return [failure.code for failure in decision.failures] if isinstance(decision, Deny) else []

    def reviewed(self, client: Client | None = None) -> bool:
        """Whether a review came through: the API server asked our webhook, and tells what it said."""
        bad = pods.a_pod("bad", "registry.example/other:1", serviceAccountName="llm")
        answer = (client or self.admin).create(pods.pods_path(self.namespace), bad, dry_run=True)
        return answer.denies(ReasonCode.WORKLOAD_IMAGE_NOT_ALLOWED)

    @contextmanager
    def asked_all_the_while(self) -> Iterator[None]:
        """One review after the other before, in and after the block: every one is answered."""
        ending, answered, lost = threading.Event(), [0], [0]

        def ask() -> None:
            with self.plane.as_user("prober", "system:masters") as client:
                after = 0
                while after < 10:
                    after += ending.is_set()
                    (answered if self.reviewed(client) else lost)[0] += 1

        thread = threading.Thread(target=ask)
        thread.start()
        try:
            wait_until("reviews are answered", lambda: answered[0] >= 5, 20)
            yield
        finally:
            ending.set()
            thread.join(60)
        assert (lost[0], thread.is_alive()) == (0, False)

    def until(self, codes: list[ReasonCode], pod: dict[str, Any], seconds: float = 10) -> None:
        wait_until(f"the binding is decided {codes}", lambda: self.decide(pod) == codes, seconds)


@contextmanager
def watched_namespace(plane: ControlPlane, namespace: str) -> Iterator[Watched]:
    """A view of `plane`, where Nodewarden is installed, that has read everything; `namespace` is governed."""
    with plane.as_user("e2e-admin", "system:masters", "nodewarden:break-glass") as admin:
        admin.must_create(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "llm"}})
        admin.must_patch(f"/api/v1/nodes/{NODE}/status", {"status": {"nodeInfo": {"bootID": BOOT}}})
        admin.must_create(f"{GROUP}/sensitiveworkloads", a_workload(namespace))
        account = KubeClient.from_kubeconfig(plane.service_account_kubeconfig(NAMESPACE, "nodewarden-webhook"))
        made = Watched(plane, admin, namespace, account, Signer())
        made.renew()
        made.view.start()
        try:
            wait_until("everything was read", lambda: made.view.unready() is None, 20)
            # The first Lease that is seen proves nothing, wherever it comes from.
            wait_until("the Lease was read", lambda: made.view._lease.alive_at is not None, 10)
            made.renew()
            yield made
        finally:
            made.view.stop()
            admin.delete(f"{GROUP}/sensitiveworkloads/{namespace}")
            admin.delete(f"{GROUP}/nodeattestations/{NODE}")


@contextmanager
def registered(admin: Client, url: str) -> Iterator[None]:
    """The installation's webhook configurations, which know no CA yet, for a webhook at `url`."""
    found = [m for m in install_manifests() if m["kind"] in WEBHOOKS]
    try:
        for manifest in found:
            apply(admin, by_address(manifest, url, b""))
        yield
    finally:
        for kind in KINDS:
            admin.delete(f"{CONFIGURATIONS}/{kind}/nodewarden")
