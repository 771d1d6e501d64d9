"""What the controller concludes, without a cluster: standing, marks, objects, and the ends of pods."""

from __future__ import annotations

from typing import Any

import pytest

from admission.cluster_objects import NodeUid, Reader
from admission.controller.attestation_object import (
    attestation_status,
    recorded_losses,
    refresh_at,
    unproven_since,
    write_due,
)
from admission.controller.loss import Fate, fate_of, next_step
from admission.controller.node_marks import labels_wanted
from admission.controller.node_set import node_set
from admission.controller.observed import ObservedPod, host_reach, observe_node, observe_pod
from admission.controller.results_book import Entry
from admission.controller.scan import policy_status, scan_workload, workload_status
from admission.controller.standing import NodeStanding, standing_of
from admission.controller.view import allowed_subjects
from admission.pod_rules import govern
from admission.trust_objects import VERIFIED_LABEL_PREFIX, OnLoss, StricterRule
from tests.admission.world import IMAGE, NODE, NOW, a_cluster, a_node, a_pod, a_policy, a_result, a_workload
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure, MalformedEvidence
from verifier.wire.result import AttestationResult, BaselineRef, Submodule, Verdict

HOLDS = VERIFIED_LABEL_PREFIX + "h200-prod"
BAD = {"verdict": Verdict.CONTRAINDICATED, "submodules": {"tpm": Submodule(Verdict.CONTRAINDICATED, {"x": 96})}}


def a_standing(
    *,
    result: AttestationResult | Failure | None = None,
    policies: tuple[Any, ...] | None = None,
    intruders: tuple[str, ...] = (),
    now: int = NOW,
    node: Any = None,
) -> NodeStanding:
    judged = (a_policy(),) if policies is None else policies
    state = a_cluster(result=result, policies=judged, node=node)
    return standing_of(state, node or a_node(), judged, intruders, now)


def codes(standing: NodeStanding) -> set[ReasonCode]:
    return {failure.code for part in standing.policies for failure in part.failures}


def a_fate(now: int = NOW, since: int | None = None, pod: Any = None, **cluster: Any) -> Fate:
    state = a_cluster(pod=pod or a_pod(node_name=NODE), **cluster)
    governance = govern(state, pod or a_pod(node_name=NODE), now)
    assert governance is not None
    found = state.result_of(a_node())
    result = None if isinstance(found, Failure) else found
    return fate_of(state, governance, a_node(), result, since, now)


# --- standing ---


def test_a_node_with_a_good_result_passes_and_is_labelled() -> None:
    standing = a_standing()
    assert standing.passed == standing.labelled == {"h200-prod"}
    assert not standing.fallen


def test_a_node_without_any_policy_passes_nothing() -> None:
    standing = a_standing(policies=())
    assert (standing.passed, labels_wanted(standing)) == (frozenset(), {})


def test_a_bad_verdict_is_a_fall() -> None:
    standing = a_standing(result=a_result(**BAD))
    assert standing.fallen
    assert codes(standing) == {ReasonCode.NODE_NOT_VERIFIED}


def test_a_bad_verdict_does_not_heal_by_expiry() -> None:
    assert a_standing(result=a_result(**BAD), now=NOW + 10_000).fallen


def test_a_bad_verdict_counts_for_a_node_made_anew_under_the_same_name() -> None:
    assert a_standing(result=a_result(**BAD), node=a_node(uid=NodeUid("another"))).fallen


@pytest.mark.parametrize(
    ("result", "now", "code"),
    [
        (Failure(ReasonCode.RESULT_MISSING, "nodes"), NOW, ReasonCode.RESULT_MISSING),
        (a_result(), NOW + 240, ReasonCode.RESULT_EXPIRED),
        (a_result(linux_boot_id="another"), NOW, ReasonCode.BOOT_MISMATCH),
        (a_result(kubernetes_node_uid="another"), NOW, ReasonCode.RESULT_NODE_MISMATCH),
        (a_result(baseline=BaselineRef("h200-prod", "4.0.9", "ba" * 32)), NOW, ReasonCode.BASELINE_BELOW_FLOOR),
    ],
)
def test_what_is_not_proved_is_no_fall(result: AttestationResult | Failure, now: int, code: ReasonCode) -> None:
    standing = a_standing(result=result, now=now)
    assert (standing.passed, standing.fallen) == (frozenset(), False)
    assert code in codes(standing)


