"""What becomes of sensitive pods: let go, told, counted, evicted, deleted."""

from __future__ import annotations

import time
from typing import Any

from tests.e2e.brokers import condition_of
from tests.e2e.controller.seen import attested, node_set, notes
from tests.e2e.controllers import (
    IMAGE,
    OURS,
    Controllers,
    until,
)
from tests.e2e.pods import pods_path
from verifier.wire.codes import ReasonCode
from verifier.wire.result import BaselineRef, Verdict


def test_a_fallen_verdict_takes_the_label_within_two_seconds_and_evicts_the_sensitive_pod_alone(
    cluster: Controllers, verified: str, namespace: str
) -> None:
    cluster.workload(namespace)
    cluster.pod_on(namespace, "sensitive", verified)
    other = f"{namespace}"
    cluster.admin.create(f"/api/v1/namespaces/{other}/serviceaccounts", {"metadata": {"name": "plain"}})
    cluster.pod_on(namespace, "plain", verified, serviceAccountName="plain")
    cluster.stream.publish(cluster.get_node(verified), Verdict.CONTRAINDICATED)
    assert cluster.wait_unlabelled(verified) < 2.0
    until("the pod ends", lambda: cluster.ending(namespace, "sensitive"))
    assert attested(cluster, verified) == ("False", "NodeNotVerified")
    assert not cluster.ending(namespace, "plain")
    until("out of the set", lambda: verified not in node_set(cluster))
    until("people are told", lambda: bool(notes(cluster, namespace, "NodeVerificationLost")))
    told = [note for _, note in notes(cluster, namespace, "NodeVerificationLost")]
    assert all(ReasonCode.NODE_NOT_VERIFIED.value in note for note in told)


