"""The controller on a real API server: what the verifier says becomes labels, and what it takes back ends pods."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.admission.world import Signer
from tests.e2e.control_plane import ControlPlane, Options, control_plane
from tests.e2e.controllers import (
    HOLDS,
    IMAGE,
    LEASES,
    OURS,
    POLICY,
    VERIFIED,
    Controllers,
    controllers,
    until,
)
from tests.e2e.install import install
from tests.e2e.pods import pods_path
from tests.e2e.programs import wait_until
from tests.e2e.relay import Relay
from tests.e2e.verifier_stream import VerifierStream, verifier_stream
from verifier.wire.codes import ReasonCode
from verifier.wire.result import BaselineRef, Verdict

TAINT = "nodewarden.dev/unverified"


@pytest.fixture(scope="module")
def plane(folder: Path) -> Iterator[ControlPlane]:
    """A control plane of this module's own: here controllers come and go, and one cluster has one leader."""
    with control_plane(folder / "controller", Options(nodes=0)) as running:
        install(running)
        yield running


@pytest.fixture
def stream(plane: ControlPlane, tmp_path: Path) -> Iterator[VerifierStream]:
    with verifier_stream(tmp_path, plane.authority) as running:
        yield running


@pytest.fixture
def cluster(plane: ControlPlane, stream: VerifierStream, tmp_path: Path) -> Iterator[Controllers]:
    """A policy, and no controller yet."""
    with controllers(plane, stream, tmp_path) as made:
        made.policy()
        yield made
        made.stop_all()
        kinds = ("sensitiveworkloads", "nodetrustpolicies", "nodeattestations", "secretreleases")
        for path in (*(f"{OURS}/{plural}" for plural in kinds), "/api/v1/nodes"):
            for item in made.admin.must_get(path)["items"]:
                made.admin.delete(f"{path}/{item['metadata']['name']}")


@pytest.fixture
def gpu(cluster: Controllers) -> dict[str, Any]:
    """A node of a name of its own."""
    return cluster.node(f"gpu-{uuid4().hex[:8]}")


@pytest.fixture
def verified(cluster: Controllers, gpu: dict[str, Any]) -> str:
    """The name of a node that a running controller labelled."""
    cluster.start()
    cluster.stream.publish(gpu)
    cluster.wait_labelled(gpu["metadata"]["name"])
    return str(gpu["metadata"]["name"])


def _condition(status: dict[str, Any], kind: str) -> tuple[str, str]:
    found = next(c for c in status["conditions"] if c["type"] == kind)
    return found["status"], found["reason"]


def _node_set(cluster: Controllers) -> dict[str, str]:
    answer = cluster.admin.get(f"{OURS}/verifiednodesets/verified")
    nodes: dict[str, str] = answer.body["spec"]["nodes"] if answer.accepted else {}
    return nodes


def _renewals(cluster: Controllers, lease: str) -> str:
    answer = cluster.admin.get(f"{LEASES}/{lease}")
    return str(answer.body["spec"]["renewTime"]) if answer.accepted else ""


def test_an_affirming_result_becomes_label_attestation_and_set_entry_within_two_seconds(
    cluster: Controllers, gpu: dict[str, Any]
) -> None:
    name = gpu["metadata"]["name"]
    cluster.start()
    wait_until("the results Lease is renewed", lambda: _renewals(cluster, "nodewarden-results") != "", 30)
    assert cluster.labels(name) == set()
    cluster.stream.publish(gpu)
    assert cluster.wait_labelled(name) < 2.0
    status = cluster.attestation(name)
    assert _condition(status, "Verified") == ("True", "Attested")
    assert status["policies"] == [{"name": POLICY, "result": "Pass"}]
    assert status["baseline"] == {"name": "h200-prod", "version": "4.2.0"}
    until("the set", lambda: name in _node_set(cluster))
    until(
        "the policy's count",
        lambda: (
            cluster.admin.must_get(f"{OURS}/nodetrustpolicies/{POLICY}")
            .get("status", {})
            .get("nodes", {})
            .get("verified")
            == 1
        ),
    )


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
    status = cluster.attestation(verified)
    assert _condition(status, "Verified") == ("False", "NodeNotVerified")
    assert not cluster.ending(namespace, "plain")
    until("out of the set", lambda: verified not in _node_set(cluster))
    until("people are told", lambda: bool(_notes(cluster, namespace, "NodeVerificationLost")))
    notes = [note for _, note in _notes(cluster, namespace, "NodeVerificationLost")]
    assert all(ReasonCode.NODE_NOT_VERIFIED.value in note for note in notes)