def test_the_next_change_is_the_first_second_in_which_the_node_fails() -> None:
    standing = a_standing()
    at = standing.changes_at()
    assert at is not None
    assert a_standing(now=at - 1).passed
    assert not a_standing(now=at).passed


def test_a_node_with_intruders_passes_and_is_not_labelled() -> None:
    standing = a_standing(intruders=("ml/root (hostPID)",))
    assert standing.passed == {"h200-prod"}
    assert not standing.labelled
    assert not labels_wanted(standing)


# --- the NodeAttestation ---


def status_of(
    standing: NodeStanding, before: dict[str, Any], jwt: str = "t1", now: int = NOW, lost: frozenset[str] = frozenset()
) -> dict[str, Any]:
    assert standing.result is not None
    return attestation_status(standing, Entry(jwt, standing.result), before, lost, now)


def test_an_attestation_is_written_first_and_then_not_again_for_a_like_result() -> None:
    standing = a_standing()
    first = status_of(standing, {})
    assert write_due({}, first, standing, NOW)
    newer = a_standing(result=a_result(issued_at=NOW, expires_at=NOW + 270))
    assert not write_due(first, status_of(newer, first, "t2"), newer, NOW + 1)


def test_an_attestation_is_written_again_when_its_result_is_half_spent() -> None:
    first = status_of(a_standing(), {})
    newer = a_standing(result=a_result(issued_at=NOW + 60, expires_at=NOW + 330), now=NOW + 110)
    at = refresh_at(first, newer)
    assert at is not None
    wanted = status_of(newer, first, "t2")
    assert NOW < at < NOW + 120
    assert not write_due(first, wanted, newer, at - 1)
    assert write_due(first, wanted, newer, at)


@pytest.mark.parametrize(
    "result",
    [
        a_result(**BAD),
        a_result(baseline=BaselineRef("h200-prod", "4.3.0", "ba" * 32)),
        a_result(linux_boot_id="another"),
    ],
    ids=["verdict", "baseline", "boot"],
)
def test_an_attestation_is_written_at_once_when_something_changed(result: AttestationResult) -> None:
    first = status_of(a_standing(), {})
    changed = a_standing(result=result)
    assert write_due(first, status_of(changed, first, "t2"), changed, NOW + 1)


def test_which_policies_were_lost_is_recorded_at_once_and_until_all_are_held() -> None:
    standing = a_standing(result=a_result(**BAD))
    first = status_of(standing, {}, lost=frozenset({"h200-prod"}))
    assert recorded_losses(first) == {"h200-prod"}
    both = status_of(standing, first, lost=frozenset({"h200-prod", "strict"}))
    assert write_due({**first, "result": "t1"}, both, standing, NOW)
    assert recorded_losses(both) == {"h200-prod", "strict"}
    assert recorded_losses(status_of(a_standing(), both)) == frozenset()


def test_each_further_bad_result_is_written_at_once() -> None:
    bad = a_standing(result=a_result(**BAD))
    first = status_of(bad, {})
    assert write_due(first, status_of(bad, first, "t2"), bad, NOW + 1)


def test_since_when_a_node_is_unproven_survives_the_controller() -> None:
    before = status_of(a_standing(now=NOW + 300), {}, now=NOW + 300)
    assert unproven_since(a_standing(now=NOW + 900), before, NOW + 900) == NOW + 300
    assert unproven_since(a_standing(now=NOW + 900), {}, NOW + 900) == NOW + 900


def test_a_node_that_never_had_a_result_lost_nothing() -> None:
    standing = a_standing(result=Failure(ReasonCode.RESULT_MISSING, "nodes"))
    assert unproven_since(standing, {}, NOW) is None


def test_an_intruder_is_no_reason_to_end_pods() -> None:
    assert unproven_since(a_standing(intruders=("ml/root (hostPID)",)), {}, NOW) is None


# --- the ends of pods ---


