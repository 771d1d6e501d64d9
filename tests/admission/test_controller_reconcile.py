"""The order of a fall, and that a refused step holds up no other: the reconciler over an API server that refuses."""

from __future__ import annotations

import time
from typing import Any, cast

import pytest

from admission.cluster_objects import PodUid
from admission.controller.eviction import Evictions
from admission.controller.gates import Gates
from admission.controller.heartbeat import ResultsHeartbeat
from admission.controller.node_marks import VERIFIED_LABEL
from admission.controller.node_reconciler import NodeReconciler
from admission.controller.observed import ObservedNode, ObservedPod
from admission.controller.results_book import ResultsBook
from admission.controller.view import ControllerView, Kept
from admission.controller.writer import Writer
from admission.kube import KubeClient, KubeConflict, KubeDenied, KubeUnavailable
from admission.results import InMemorySequences, ResultVerifier
from admission.trust_objects import ATTESTATION_GATE, UNVERIFIED_TAINT, VERIFIED_LABEL_PREFIX, OnLoss
from tests.admission.lease_objects import AT, DONE, a_release
from tests.admission.test_controller_work import eventually
from tests.admission.world import (
    AUDIENCE,
    ISSUER,
    NODE,
    NODE_UID,
    NOW,
    Signer,
    a_node,
    a_pod,
    a_policy,
    a_result,
    a_workload,
)
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure, Refusal
from verifier.wire.result import Submodule, Verdict

HOLDS = VERIFIED_LABEL_PREFIX + "h200-prod"
ATTESTATION = f"/apis/nodewarden.dev/v1alpha1/nodeattestations/{NODE}"
POD = "/api/v1/namespaces/ml/pods/llm-0"
BAD = {
    "sequence": NOW * 1000 + 1,
    "verdict": Verdict.CONTRAINDICATED,
    "submodules": {"tpm": Submodule(Verdict.CONTRAINDICATED, {"instance-identity": 96})},
}