def test_a_disruption_budget_holds_a_pod_up_only_for_the_grace(
    cluster: Controllers, verified: str, namespace: str
) -> None:
    cluster.policy(onLoss={"gracePeriod": "3s"})
    cluster.workload(namespace)
    cluster.pod_on(namespace, "guarded", verified)
    budget = {
        "metadata": {"name": "all"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "guarded"}}},
    }
    cluster.admin.must_create(f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets", budget)
    path = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets/all"
    until("the budget counts", lambda: cluster.admin.must_get(path).get("status", {}).get("currentHealthy") == 1, 30)
    cluster.stream.publish(cluster.get_node(verified), Verdict.CONTRAINDICATED)
    cluster.wait_unlabelled(verified)
    time.sleep(1.5)
    assert not cluster.ending(namespace, "guarded")
    until("it is deleted", lambda: cluster.ending(namespace, "guarded"), 10)


def test_on_mere_expiry_the_label_goes_and_pods_run_on_until_max_unverified(
    cluster: Controllers, verified: str, namespace: str
) -> None:
    cluster.policy(onLoss={"maxUnverified": "4s"})
    cluster.workload(namespace)
    cluster.pod_on(namespace, "quiet", verified)
    now = int(time.time())  # noqa: TID251 - the API server and the controller live in real time
    cluster.stream.publish(cluster.get_node(verified), issued_at=now, expires_at=now + 4)
    cluster.wait_unlabelled(verified, 10)
    time.sleep(1.5)
    assert not cluster.ending(namespace, "quiet")
    until("it is evicted", lambda: cluster.ending(namespace, "quiet"), 10)


def test_after_silence_pods_are_evicted_one_by_one(cluster: Controllers, gpu: dict[str, Any], namespace: str) -> None:
    name = gpu["metadata"]["name"]
    cluster.start(silent_evictions_per_minute=12)
    cluster.stream.publish(gpu)
    cluster.wait_labelled(name)
    cluster.policy(onLoss={"maxUnverified": "1s"})
    cluster.workload(namespace)
    for number in range(2):
        cluster.pod_on(namespace, f"quiet-{number}", name)
    now = int(time.time())  # noqa: TID251 - the API server and the controller live in real time
    cluster.stream.publish(gpu, issued_at=now, expires_at=now + 2)

    def ended() -> int:
        return sum(cluster.ending(namespace, f"quiet-{number}") for number in range(2))

    until("the first is evicted", lambda: ended() == 1, 15)
    took = until("the second is evicted", lambda: ended() == 2, 15)
    assert took > 3


def test_a_gated_sensitive_pod_is_let_go_when_a_node_passes(
    cluster: Controllers, gpu: dict[str, Any], namespace: str
) -> None:
    cluster.workload(namespace)
    cluster.start()
    body = {
        "metadata": {"name": "gated"},
        "spec": {
            "containers": [{"name": "main", "image": IMAGE}],
            "schedulingGates": [{"name": "example.org/other"}, {"name": "nodewarden.dev/attestation"}],
        },
    }
    cluster.admin.must_create(pods_path(namespace), body)
    path = pods_path(namespace, "gated")
    workload = f"{OURS}/sensitiveworkloads/llm"
    until("it is counted", lambda: _pods(cluster, workload).get("gated") == 1)
    assert len(cluster.admin.must_get(path)["spec"]["schedulingGates"]) == 2
    cluster.stream.publish(gpu)
    until(
        "our gate is open",
        lambda: cluster.admin.must_get(path)["spec"]["schedulingGates"] == [{"name": "example.org/other"}],
    )


def test_a_pod_that_waits_and_its_owner_are_told_why_once_and_again_when_the_reason_changes(
    cluster: Controllers, gpu: dict[str, Any], namespace: str
) -> None:
    name = gpu["metadata"]["name"]
    cluster.workload(namespace)
    cluster.start()
    cluster.stream.publish(gpu, Verdict.CONTRAINDICATED)
    template = {
        "metadata": {"labels": {"app": "waits"}},
        "spec": {
            "containers": [{"name": "main", "image": IMAGE}],
            "schedulingGates": [{"name": "nodewarden.dev/attestation"}],
        },
    }
    made = {
        "metadata": {"name": "waits"},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "waits"}}, "template": template},
    }
    cluster.admin.must_create(f"/apis/apps/v1/namespaces/{namespace}/replicasets", made)
    until("all are told", lambda: len(_pending(cluster, namespace)) == 3, 30)
    told = _pending(cluster, namespace)
    assert sorted(kind for kind, _ in told) == ["Pod", "Pod", "ReplicaSet"]
    for _, note in told:
        assert f"{ReasonCode.NODE_NOT_VERIFIED.value} (nodes.{name}.verdict: contraindicated" in note
        assert ReasonCode.NODE_NOT_VERIFIED.remedy in note
    time.sleep(3)
    assert len(_pending(cluster, namespace)) == 3
    cluster.stream.publish(gpu, baseline=BaselineRef("h200-prod", "4.0.9", "ba" * 32))
    until("they are told of the change", lambda: len(_pending(cluster, namespace)) == 6, 50)
    assert sum(ReasonCode.BASELINE_BELOW_FLOOR.value in note for _, note in _pending(cluster, namespace)) == 3


def _pending(cluster: Controllers, namespace: str) -> list[tuple[str, str]]:
    return notes(cluster, namespace, "AttestationPending")


def _pods(cluster: Controllers, path: str) -> dict[str, int]:
    pods: dict[str, int] = cluster.admin.must_get(path).get("status", {}).get("pods", {})
    return pods


def test_pods_that_ran_before_are_shown_where_they_may_not_run_and_left_alone(
    cluster: Controllers, gpu: dict[str, Any], namespace: str
) -> None:
    cluster.pod_on(namespace, "early", gpu["metadata"]["name"])
    cluster.workload(namespace)
    cluster.start()
    workload = f"{OURS}/sensitiveworkloads/llm"
    until("it is found", lambda: _pods(cluster, workload) == {"verified": 0, "gated": 0, "violating": 1})
    found = cluster.admin.must_get(workload)
    assert condition_of(found, "Admitted") == ("False", "PodsViolate")
    assert condition_of(found, "NodesAvailable") == ("False", "NoNodePasses")
    assert not cluster.ending(namespace, "early")
    cluster.stream.publish(gpu)
    until("it is verified", lambda: _pods(cluster, workload) == {"verified": 1, "gated": 0, "violating": 0})