def test_a_pod_where_it_may_be_stays() -> None:
    assert a_fate() == Fate((), None)


def test_a_fallen_verdict_ends_the_pod_now() -> None:
    fate = a_fate(result=a_result(**BAD))
    assert fate.ending is not None
    assert (fate.ending.cause, fate.ending.due_at) == ("fallen", NOW)
    assert {failure.code for failure in fate.failures} == {ReasonCode.NODE_NOT_VERIFIED}


def test_silence_ends_the_pod_after_max_unverified() -> None:
    fate = a_fate(now=NOW + 300, since=NOW + 240)
    assert fate.ending is not None
    assert (fate.ending.cause, fate.ending.due_at) == ("silent", NOW + 240 + 1800)


def test_a_pod_on_a_node_that_was_never_verified_is_shown_and_left_alone() -> None:
    fate = a_fate(result=Failure(ReasonCode.RESULT_MISSING, "nodes"))
    assert fate.ending is None
    assert {failure.code for failure in fate.failures} == {ReasonCode.RESULT_MISSING}


@pytest.mark.parametrize("policy", [a_policy(enforcement="warn"), a_policy(enforcement="audit")])
def test_a_policy_that_does_not_deny_ends_nothing(policy: Any) -> None:
    assert a_fate(result=a_result(**BAD), policies=(policy,)).ending is None


def test_a_policy_whose_loss_does_nothing_ends_nothing() -> None:
    assert a_fate(result=a_result(**BAD), policies=(a_policy(on_loss=OnLoss(action="None")),)).ending is None


def test_of_several_policies_the_soonest_end_holds() -> None:
    strict = a_policy(name="strict", on_loss=OnLoss(max_unverified_seconds=60))
    workload = a_workload(stricter=(StricterRule({"tier": "gold"}, "strict"),))
    pod = a_pod(node_name=NODE, labels={"tier": "gold"})
    fate = a_fate(NOW + 300, NOW + 240, pod, policies=(a_policy(), strict), workloads=(workload,))
    assert fate.ending is not None
    assert fate.ending.due_at == NOW + 300


@pytest.mark.parametrize(
    ("on_loss", "asked", "step"),
    [
        (OnLoss(), None, "evict"),
        (OnLoss(), 29.9, "evict"),
        (OnLoss(), 30.0, "delete"),
        (OnLoss(fallback="None"), 30.0, "leave"),
    ],
)
def test_eviction_comes_first_and_the_fallback_after_the_grace(on_loss: OnLoss, asked: float | None, step: str) -> None:
    assert next_step(on_loss, asked) == step


# --- reach for the host ---

READER = Reader(ReasonCode.MANIFEST_INVALID, "pods.ml/x")


@pytest.mark.parametrize(
    "spec",
    [
        {"hostNetwork": True},
        {"hostPID": True},
        {"hostIPC": True},
        {"volumes": [{"name": "v", "hostPath": {"path": "/"}}]},
        {"containers": [{"name": "c", "securityContext": {"privileged": True}}]},
        {"initContainers": [{"name": "c", "securityContext": {"privileged": True}}]},
        {"ephemeralContainers": [{"name": "c", "securityContext": {"capabilities": {"add": ["SYS_PTRACE"]}}}]},
        {"containers": [{"name": "c", "securityContext": {"procMount": "Unmasked"}}]},
    ],
)
def test_every_way_to_the_host_is_seen(spec: dict[str, Any]) -> None:
    assert len(host_reach(spec, READER)) == 1


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"hostNetwork": False, "volumes": [{"name": "v", "emptyDir": {}}]},
        {"containers": [{"name": "c", "securityContext": {"capabilities": {"add": ["NET_BIND_SERVICE"]}}}]},
    ],
)
def test_an_ordinary_pod_has_no_reach(spec: dict[str, Any]) -> None:
    assert host_reach(spec, READER) == ()


def test_the_list_of_pods_that_may_reach_the_host_is_read_by_lines() -> None:
    listed = allowed_subjects({"data": {"allow": "nodewarden-attester/attester\ncni/*\n\n# a comment\n"}})
    assert listed == {"nodewarden-attester/attester", "cni/*"}
    assert allowed_subjects({}) == frozenset()