def test_the_fallen_result_is_in_the_attestation_before_the_label_goes(cluster: Controllers, verified: str) -> None:
    before = cluster.attestation(verified)["result"]
    cluster.stream.publish(cluster.get_node(verified), Verdict.CONTRAINDICATED)
    cluster.wait_unlabelled(verified)
    assert cluster.attestation(verified)["result"] != before
    managed = cluster.admin.must_get(f"{OURS}/nodeattestations/{verified}")["metadata"]["resourceVersion"]
    # One etcd numbers every write of the cluster, so that versions of two objects tell the order.
    assert int(managed) < int(cluster.get_node(verified)["metadata"]["resourceVersion"])


def test_leases_of_a_fallen_node_are_ordered_revoked_and_the_label_goes_though_nobody_answers(
    cluster: Controllers, verified: str
) -> None:
    node = cluster.get_node(verified)
    release = {
        "apiVersion": "nodewarden.dev/v1alpha1",
        "kind": "SecretRelease",
        "metadata": {"name": f"lease-{uuid4().hex[:8]}"},
        "spec": {
            "secret": "llm/key",
            "namespace": "ml",
            "podName": "llm-0",
            "podUID": str(uuid4()),
            "nodeName": verified,
            "nodeUID": node["metadata"]["uid"],
            "bootID": "b0" * 32,
            "bindingKeyThumbprint": "cb" * 32,
            "expires": "2099-01-01T00:00:00Z",
        },
    }
    made = cluster.admin.must_create(f"{OURS}/secretreleases", release)["metadata"]["name"]
    time.sleep(0.5)
    cluster.stream.publish(node, Verdict.CONTRAINDICATED)
    took = cluster.wait_unlabelled(verified)
    status = cluster.admin.must_get(f"{OURS}/secretreleases/{made}")["status"]
    assert _condition(status, "RevocationRequested") == ("True", "NodeFell")
    assert 0.8 < took < 2.0


def test_a_node_is_labelled_again_once_it_is_affirmed_again(cluster: Controllers, verified: str) -> None:
    cluster.stream.publish(cluster.get_node(verified), Verdict.CONTRAINDICATED)
    cluster.wait_unlabelled(verified)
    cluster.stream.publish(cluster.get_node(verified))
    assert cluster.wait_labelled(verified) < 2.0


def test_a_result_under_an_older_baseline_than_the_floor_gets_no_label(
    cluster: Controllers, gpu: dict[str, Any]
) -> None:
    cluster.start()
    cluster.stream.publish(gpu, baseline=BaselineRef("h200-prod", "4.0.9", "ba" * 32))
    name = gpu["metadata"]["name"]
    until("it is judged", lambda: "conditions" in cluster.attestation(name))
    assert _condition(cluster.attestation(name), "Verified") == ("False", "BaselineBelowFloor")
    assert cluster.labels(name) == set()


def test_an_attestation_without_the_verifiers_signature_is_never_labelled_and_goes(
    cluster: Controllers, gpu: dict[str, Any]
) -> None:
    name = gpu["metadata"]["name"]
    cluster.stream.publish(gpu)
    forged = cluster.stream.results_after(0, 1)[0]
    forger = Signer()
    cluster.stream.signer, honest = forger, cluster.stream.signer
    cluster.stream.publish(gpu)
    token = cluster.stream.results_after(0, 1)[0].token
    cluster.stream.signer = honest
    cluster.stream.forget()
    assert forged.token != token
    with cluster.plane.as_service_account("nodewarden-system", "nodewarden-controller") as stolen:
        body = {
            "apiVersion": "nodewarden.dev/v1alpha1",
            "kind": "NodeAttestation",
            "metadata": {"name": name},
            "spec": {"nodeName": name, "nodeUID": gpu["metadata"]["uid"]},
        }
        stolen.must_create(f"{OURS}/nodeattestations", body)
        stolen.must_patch(f"{OURS}/nodeattestations/{name}/status", {"status": {"result": token}})
    cluster.start()
    until("the forged object goes", lambda: cluster.admin.get(f"{OURS}/nodeattestations/{name}").status == 404)
    assert cluster.labels(name) == set()


def test_a_foreign_result_in_a_verified_nodes_attestation_does_not_stay(cluster: Controllers, verified: str) -> None:
    before = cluster.attestation(verified)["result"]
    cluster.admin.must_patch(f"{OURS}/nodeattestations/{verified}/status", {"status": {"result": "a.b.c"}})
    until("it is put right", lambda: cluster.attestation(verified)["result"] == before)


