"""What the verifier says of a node becomes attestation, label, set entry and taint, and forgeries become nothing."""

from __future__ import annotations

import time
from typing import Any
from uuid import uuid4

from tests.admission.world import Signer
from tests.e2e.brokers import condition_of
from tests.e2e.controller.seen import attested, node_set
from tests.e2e.controllers import (
    HOLDS,
    OURS,
    POLICY,
    VERIFIED,
    Controllers,
    until,
)
from tests.e2e.pods import pods_path
from tests.e2e.programs import wait_until
from verifier.wire.result import BaselineRef, Verdict

TAINT = "nodewarden.dev/unverified"


def test_an_affirming_result_becomes_label_attestation_and_set_entry_within_two_seconds(
    cluster: Controllers, gpu: dict[str, Any]
) -> None:
    name = gpu["metadata"]["name"]
    cluster.start()
    wait_until("the results Lease is renewed", lambda: cluster.renewed() != "", 30)
    assert cluster.labels(name) == set()
    cluster.stream.publish(gpu)
    assert cluster.wait_labelled(name) < 2.0
    status = cluster.attestation(name)
    assert attested(cluster, name) == ("True", "Attested")
    assert status["policies"] == [{"name": POLICY, "result": "Pass"}]
    assert status["baseline"] == {"name": "h200-prod", "version": "4.2.0"}
    until("the set", lambda: name in node_set(cluster))
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
    record = cluster.admin.must_get(f"{OURS}/secretreleases/{made}")
    assert condition_of(record, "RevocationRequested") == ("True", "NodeFell")
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
    assert attested(cluster, name) == ("False", "BaselineBelowFloor")
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
    assert attested(cluster, verified) == ("False", "ResultNodeMismatch")
    cluster.stream.publish(node)
    cluster.wait_labelled(verified)


def test_a_reboot_takes_the_label_until_the_new_boot_is_attested(cluster: Controllers, verified: str) -> None:
    cluster.admin.must_patch(
        f"/api/v1/nodes/{verified}/status", {"status": {"nodeInfo": {"bootID": "22222222-2222-4333-8444-555555555555"}}}
    )
    cluster.wait_unlabelled(verified)
    until("it is judged", lambda: attested(cluster, verified) == ("False", "BootMismatch"))
    cluster.stream.publish(cluster.get_node(verified))
    cluster.wait_labelled(verified)


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
    assert attested(cluster, name, "Labelled") == ("False", "HostAccess")
    assert cluster.labels(name) == set()
    path = "/api/v1/namespaces/nodewarden-system/configmaps/nodewarden-privileged-allow-list"
    before = cluster.admin.must_get(path)["data"]["allow"]
    cluster.admin.must_patch(path, {"data": {"allow": f"{before}{namespace}/default\n"}})
    cluster.wait_labelled(name)
    cluster.admin.must_patch(path, {"data": {"allow": before}})
    cluster.wait_unlabelled(name)
    cluster.admin.delete(pods_path(namespace, "root"), grace_seconds=0)
    cluster.wait_labelled(name)


def test_many_attestations_of_one_node_are_not_many_writes(cluster: Controllers, verified: str) -> None:
    path = f"{OURS}/nodeattestations/{verified}"
    before = cluster.admin.must_get(path)["metadata"]["resourceVersion"]
    for _ in range(20):
        cluster.stream.publish(cluster.get_node(verified))
        time.sleep(0.05)
    time.sleep(1)
    assert cluster.admin.must_get(path)["metadata"]["resourceVersion"] == before
