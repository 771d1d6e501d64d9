"""What a stale or half-read view decides: nothing that is sensitive, and nothing at all without the rules."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from admission import live_view
from admission.access import AccessRequest, NamespaceChange, decide_access, decide_namespace
from admission.cluster_objects import PodUid
from admission.decision import (
    Allow,
    BindingRequest,
    Deny,
    decide_binding,
    decide_pod_create,
    decide_pod_update,
    decide_release,
)
from admission.kinds import attestation_manifest
from admission.live_state import LiveState, Rules, Staleness
from admission.live_view import LiveClusterView
from admission.results import InMemorySequences, ResultVerifier
from tests.admission.scripted_api import Asked, Said, a_list, a_status, events, scripted_api
from tests.admission.world import (
    AUDIENCE,
    IMAGE,
    ISSUER,
    NODE,
    NODE_UID,
    NOW,
    POD_UID,
    Signer,
    a_node,
    a_pod,
    a_policy,
    a_result,
    a_workload,
    an_identity,
    jwk_of,
)
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure, Rejection

VECTORS = Path(__file__).parent.parent / "vectors/manifests"
STALE = Failure(ReasonCode.VIEW_STALE, "view.nodes", "silent for 31 s")
BOUND = a_pod(node_name=NODE)


def a_state(staleness: Staleness | None = None, unreadable: dict[str, Failure] | None = None) -> LiveState:
    pods = {("ml", "llm-0"): a_pod(), ("ml", "bound"): replace(BOUND, name="bound")}
    workloads = {("ml", "llm"): (a_workload(),)}
    result = a_result(binding_key=jwk_of(Signer().key.public_key()))
    return LiveState(
        pods={"ml": pods},
        nodes={("", NODE): a_node()},
        policies={("", "h200-prod"): a_policy()},
        results={("", NODE): result},
        rules=Rules(workloads, frozenset({"ml"}), unreadable or {}),
        staleness=staleness or Staleness(),
    )


def decisions(state: LiveState, namespace: str = "ml") -> dict[str, Allow | Deny | object]:
    pod = a_pod(namespace=namespace)
    return {
        "create": decide_pod_create(state, pod, NOW),
        "update": decide_pod_update(state, pod, replace(pod, labels={"a": "b"}), "tenant", NOW),
        "binding": decide_binding(state, BindingRequest(namespace, "llm-0", POD_UID, NODE), NOW),
        "access": decide_access(state, AccessRequest(namespace, "llm-0", "exec"), NOW),
        "namespace": decide_namespace(state, NamespaceChange(namespace, enforced_before=True, enforced_after=True)),
        "release": decide_release(state, an_identity(namespace=namespace, pod_name="bound"), ("llm/key",), NOW),
    }


def denied(state: LiveState, namespace: str = "ml") -> dict[str, list[ReasonCode]]:
    return {
        name: [failure.code for failure in decision.failures]
        for name, decision in decisions(state, namespace).items()
        if isinstance(decision, Deny)
    }


def test_a_fresh_state_decides_as_manifests_do() -> None:
    assert denied(a_state()) == {"access": [ReasonCode.ACCESS_FORBIDDEN]}


@pytest.mark.parametrize("staleness", [Staleness(cluster=STALE), Staleness(pods={"ml": STALE}), Staleness(rules=STALE)])
def test_a_stale_state_denies_whatever_is_asked_about_a_governed_namespace(staleness: Staleness) -> None:
    assert denied(a_state(staleness)) == {name: [ReasonCode.VIEW_STALE] for name in decisions(a_state())}


def test_without_the_rules_nothing_is_allowed_anywhere_and_with_them_other_namespaces_go_on() -> None:
    everything = {name: [ReasonCode.VIEW_STALE] for name in decisions(a_state())}
    assert denied(a_state(Staleness(rules=STALE)), "other") == everything
    assert denied(a_state(unreadable={"": STALE}), "other") == everything
    for staleness in (Staleness(cluster=STALE), Staleness(pods={"ml": STALE})):
        assert "create" not in denied(a_state(staleness), "other")
        assert "binding" not in denied(a_state(staleness), "other")


def test_without_the_lease_no_node_passes_and_pods_may_still_be_created() -> None:
    silent = Failure(ReasonCode.RESULTS_STALE, "leases.nodewarden-results", "silent for 31 s")
    codes = denied(a_state(Staleness(results=silent)))
    assert codes["binding"] == [ReasonCode.RESULTS_STALE]
    assert codes["release"] == [ReasonCode.RESULTS_STALE]
    assert "create" not in codes
    direct = decide_pod_create(a_state(Staleness(results=silent)), a_pod(node_name=NODE), NOW)
    assert isinstance(direct, Deny)
    assert [f.code for f in direct.failures] == [ReasonCode.NODE_NAME_SET_DIRECTLY, ReasonCode.RESULTS_STALE]


# --- the view over a server that says what the test wants ---


class Cluster:
    """Collections by path; watches stay silent for a moment and end."""

    def __init__(self, signer: Signer) -> None:
        found = {d["kind"]: d for d in yaml.safe_load_all((VECTORS / "cluster.yaml").read_text())}
        found["NodeTrustPolicy"]["spec"].pop("exemptions")
        pod = {
            "metadata": {"name": "llm-0", "namespace": "ml", "uid": POD_UID},
            "spec": {"serviceAccountName": "llm", "containers": [{"name": "main", "image": IMAGE}]},
        }
        attestation = attestation_manifest(NODE, NODE_UID, signer.result(a_result()))
        group = "/apis/nodewarden.dev/v1alpha1"
        self.items: dict[str, list[dict[str, Any]]] = {
            "/api/v1/nodes": [found["Node"]],
            "/api/v1/namespaces/ml/pods": [pod],
            f"{group}/nodetrustpolicies": [found["NodeTrustPolicy"]],
            f"{group}/sensitiveworkloads": [found["SensitiveWorkload"]],
            f"{group}/nodeattestations": [attestation],
            "/apis/coordination.k8s.io/v1/namespaces/nodewarden-system/leases": [self.lease("0")],
        }
        self.renewals = 0

    @staticmethod
    def lease(at: str) -> dict[str, Any]:
        metadata = {"name": "nodewarden-results", "namespace": "nodewarden-system", "resourceVersion": "2"}
        return {"metadata": metadata, "spec": {"renewTime": at}}

    def __call__(self, asked: Asked) -> Said:
        if asked.path not in self.items:
            return Said(a_status(404, "NotFound"), 404)
        if not asked.watching:
            return a_list(*json.loads(json.dumps(self.items[asked.path])))
        if asked.path.endswith("leases"):
            self.renewals += 1
            return events(("MODIFIED", self.lease(str(self.renewals))), then=lambda: time.sleep(0.2))
        return events(then=lambda: time.sleep(0.2))


@contextmanager
def viewed(folder: Path, cluster: Cluster, signer: Signer) -> Iterator[LiveClusterView]:
    verifier = ResultVerifier(signer.key_set, ISSUER, AUDIENCE, InMemorySequences())
    with scripted_api(folder, cluster) as (client, _):
        view = LiveClusterView(client, verifier, lambda _: None)
        view.start()
        try:
            yield view
        finally:
            view.stop()


def eventually(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def binding(view: LiveClusterView) -> list[ReasonCode]:
    asked = BindingRequest("ml", "llm-0", PodUid(POD_UID), NODE)
    decision = decide_binding(view.state(), asked, NOW)
    return [failure.code for failure in decision.failures] if isinstance(decision, Deny) else []


def test_before_anything_was_read_nothing_is_allowed_and_afterwards_it_is(tmp_path: Path) -> None:
    signer = Signer()
    verifier = ResultVerifier(signer.key_set, ISSUER, AUDIENCE, InMemorySequences())
    with scripted_api(tmp_path / "a", Cluster(signer)) as (client, _):
        view = LiveClusterView(client, verifier, lambda _: None)
        assert set(map(tuple, denied(view.state(), "other").values())) == {(ReasonCode.VIEW_STALE,)}
    with viewed(tmp_path / "b", Cluster(signer), signer) as view:
        eventually(lambda: binding(view) == [])
        assert view.state() is view.state()


def test_rules_that_cannot_be_read_are_not_rules_that_do_not_exist(tmp_path: Path) -> None:
    signer, cluster = Signer(), Cluster(Signer())
    [workload] = cluster.items["/apis/nodewarden.dev/v1alpha1/sensitiveworkloads"]
    workload["spec"]["futureRule"] = "strict"
    with viewed(tmp_path, cluster, signer) as view:
        eventually(lambda: view.unready() is None)
        for namespace in ("ml", "other"):
            assert denied(view.state(), namespace)["create"] == [ReasonCode.VIEW_STALE]


def test_more_governed_namespaces_than_can_be_watched_allow_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_view, "MAX_NAMESPACES", 1)
    signer, cluster = Signer(), Cluster(Signer())
    [workload] = cluster.items["/apis/nodewarden.dev/v1alpha1/sensitiveworkloads"]
    workload["spec"]["subjects"].append({"namespace": "second", "serviceAccount": "llm"})
    with viewed(tmp_path, cluster, signer) as view:
        eventually(lambda: view.unready() is None)
        assert denied(view.state(), "second")["create"] == [ReasonCode.VIEW_STALE]


@pytest.mark.parametrize("path", ["/api/v1/nodes", "/apis/nodewarden.dev/v1alpha1/nodetrustpolicies"])
def test_a_collection_that_may_not_be_listed_leaves_the_view_unready(tmp_path: Path, path: str) -> None:
    signer, cluster = Signer(), Cluster(Signer())
    del cluster.items[path]
    with viewed(tmp_path, cluster, signer) as view:
        time.sleep(1)
        assert view.unready() is not None
        assert binding(view) == [ReasonCode.VIEW_STALE]


def test_a_result_under_a_new_key_counts_once_the_key_is_known(tmp_path: Path) -> None:
    old, new = Signer("key-1"), Signer("key-2")
    keys = [old.key_set()]
    verifier = ResultVerifier(lambda: keys[0], ISSUER, AUDIENCE, InMemorySequences())
    with scripted_api(tmp_path, Cluster(new)) as (client, _):
        view = LiveClusterView(client, verifier, lambda _: None)
        view.start()
        eventually(lambda: binding(view) == [ReasonCode.RESULT_SIGNATURE_INVALID])
        keys[0] = new.key_set()
        view.refresh()
        eventually(lambda: binding(view) == [])
        view.stop()


@pytest.mark.parametrize("key_id", ["key-1", "key-2"])
def test_a_result_by_a_key_that_was_withdrawn_is_not_remembered(key_id: str) -> None:
    signer = Signer()
    keys = [signer.key_set()]
    reader = live_view.ResultReader(
        ResultVerifier(lambda: keys[0], ISSUER, AUDIENCE, InMemorySequences()), lambda _: None
    )
    fields = attestation_manifest(NODE, NODE_UID, signer.result(a_result()))
    assert reader(fields) == reader(fields) == a_result()
    keys[0] = Signer(key_id).key_set()
    with pytest.raises(Rejection) as caught:
        reader(fields)
    assert caught.value.code is ReasonCode.RESULT_SIGNATURE_INVALID


def test_a_node_that_runs_pods_with_host_access_takes_no_pod_until_they_are_gone() -> None:
    signer = Signer()
    reader = live_view.ResultReader(
        ResultVerifier(signer.key_set, ISSUER, AUDIENCE, InMemorySequences()), lambda _: None
    )
    fields = attestation_manifest(NODE, NODE_UID, signer.result(a_result()))
    assert reader(fields) == a_result()
    against = {"type": "Labelled", "status": "False", "reason": "HostAccess", "message": "runs ml/root"}
    for _ in range(2):
        with pytest.raises(Rejection) as caught:
            reader({**fields, "status": {**fields["status"], "conditions": [against]}})
        assert caught.value.code is ReasonCode.NODE_RUNS_INTRUDER
    assert reader(fields) == a_result()