def test_a_forged_label_is_taken_off(cluster: Controllers, verified: str) -> None:
    other = cluster.node(f"gpu-{uuid4().hex[:8]}")["metadata"]["name"]
    cluster.admin.must_patch(f"/api/v1/nodes/{other}", {"metadata": {"labels": {VERIFIED: "true", HOLDS: "true"}}})
    assert cluster.wait_unlabelled(other) < 2.0
    assert cluster.labels(verified) == {VERIFIED, HOLDS}


def test_a_node_made_anew_under_the_same_name_inherits_nothing(cluster: Controllers, verified: str) -> None:
    old = cluster.get_node(verified)["metadata"]["uid"]
    assert cluster.admin.delete(f"/api/v1/nodes/{verified}").accepted
    until("the attestation goes", lambda: cluster.admin.get(f"{OURS}/nodeattestations/{verified}").status == 404)
    node = cluster.node(verified, labels={VERIFIED: "true", HOLDS: "true"})
    assert node["metadata"]["uid"] != old
    cluster.wait_unlabelled(verified)
    until("it is judged", lambda: "conditions" in cluster.attestation(verified))
    assert _condition(cluster.attestation(verified), "Verified") == ("False", "ResultNodeMismatch")
    cluster.stream.publish(node)
    cluster.wait_labelled(verified)


def test_a_reboot_takes_the_label_until_the_new_boot_is_attested(cluster: Controllers, verified: str) -> None:
    cluster.admin.must_patch(
        f"/api/v1/nodes/{verified}/status", {"status": {"nodeInfo": {"bootID": "22222222-2222-4333-8444-555555555555"}}}
    )
    cluster.wait_unlabelled(verified)
    until("it is judged", lambda: _condition(cluster.attestation(verified), "Verified") == ("False", "BootMismatch"))
    cluster.stream.publish(cluster.get_node(verified))
    cluster.wait_labelled(verified)


def test_when_the_stream_is_cut_the_results_lease_is_no_longer_renewed(cluster: Controllers, verified: str) -> None:
    first = _renewals(cluster, "nodewarden-results")
    until("it is renewed", lambda: _renewals(cluster, "nodewarden-results") != first, 12)
    cluster.stream.stop()
    time.sleep(1.0)
    last = _renewals(cluster, "nodewarden-results")
    time.sleep(12)
    assert _renewals(cluster, "nodewarden-results") == last
    # Mere silence: what was proved still stands until it ends by itself.
    assert cluster.labels(verified) == {VERIFIED, HOLDS}
    cluster.stream.start()
    until("it is renewed again", lambda: _renewals(cluster, "nodewarden-results") != last, 20)


def test_results_that_came_while_the_stream_was_cut_are_caught_up(cluster: Controllers, verified: str) -> None:
    cluster.stream.stop()
    cluster.stream.publish(cluster.get_node(verified), Verdict.CONTRAINDICATED)
    cluster.stream.start()
    cluster.wait_unlabelled(verified)


def test_another_replica_takes_over_when_the_leader_is_killed(cluster: Controllers, verified: str) -> None:
    leader = cluster.running[0]
    cluster.start("second")
    time.sleep(3)
    lease = cluster.admin.must_get(f"{LEASES}/nodewarden-controller")
    assert lease["spec"]["holderIdentity"] == "controller"
    leader.process.kill()
    node = cluster.get_node(verified)
    cluster.stream.publish(node, Verdict.CONTRAINDICATED)
    # A killed leader gives nothing back: the other waits for the Lease to be abandoned.
    took = cluster.wait_unlabelled(verified, 30)
    assert took > 5
    lease = cluster.admin.must_get(f"{LEASES}/nodewarden-controller")
    assert lease["spec"]["holderIdentity"] == "second"


