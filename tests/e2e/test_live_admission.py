"""Admission's view of a real cluster: what it follows, when it stops believing itself, and whom it believes."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import jwt
import pytest

from admission.clock import system_clock
from admission.cluster_events import EventWriter, notice_of
from admission.decision import Allow, Deny, decide_pod_create
from admission.kube import KubeClient, KubeDenied
from admission.live_view import LiveClusterView
from admission.results import InMemorySequences, ResultVerifier
from admission.review import parse_review
from admission.token_reviews import review_token
from admission.webhook import validate
from tests.admission.test_webhook import a_review
from tests.admission.world import AUDIENCE, IMAGE, ISSUER, Signer, a_pod, a_result
from tests.e2e import pods
from tests.e2e.control_plane import BROKER_AUDIENCE, ControlPlane
from tests.e2e.install import NAMESPACE
from tests.e2e.programs import wait_until
from tests.e2e.watched import BOOT, GROUP, NODE, Watched, a_workload
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Rejection
from verifier.wire.result import Submodule, Verdict, result_from_claims


@pytest.fixture(scope="module")
def plane(live_plane: ControlPlane) -> ControlPlane:
    return live_plane


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


def test_a_result_that_expires_between_scheduling_and_binding_is_denied(watched: Watched) -> None:
    pod = watched.pod("p")
    watched.attest(expires_at=system_clock() + 8)
    watched.until([], pod, 5)
    watched.until([ReasonCode.RESULT_EXPIRED], pod, 10)


def test_a_webhook_that_lost_its_memory_takes_an_older_result_but_no_longer_than_it_lives(watched: Watched) -> None:
    pod = watched.pod("p")
    older = watched.attest()
    watched.until([], pod)
    fallen = {"tpm": Submodule(Verdict.CONTRAINDICATED, {"instance-identity": 96})}
    watched.attest(verdict=Verdict.CONTRAINDICATED, submodules=fallen)
    watched.until([ReasonCode.NODE_NOT_VERIFIED], pod)
    # Attack: with the controller's token, before the controller itself is back.
    watched.attest(older)
    watched.until([ReasonCode.RESULT_ROLLED_BACK], pod)
    forgetful = watched.another_view()
    forgetful.start()
    try:
        wait_until("everything was read", lambda: forgetful.unready() is None, 20)
        # No word counts before the Lease was seen renewed.
        assert watched.decide(pod, forgetful) == [ReasonCode.RESULTS_STALE]

        def believes() -> bool:
            watched.renew()
            return watched.decide(pod, forgetful) == []

        wait_until("the Lease was renewed", believes, 10)
        ends_at = result_from_claims(jwt.decode(older, options={"verify_signature": False})).expires_at
        assert watched.decide(pod, forgetful, ends_at) == [ReasonCode.RESULT_EXPIRED]
    finally:
        forgetful.stop()


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
    # Only the broker may ask.
    broker = KubeClient.from_kubeconfig(watched.plane.service_account_kubeconfig(NAMESPACE, "nodewarden-broker"))
    identity = review_token(broker, token, system_clock())
    node = watched.admin.must_get(f"/api/v1/nodes/{NODE}")
    assert (identity.namespace, identity.service_account, identity.pod_name) == (watched.namespace, "llm", "p")
    assert (identity.pod_uid, identity.node_name) == (pod["metadata"]["uid"], NODE)
    assert identity.node_uid == node["metadata"]["uid"]

    unbound = watched.plane.token(watched.namespace, "llm", audience=BROKER_AUDIENCE)
    with pytest.raises(Rejection) as caught:
        review_token(broker, unbound, system_clock())
    assert caught.value.code is ReasonCode.TOKEN_NOT_POD_BOUND
    for other in (watched.plane.token(watched.namespace, "llm", bound_to=bound), token + "x", ""):
        with pytest.raises(Rejection) as caught:
            review_token(broker, other, system_clock())
        assert caught.value.code is ReasonCode.TOKEN_INVALID

    watched.admin.delete(pods.pods_path(watched.namespace, "p"), grace_seconds=0)

    def refused() -> bool:
        try:
            review_token(broker, token, system_clock())
        except Rejection as rejection:
            return rejection.code is ReasonCode.TOKEN_INVALID
        return False

    wait_until("the API server refuses the token", refused, 20)


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