class Api:
    """An API server that remembers what was asked of it, and refuses what it was told to refuse."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, Any]] = []
        self.refuses: dict[str, Refusal] = {}
        self.answers: dict[str, list[Any]] = {}

    def request(self, method: str, path: str, body: Any = None, **_: Any) -> Any:
        self.requests.append((method, path, body))
        for part, refusal in self.refuses.items():
            if part in path:
                raise refusal
        answer = self.answers[path].pop(0) if self.answers.get(path) else {"metadata": {"uid": "made"}}
        if isinstance(answer, Refusal):
            raise answer
        return answer

    def asked(self) -> list[tuple[str, str]]:
        return [(method, path) for method, path, _ in self.requests]


class World:
    """One labelled node with one sensitive pod, and the reconciler over them."""

    def __init__(self, leads: bool = True, **on_loss: Any) -> None:
        self.api, self.signer, self.now = Api(), Signer(), NOW
        keys = self.signer.key_set()
        verifier = ResultVerifier(lambda: keys, ISSUER, AUDIENCE, InMemorySequences())
        self.book = ResultsBook(verifier, lambda: None)
        client = cast("KubeClient", self.api)
        self.changed: list[tuple[str, str]] = []
        self.view = ControllerView(
            client, self.book, "nodewarden-system", lambda kind, name: self.changed.append((kind, name))
        )
        self.writer = Writer(client, lambda: leads)
        self.evictions = Evictions(self.writer, 60)
        self.nodes = NodeReconciler(self.view, self.book, self.writer, self.evictions, lambda: self.now)
        policy = a_policy(on_loss=OnLoss(**on_loss))
        self.view.policies._put(("", policy.name), Kept(policy, "u", 1, {}))
        self.view.workloads._put(("", "llm"), Kept(a_workload(), "u", 1, {}))
        self.put_node({VERIFIED_LABEL: "true", HOLDS: "true"})
        self.put_pod(ObservedPod(a_pod(node_name=NODE), (), None))
        self.take()
        self.view.attestations._put(("", NODE), Kept(NODE_UID, "att", 1, {}))
        self.nodes.reconcile(NODE)
        stored = self.body_of(f"{ATTESTATION}/status")["status"]
        self.view.attestations._put(("", NODE), Kept(NODE_UID, "att", 1, stored))
        self.api.requests.clear()

    def take(self, **changes: Any) -> None:
        assert self.book.take(self.signer.result(a_result(**changes))) == NODE

    def reconcile(self) -> float | None:
        """Until it asks for no more at once, as the queue does."""
        while (again := self.nodes.reconcile(NODE)) == 0.0:
            pass
        return again

    def put_node(self, labels: dict[str, str]) -> None:
        self.view.nodes._put(("", NODE), ObservedNode(a_node(), labels, (), "7"))

    def put_pod(self, pod: ObservedPod) -> None:
        self.view.pods._put((pod.pod.namespace, pod.pod.name), pod)

    def put_release(self, fields: dict[str, Any]) -> str:
        """The watch tells of a SecretRelease. Returns its name."""
        self.view.releases.told(fields)
        return str(fields["metadata"]["name"])

    def body_of(self, path: str) -> Any:
        return next(body for _, asked, body in self.api.requests if asked == path)


@pytest.fixture
def world() -> World:
    return World()


def test_a_node_that_is_as_it_shall_be_is_not_written(world: World) -> None:
    assert world.nodes.reconcile(NODE) is not None
    assert world.api.requests == []


def test_a_fall_is_written_in_the_order_attestation_label_eviction(world: World) -> None:
    world.take(**BAD)
    assert world.nodes.reconcile(NODE) == 0.0
    wanted = [("PATCH", f"{ATTESTATION}/status"), ("PATCH", f"/api/v1/nodes/{NODE}")]
    # The labels of other nodes that fell come before this one's pods.
    assert world.api.asked() == wanted
    world.put_node({})
    world.nodes.reconcile(NODE)
    assert world.api.asked()[-1] == ("POST", f"{POD}/eviction")
    assert world.body_of(f"/api/v1/nodes/{NODE}")["metadata"]["labels"] == {VERIFIED_LABEL: None, HOLDS: None}
    options = world.body_of(f"{POD}/eviction")["deleteOptions"]
    assert options == {"gracePeriodSeconds": 30, "preconditions": {"uid": a_pod().uid}}


@pytest.mark.parametrize("refused", ["nodeattestations", "/api/v1/nodes/", "eviction"])
def test_a_step_that_is_refused_holds_up_no_other_and_comes_again(world: World, refused: str) -> None:
    world.take(**BAD)
    world.api.refuses[refused] = KubeDenied(403, "Forbidden", refused, "no")
    if refused == "eviction":
        world.reconcile()
    else:
        with pytest.raises(KubeDenied) as denied:
            world.reconcile()
        assert denied.value.code is ReasonCode.KUBERNETES_REFUSED
    assert {path for _, path in world.api.asked()} == {
        f"{ATTESTATION}/status",
        f"/api/v1/nodes/{NODE}",
        f"{POD}/eviction",
    }
    world.api.refuses.clear()
    world.api.requests.clear()
    world.nodes.reconcile(NODE)
    assert len(world.api.requests) >= 2


def test_a_fall_that_cannot_be_written_is_known_for_how_long(world: World) -> None:
    world.take(**BAD)
    world.api.refuses["nodeattestations"] = KubeUnavailable("x", "away")
    with pytest.raises(KubeUnavailable):
        world.nodes.reconcile(NODE)
    assert world.nodes.oldest_unwritten_seconds() > 0
    world.api.refuses.clear()
    world.nodes.reconcile(NODE)
    assert world.nodes.oldest_unwritten_seconds() == 0


def test_open_leases_have_a_head_start_over_the_label(world: World) -> None:
    name = world.put_release(a_release())
    world.take(**BAD)
    again = world.nodes.reconcile(NODE)
    assert again is not None
    assert 0 < again <= 0.1
    path = f"/apis/nodewarden.dev/v1alpha1/secretreleases/{name}/status"
    eventually("it is ordered", lambda: len(world.api.requests) == 2)
    assert world.api.asked() == [("PATCH", f"{ATTESTATION}/status"), ("PATCH", path)]
    asked = world.body_of(path)["status"]
    world.put_release(a_release(asked))
    assert world.nodes.reconcile(NODE) is not None
    world.put_release(a_release({"conditions": [*asked["conditions"], DONE], "revokedAt": AT}))
    world.api.requests.clear()
    world.nodes.reconcile(NODE)
    assert ("PATCH", f"/api/v1/nodes/{NODE}") in world.api.asked()
    assert ("PATCH", path) not in world.api.asked()


def test_leases_that_nobody_answers_for_keep_the_label_for_a_second_only(world: World) -> None:
    world.put_release(a_release())
    world.take(**BAD)
    fell = time.monotonic()
    while ("PATCH", f"/api/v1/nodes/{NODE}") not in world.api.asked():
        again = world.nodes.reconcile(NODE)
        time.sleep(0.0 if again is None else min(again, 0.1))
    assert 0.7 < time.monotonic() - fell < 1.5


NODE_PATH = f"/api/v1/nodes/{NODE}"
CHANGED = KubeConflict(409, "Conflict", "nodes", "changed")


def effects(patch: Any) -> set[str]:
    return {taint["effect"] for taint in patch["spec"]["taints"]}


def test_labels_do_not_wait_for_taints_that_conflict_and_taints_follow_at_once() -> None:
    world = World(taint=True)
    world.take(**BAD)
    others = [{"key": "other", "effect": "NoSchedule"}]
    metadata = {"name": NODE, "uid": NODE_UID, "resourceVersion": "8"}
    world.api.answers[NODE_PATH] = [CHANGED, {"metadata": metadata, "spec": {"taints": others}}, {"metadata": {}}]
    assert world.nodes.reconcile(NODE) == 0.0
    first, labels, taints = (body for _, path, body in world.api.requests if path == NODE_PATH)
    assert effects(first) == {"NoSchedule", "NoExecute"}
    assert labels == {"metadata": {"uid": NODE_UID, "labels": {VERIFIED_LABEL: None, HOLDS: None}}}
    assert taints["metadata"] == {"uid": NODE_UID, "resourceVersion": "8"}
    assert taints["spec"]["taints"][0] == others[0]
    assert effects(taints) == {"NoSchedule", "NoExecute"}


def test_a_controller_that_takes_over_between_label_and_taint_leaves_no_taint_out() -> None:
    world = World(taint=True)
    world.take(**BAD)
    world.api.answers[NODE_PATH] = [CHANGED, {"metadata": {"name": NODE, "uid": NODE_UID}}, CHANGED]
    with pytest.raises(KubeConflict):
        world.reconcile()
    stored = world.body_of(f"{ATTESTATION}/status")["status"]
    world.view.attestations._put(("", NODE), Kept(NODE_UID, "att", 1, stored))
    world.put_node({})
    world.api.requests.clear()
    successor = NodeReconciler(world.view, world.book, world.writer, world.evictions, lambda: world.now)
    successor.reconcile(NODE)
    assert effects(world.body_of(NODE_PATH)) == {"NoSchedule", "NoExecute"}


def test_a_taint_that_came_with_the_node_stays_while_nothing_is_known_of_it() -> None:
    world = World()
    world.book._entries.clear()
    world.view.attestations._put(("", NODE), None)
    taint = {"key": UNVERIFIED_TAINT, "effect": "NoSchedule"}
    world.view.nodes._put(("", NODE), ObservedNode(a_node(), {}, (taint,), "7"))
    world.nodes.reconcile(NODE)
    assert world.api.requests == []


def test_a_replica_that_does_not_lead_writes_nothing() -> None:
    with pytest.raises(KubeUnavailable) as refused:
        World(leads=False)
    assert refused.value.code is ReasonCode.KUBERNETES_UNREACHABLE


def test_the_attestation_of_a_node_that_is_gone_goes(world: World) -> None:
    world.view.nodes._put(("", NODE), None)
    assert world.nodes.reconcile(NODE) is None
    assert world.api.asked() == [("DELETE", ATTESTATION)]


def test_an_attestation_without_a_result_of_ours_goes_and_gives_no_label() -> None:
    world = World()
    world.book._entries.clear()
    world.nodes.reconcile(NODE)
    assert world.api.asked()[0] == ("DELETE", ATTESTATION)
    assert world.body_of(f"/api/v1/nodes/{NODE}")["metadata"]["labels"] == {VERIFIED_LABEL: None, HOLDS: None}


def test_a_pod_that_is_being_deleted_slowly_is_hurried(world: World) -> None:
    world.put_pod(ObservedPod(a_pod(node_name=NODE, deleting=True), (), None))
    world.take(**BAD)
    world.reconcile()
    assert world.body_of(POD) == {"preconditions": {"uid": a_pod().uid}, "gracePeriodSeconds": 30}


def test_a_pod_of_another_service_account_is_left_alone(world: World) -> None:
    world.put_pod(ObservedPod(a_pod(name="plain", node_name=NODE, service_account="plain"), (), None))
    world.take(**BAD)
    world.reconcile()
    assert not [path for _, path in world.api.asked() if "plain" in path]


def test_a_gate_stays_while_no_node_passes_and_while_an_object_cannot_be_read(world: World) -> None:
    gates = Gates(world.view, world.writer, lambda: world.now)
    world.put_pod(ObservedPod(a_pod(name="g", uid=PodUid("g"), gates=(ATTESTATION_GATE,)), (), None))
    ungoverned = a_pod(name="u", uid=PodUid("u"), service_account="plain", gates=(ATTESTATION_GATE,))
    world.put_pod(ObservedPod(ungoverned, (), None))
    world.view.workloads._put(("", "newer"), Failure(ReasonCode.MANIFEST_INVALID, "spec"))
    world.put_node({})
    assert gates.reconcile("ml/g") is not None
    assert gates.reconcile("ml/u") is not None
    assert world.api.requests == []
    world.put_node({VERIFIED_LABEL: "true", HOLDS: "true"})
    world.view.workloads._put(("", "newer"), None)
    gates.reconcile("ml/g")
    gates.reconcile("ml/u")
    assert [path.rpartition("/")[2] for _, path in world.api.asked()] == ["g", "u"]


def test_a_gate_opens_where_policies_only_warn(world: World) -> None:
    world.put_pod(ObservedPod(a_pod(name="g", uid=PodUid("g"), gates=(ATTESTATION_GATE,)), (), None))
    world.put_node({})
    warns = a_policy(enforcement="warn")
    world.view.policies._put(("", warns.name), Kept(warns, "u", 1, {}))
    Gates(world.view, world.writer, lambda: world.now).reconcile("ml/g")
    assert [path.rpartition("/")[2] for _, path in world.api.asked()] == ["g"]


def test_the_results_lease_is_not_renewed_while_results_are_not_fresh(world: World) -> None:
    fresh = [False]
    heartbeat = ResultsHeartbeat(world.writer, "nodewarden-system", "me", lambda: fresh[0])

    def once(seconds: float) -> bool:
        heartbeat.stop()
        return True

    heartbeat._stop.wait = once  # type: ignore[assignment,method-assign]  # - one round, without waiting
    heartbeat.run()
    assert world.api.requests == []
    heartbeat._stop.clear()
    fresh[0] = True
    heartbeat.run()
    assert [path.rpartition("/")[2] for _, path in world.api.asked()] == ["nodewarden-results"]