def test_a_leader_that_does_not_hear_the_verifier_is_followed_by_one_that_does(
    cluster: Controllers, gpu: dict[str, Any]
) -> None:
    relay = Relay(cluster.stream.url)
    try:
        link = {"ca_file": str(cluster.stream.ca), "token_file": str(cluster.stream.token_file)}
        cluster.start("deaf", verifier={"url": relay.url, **link})
        cluster.stream.publish(gpu)
        name = gpu["metadata"]["name"]
        cluster.wait_labelled(name)
        cluster.start("second")
        time.sleep(3)
        lease = cluster.admin.must_get(f"{LEASES}/nodewarden-controller")
        assert lease["spec"]["holderIdentity"] == "deaf"
        relay.cut()
        cluster.stream.publish(gpu, Verdict.CONTRAINDICATED)
        # Ten seconds until silence counts, five until it is said, three rounds of the election: less than the thirty
        # after which webhook and broker would deny everything.
        cluster.wait_unlabelled(name, 30)
        lease = cluster.admin.must_get(f"{LEASES}/nodewarden-controller")
        assert lease["spec"]["holderIdentity"] == "second"
        before = _renewals(cluster, "nodewarden-results")
        until("results are fresh again", lambda: _renewals(cluster, "nodewarden-results") != before, 12)
    finally:
        relay.close()


def test_a_leader_that_stops_in_order_is_followed_at_once(cluster: Controllers, verified: str) -> None:
    cluster.start("second")
    time.sleep(3)
    cluster.running[0].stop()
    cluster.stream.publish(cluster.get_node(verified), Verdict.CONTRAINDICATED)
    assert cluster.wait_unlabelled(verified, 30) < 5


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


def test_the_taint_comes_only_where_the_policy_asks_and_goes_with_the_next_affirmation(
    cluster: Controllers, verified: str
) -> None:
    cluster.policy(onLoss={"taint": True})
    time.sleep(1)
    assert not _taints(cluster, verified)
    cluster.stream.publish(cluster.get_node(verified), Verdict.CONTRAINDICATED)
    until("it is tainted", lambda: _taints(cluster, verified) == {"NoSchedule", "NoExecute"}, 5)
    cluster.stream.publish(cluster.get_node(verified))
    cluster.wait_labelled(verified)
    until("the taint goes", lambda: not _taints(cluster, verified), 5)


def _taints(cluster: Controllers, name: str) -> set[str]:
    taints = cluster.get_node(name)["spec"].get("taints", [])
    return {taint["effect"] for taint in taints if taint["key"] == TAINT}


def test_a_node_that_runs_a_pod_with_reach_for_the_host_is_not_labelled_until_it_is_gone_or_listed(
    cluster: Controllers, gpu: dict[str, Any], namespace: str
) -> None:
    name = gpu["metadata"]["name"]
    cluster.pod_on(namespace, "root", name, hostPID=True)
    cluster.start()
    cluster.stream.publish(gpu)
    until("it is judged", lambda: "conditions" in cluster.attestation(name))
    assert _condition(cluster.attestation(name), "Labelled") == ("False", "HostAccess")
    assert cluster.labels(name) == set()
    path = "/api/v1/namespaces/nodewarden-system/configmaps/nodewarden-privileged-allow-list"
    before = cluster.admin.must_get(path)["data"]["allow"]
    cluster.admin.must_patch(path, {"data": {"allow": f"{before}{namespace}/default\n"}})
    cluster.wait_labelled(name)
    cluster.admin.must_patch(path, {"data": {"allow": before}})
    cluster.wait_unlabelled(name)
    cluster.admin.delete(pods_path(namespace, "root"), grace_seconds=0)
    cluster.wait_labelled(name)


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
    return _notes(cluster, namespace, "AttestationPending")


def _notes(cluster: Controllers, namespace: str, reason: str) -> list[tuple[str, str]]:
    """(kind, note) of the Events with that reason."""
    items = cluster.admin.must_get(f"/apis/events.k8s.io/v1/namespaces/{namespace}/events")["items"]
    return [(item["regarding"]["kind"], item["note"]) for item in items if item["reason"] == reason]


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
    status = cluster.admin.must_get(workload)["status"]
    assert _condition(status, "Admitted") == ("False", "PodsViolate")
    assert _condition(status, "NodesAvailable") == ("False", "NoNodePasses")
    assert not cluster.ending(namespace, "early")
    cluster.stream.publish(gpu)
    until("it is verified", lambda: _pods(cluster, workload) == {"verified": 1, "gated": 0, "violating": 0})


def test_many_attestations_of_one_node_are_not_many_writes(cluster: Controllers, verified: str) -> None:
    path = f"{OURS}/nodeattestations/{verified}"
    before = cluster.admin.must_get(path)["metadata"]["resourceVersion"]
    for _ in range(20):
        cluster.stream.publish(cluster.get_node(verified))
        time.sleep(0.05)
    time.sleep(1)
    assert cluster.admin.must_get(path)["metadata"]["resourceVersion"] == before