def test_a_pod_is_read_with_gates_owner_and_reach() -> None:
    pod = observe_pod(
        {
            "metadata": {
                "namespace": "ml",
                "name": "p",
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "0"},
                    {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "1", "controller": True},
                ],
            },
            "spec": {
                "containers": [{"name": "c", "image": IMAGE}],
                "schedulingGates": [{"name": "nodewarden.dev/attestation"}],
                "hostPID": True,
            },
        }
    )
    assert (pod.pod.gates, pod.host_reach) == (("nodewarden.dev/attestation",), ("hostPID",))
    assert pod.owner is not None
    assert (pod.owner.kind, pod.owner.name) == ("ReplicaSet", "rs")


def test_a_pod_that_cannot_be_read_is_an_intruder_and_still_governed() -> None:
    fields = {
        "metadata": {"namespace": "ml", "name": "p", "uid": "u", "labels": {"a": 1}},
        "spec": {"nodeName": NODE, "serviceAccountName": "llm", "containers": "none"},
    }
    pod = observe_pod(fields)
    assert pod.host_reach
    assert (pod.pod.node_name, pod.pod.service_account, pod.pod.ended) == (NODE, "llm", False)


def test_an_object_of_another_form_is_refused() -> None:
    with pytest.raises(MalformedEvidence) as refused:
        observe_node({"metadata": {"name": "n", "uid": "u"}, "spec": {"taints": "x"}})
    assert refused.value.code is ReasonCode.MANIFEST_INVALID
    with pytest.raises(MalformedEvidence) as refused:
        host_reach({"containers": [{"securityContext": {"capabilities": {"add": "SYS_ADMIN"}}}]}, READER)
    assert refused.value.code is ReasonCode.MANIFEST_INVALID


# --- set and statuses ---


def test_the_node_set_holds_nodes_that_pass_and_their_ends() -> None:
    assert node_set([a_standing()], NOW) == {NODE: "2027-01-15T08:04:00Z"}
    assert node_set([a_standing(now=NOW + 300)], NOW + 300) == {}
    assert node_set([a_standing(intruders=("ml/root (hostPID)",))], NOW) == {}


def observed_pod(**changes: Any) -> Any:
    return ObservedPod(a_pod(gates=("nodewarden.dev/attestation",), **changes), (), owner=None)


def test_a_scan_counts_pods_that_wait_that_pass_and_that_violate() -> None:
    pods = [
        observed_pod(),
        observed_pod(name="b", node_name=NODE),
        observed_pod(name="c", node_name=NODE, ended=True),
        observed_pod(name="d", node_name=NODE, service_account="other"),
    ]
    scan = scan_workload(a_cluster(), a_workload(), pods, NOW)
    assert (scan.verified, scan.gated, scan.violations) == (1, 1, ())
    bad = scan_workload(a_cluster(result=a_result(**BAD)), a_workload(), pods, NOW)
    assert (bad.verified, bad.gated, len(bad.violations)) == (0, 1, 1)


def conditions(status: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {part["type"]: (part["status"], part["reason"]) for part in status["conditions"]}


def test_a_workloads_status_names_what_is_missing() -> None:
    scan = scan_workload(a_cluster(), a_workload(), [], NOW)
    good = workload_status(a_workload(), scan, {"h200-prod": True}, {}, 3, NOW)
    assert (good["observedGeneration"], conditions(good)["Ready"]) == (3, ("True", "Governed"))
    assert conditions(good)["NodesAvailable"] == ("True", "NodesPass")
    bad = workload_status(a_workload(), scan, {}, {}, 3, NOW)
    assert conditions(bad)["Ready"] == ("False", "PolicyUnknown")
    assert conditions(bad)["NodesAvailable"] == ("False", "NoNodePasses")


def test_a_policys_status_counts_only_nodes_that_have_a_result() -> None:
    missing = a_standing(result=Failure(ReasonCode.RESULT_MISSING, "nodes"))
    status = policy_status(a_policy(), [a_standing(), a_standing(result=a_result(**BAD)), missing], {}, 1, NOW)
    assert status["nodes"] == {"verified": 1, "failed": 1}
