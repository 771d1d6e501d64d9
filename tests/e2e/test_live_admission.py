"""Admission's view of a real cluster: what it follows, when it stops believing itself, and whom it believes."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from admission.clock import system_clock
from admission.cluster_events import EventWriter, notice_of
from admission.decision import Allow, BindingRequest, Deny, decide_binding, decide_pod_create
from admission.kinds import attestation_manifest
from admission.kube import KubeClient, KubeDenied
from admission.live_view import LiveClusterView
from admission.results import InMemorySequences, ResultVerifier
from admission.review import parse_review
from admission.server import server_of
from admission.serving_certificate import ManagedCertificate
from admission.settings import Listen, ManagedTls
from admission.webhook import Gates, validate, webhook_app
from tests.admission.served import serving
from tests.admission.test_webhook import a_review
from tests.admission.world import AUDIENCE, IMAGE, ISSUER, Signer, a_pod, a_result
from tests.e2e import pods
from tests.e2e.client import Client
from tests.e2e.control_plane import BROKER_AUDIENCE, ControlPlane, Options, control_plane
from tests.e2e.install import CRDS, apply, documents, wait_until_served
from tests.e2e.programs import wait_until
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Rejection

GROUP = "/apis/nodewarden.dev/v1alpha1"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/nodewarden-system/leases"
NODE = "fake-0"
BOOT = "11111111-2222-4333-8444-555555555555"
POLICY = {
    "apiVersion": "nodewarden.dev/v1alpha1",
    "kind": "NodeTrustPolicy",
    "metadata": {"name": "h200-prod"},
    "spec": {"baselines": [{"name": "h200-prod", "floor": "4.1.0"}]},
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


@pytest.fixture(scope="module")
def plane(folder: Path) -> Iterator[ControlPlane]:
    """A control plane of its own: here the test, not the controller, writes attestations and the Lease."""
    with control_plane(folder / "live", Options(nodes=2)) as running:
        for crd in documents(CRDS):
            apply(running.admin, crd)
        wait_until_served(running.admin, "nodewarden.dev/v1alpha1")
        running.admin.must_create("/api/v1/namespaces", {"metadata": {"name": "nodewarden-system"}})
        running.admin.must_create(f"{GROUP}/nodetrustpolicies", POLICY)
        yield running


@dataclass
class Watched:
    """A live view, and hands that change what it sees."""

    plane: ControlPlane
    namespace: str
    view: LiveClusterView
    client: KubeClient
    verifier: Signer
    reported: list[ReasonCode]
    offset_seconds: float = 0.0

    @property
    def admin(self) -> Client:
        return self.plane.admin

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

    def decide(self, pod: dict[str, Any], node: str = NODE) -> list[ReasonCode]:
        """Why the binding of `pod` is denied now; empty when it is allowed."""
        metadata = pod["metadata"]
        binding = BindingRequest(self.namespace, metadata["name"], metadata["uid"], node)
        decision = decide_binding(self.view.state(), binding, system_clock())
        return [failure.code for failure in decision.failures] if isinstance(decision, Deny) else []

    def until(self, codes: list[ReasonCode], pod: dict[str, Any], seconds: float = 10) -> None:
        wait_until(f"the binding is decided {codes}", lambda: self.decide(pod) == codes, seconds)


@pytest.fixture
def watched(plane: ControlPlane, namespace: str) -> Iterator[Watched]:
    plane.admin.must_create(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "llm"}})
    plane.admin.must_patch(f"/api/v1/nodes/{NODE}/status", {"status": {"nodeInfo": {"bootID": BOOT}}})
    plane.admin.must_create(f"{GROUP}/sensitiveworkloads", a_workload(namespace))
    signer, reported = Signer(), list[ReasonCode]()
    verifier = ResultVerifier(signer.key_set, ISSUER, AUDIENCE, InMemorySequences())
    client = KubeClient.from_kubeconfig(plane.kubeconfigs["admin"])
    made = Watched(plane, namespace, None, client, signer, reported)  # type: ignore[arg-type]  # - set below
    clock = lambda: time.monotonic() + made.offset_seconds  # noqa: E731 - one line, and it needs `made`
    made.view = LiveClusterView(client, verifier, lambda failure: reported.append(failure.code), clock)
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
        plane.admin.delete(f"{GROUP}/sensitiveworkloads/{namespace}")
        plane.admin.delete(f"{GROUP}/nodeattestations/{NODE}")


def test_the_view_follows_pods_results_and_nodes(watched: Watched) -> None:
    pod = watched.pod("p")
    watched.until([ReasonCode.RESULT_MISSING], pod)
    watched.attest()
    watched.until([], pod, 2)
    watched.admin.must_patch(f"/api/v1/nodes/{NODE}/status", {"status": {"nodeInfo": {"bootID": "another"}}})
    watched.until([ReasonCode.BOOT_MISMATCH], pod, 2)
    watched.admin.delete(pods.pods_path(watched.namespace, "p"), grace_seconds=0)
    watched.until([ReasonCode.POD_UNKNOWN], pod, 2)


def test_a_result_that_the_verifier_did_not_sign_counts_for_nothing_whoever_writes_it(watched: Watched) -> None:
    pod = watched.pod("p")
    good = watched.attest()
    watched.until([], pod)
    node = watched.admin.must_get(f"/api/v1/nodes/{NODE}")
    forged = a_result(node_name=NODE, kubernetes_node_uid=node["metadata"]["uid"], linux_boot_id=BOOT)
    watched.attest(Signer("key-1").result(forged))
    watched.until([ReasonCode.RESULT_SIGNATURE_INVALID], pod)
    assert ReasonCode.RESULT_SIGNATURE_INVALID in watched.reported
    watched.attest()
    watched.until([], pod)
    # The same bytes that were good before a newer one came: an old verdict, replayed with the controller's rights.
    watched.attest(good)
    watched.until([ReasonCode.RESULT_ROLLED_BACK], pod)


def test_a_node_made_anew_under_its_old_name_does_not_inherit_the_result(watched: Watched) -> None:
    pod = watched.pod("p")
    watched.attest()
    watched.until([], pod)
    node = watched.admin.must_get(f"/api/v1/nodes/{NODE}")
    watched.admin.delete(f"/api/v1/nodes/{NODE}")
    kept = {key: node["metadata"][key] for key in ("name", "annotations", "labels")}
    watched.admin.must_create("/api/v1/nodes", {"metadata": kept})
    watched.admin.must_patch(f"/api/v1/nodes/{NODE}/status", {"status": {"nodeInfo": {"bootID": BOOT}}})
    watched.until([ReasonCode.RESULT_NODE_MISMATCH], pod)


def test_without_renewals_of_the_lease_nothing_is_bound_and_pods_may_still_be_created(watched: Watched) -> None:
    pod = watched.pod("p")
    watched.attest()
    watched.until([], pod)
    watched.offset_seconds += 14.0
    # The watches live on, by themselves; only the Lease does not.
    wait_until("the watches live", lambda: watched.view.unready() is None, 20)
    watched.offset_seconds += 14.0
    wait_until("the watches live", lambda: watched.view.unready() is None, 20)
    watched.offset_seconds += 14.0
    watched.until([ReasonCode.RESULTS_STALE], pod, 20)
    asked = replace(a_pod(), namespace=watched.namespace)
    assert decide_pod_create(watched.view.state(), asked, system_clock()) == Allow()
    watched.renew()
    watched.until([], pod, 3)


def test_a_view_that_hears_nothing_stops_deciding_and_goes_on_when_it_hears_again(watched: Watched) -> None:
    pod = watched.pod("p")
    watched.attest()
    watched.until([], pod)
    watched.offset_seconds += 31.0
    assert watched.decide(pod) == [ReasonCode.VIEW_STALE]
    failure = watched.view.unready()
    assert failure is not None
    assert failure.code is ReasonCode.VIEW_STALE
    # By itself, within the life of a watch.
    wait_until("the watches live again", lambda: watched.view.unready() is None, 20)
    watched.renew()
    watched.until([], pod, 3)


def test_a_namespace_is_watched_from_the_moment_a_workload_governs_it(watched: Watched) -> None:
    other = f"{watched.namespace}-late"
    watched.admin.must_create("/api/v1/namespaces", {"metadata": {"name": other}})
    asked = replace(a_pod(), namespace=other, images=())
    assert decide_pod_create(watched.view.state(), asked, system_clock()) == Allow()
    watched.admin.must_create(f"{GROUP}/sensitiveworkloads", a_workload(other))
    bad = replace(a_pod(), namespace=other, tolerations=(), images=a_pod().images, service_account="llm", node_name="x")

    def codes() -> list[ReasonCode]:
        decision = decide_pod_create(watched.view.state(), bad, system_clock())
        return [failure.code for failure in decision.failures] if isinstance(decision, Deny) else []

    wait_until("it is governed", lambda: ReasonCode.NODE_NAME_SET_DIRECTLY in codes(), 10)
    watched.admin.delete(f"{GROUP}/sensitiveworkloads/{other}")
    wait_until("it is not governed any more", lambda: codes() == [], 10)
    watched.admin.delete(f"/api/v1/namespaces/{other}")


def test_a_pods_token_is_the_pods_and_a_deleted_pods_token_is_nobodys(watched: Watched) -> None:
    pod = watched.pod("p")
    binding = {
        "metadata": {"name": "p", "uid": pod["metadata"]["uid"]},
        "target": {"kind": "Node", "name": NODE},
    }
    watched.admin.must_create(pods.pods_path(watched.namespace, "p", "binding"), binding)
    bound = {"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": pod["metadata"]["uid"]}
    token = watched.plane.token(watched.namespace, "llm", audience=BROKER_AUDIENCE, bound_to=bound)
    identity = watched.view.check_token(token, system_clock())
    node = watched.admin.must_get(f"/api/v1/nodes/{NODE}")
    assert (identity.namespace, identity.service_account, identity.pod_name) == (watched.namespace, "llm", "p")
    assert (identity.pod_uid, identity.node_name) == (pod["metadata"]["uid"], NODE)
    assert identity.node_uid == node["metadata"]["uid"]

    unbound = watched.plane.token(watched.namespace, "llm", audience=BROKER_AUDIENCE)
    with pytest.raises(Rejection) as caught:
        watched.view.check_token(unbound, system_clock())
    assert caught.value.code is ReasonCode.TOKEN_NOT_POD_BOUND
    for other in (watched.plane.token(watched.namespace, "llm", bound_to=bound), token + "x", ""):
        with pytest.raises(Rejection) as caught:
            watched.view.check_token(other, system_clock())
        assert caught.value.code is ReasonCode.TOKEN_INVALID

    watched.admin.delete(pods.pods_path(watched.namespace, "p"), grace_seconds=0)

    def refused() -> bool:
        try:
            watched.view.check_token(token, system_clock())
        except Rejection as rejection:
            return rejection.code is ReasonCode.TOKEN_INVALID
        return False

    wait_until("the API server refuses the token", refused, 20)


def test_the_api_server_trusts_the_certificate_that_the_webhook_made_and_also_the_next_one(watched: Watched) -> None:
    admin, now = watched.admin, [system_clock()]
    settings = ManagedTls(secret="webhook-tls", names=["localhost"], configuration="live-test")
    managed = ManagedCertificate(watched.client, settings, lambda: now[0])
    # Nothing to inject into yet: not ready.
    managed.refresh()
    assert managed.unready() is not None
    app = webhook_app(watched.view.state, managed.refresh, 60, system_clock, gates=Gates())
    with serving(server_of(app, Listen(port=0), managed.hot)) as address:
        rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
        hook = {
            "name": "pods.live-test.dev",
            "clientConfig": {"url": f"{address.replace('127.0.0.1', 'localhost')}/validate"},
            "rules": [rule],
            "failurePolicy": "Fail",
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": watched.namespace}},
        }
        root = "/apis/admissionregistration.k8s.io/v1"
        metadata = {"name": "live-test"}
        for kind, hooks in (("validating", [hook]), ("mutating", [])):
            admin.must_create(f"{root}/{kind}webhookconfigurations", {"metadata": metadata, "webhooks": hooks})
        try:
            managed.refresh()
            assert managed.unready() is None
            bad = pods.a_pod("bad", "registry.example/other:1", serviceAccountName="llm")
            path = pods.pods_path(watched.namespace)
            wait_until(
                "the webhook is asked",
                lambda: admin.create(path, bad, dry_run=True).denies(ReasonCode.WORKLOAD_IMAGE_NOT_ALLOWED),
                20,
            )
            first = managed._bundle
            # Half a CA's life later there are two CAs, and after their day the new one signs: all still trusted.
            now[0] += 183 * 86_400
            managed.refresh()
            second = managed._bundle
            assert len(second.authorities) == 2
            assert second.authorities[0] == first.authorities[0]
            assert second.serving != first.serving
            found = admin.must_get(f"{root}/validatingwebhookconfigurations/live-test")
            assert base64.b64decode(found["webhooks"][0]["clientConfig"]["caBundle"]) == second.ca_bundle
            other = ManagedCertificate(watched.client, settings, lambda: now[0])
            # Another replica serves what the Secret says.
            assert other._bundle == second
            other.close()
        finally:
            managed.close()
            for kind in ("validating", "mutating"):
                admin.delete(f"{root}/{kind}webhookconfigurations/live-test")


def test_a_denial_is_told_on_the_pod_and_on_the_replica_set_that_made_it(watched: Watched) -> None:
    template = {
        "metadata": {"labels": {"app": "llm"}},
        "spec": pods.a_pod("x", IMAGE, serviceAccountName="llm", schedulerName="nobody")["spec"],
    }
    template["spec"].pop("terminationGracePeriodSeconds")
    replicas = {"selector": {"matchLabels": {"app": "llm"}}, "replicas": 1, "template": template}
    metadata = {"name": "llm", "namespace": watched.namespace}
    watched.admin.must_create(
        f"/apis/apps/v1/namespaces/{watched.namespace}/replicasets", {"metadata": metadata, "spec": replicas}
    )

    def made() -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = watched.admin.must_get(pods.pods_path(watched.namespace))["items"]
        return items

    wait_until("its pod is there", lambda: len(made()) == 1, 20)
    [pod] = made()
    watched.until([ReasonCode.RESULT_MISSING], pod)
    body = {
        "kind": "Binding",
        "apiVersion": "v1",
        "metadata": {"name": pod["metadata"]["name"], "namespace": watched.namespace, "uid": pod["metadata"]["uid"]},
        "target": {"kind": "Node", "name": NODE},
    }
    fields = {"namespace": watched.namespace, "name": pod["metadata"]["name"]}
    review = parse_review(json.dumps(a_review(body, sub="binding", **fields)).encode())
    denial = validate(watched.view.state(), review, system_clock())
    assert isinstance(denial, Deny)
    writer = EventWriter(watched.client, "nodewarden-webhook", system_clock)
    writer.start()
    writer.tell(notice_of(review, denial))

    def told() -> set[str]:
        found = watched.admin.must_get(f"/api/v1/namespaces/{watched.namespace}/events")["items"]
        return {
            event["involvedObject"]["kind"]
            for event in found
            if event["reason"] == "BindingDenied" and ReasonCode.RESULT_MISSING.value in event["message"]
        }

    wait_until("both were told", lambda: told() == {"Pod", "ReplicaSet"}, 10)


def test_who_may_not_list_is_told_so_and_sees_nothing(plane: ControlPlane, namespace: str) -> None:
    config = plane.service_account_kubeconfig(namespace, "default")
    client = KubeClient.from_kubeconfig(config)
    with pytest.raises(KubeDenied) as caught:
        client.request("GET", "/api/v1/nodes")
    assert caught.value.code is ReasonCode.KUBERNETES_REFUSED
    signer = Signer()
    verifier = ResultVerifier(signer.key_set, ISSUER, AUDIENCE, InMemorySequences())
    view = LiveClusterView(client, verifier, lambda _: None)
    view.start()
    time.sleep(1)
    decision = decide_pod_create(view.state(), a_pod(), system_clock())
    assert isinstance(decision, Deny)
    assert [failure.code for failure in decision.failures] == [ReasonCode.VIEW_STALE]
    view.stop()
