"""What a binding would be told, what the workload's status says and what the PolicyReport says of one pod: one word."""

from __future__ import annotations

from typing import Any

import pytest

from admission.controller.judged import JudgedState
from admission.controller.loss import fate_of
from admission.controller.observed import ObservedPod
from admission.controller.overview import Overview
from admission.controller.policy_reports import PolicyReports
from admission.controller.policy_results import pod_results
from admission.controller.scan import scan_workload
from admission.controller.view import OURS
from admission.decision import BindingRequest, Deny, decide_binding
from admission.kinds import attestation_manifest, parse_attestation
from admission.pod_rules import govern
from admission.trust_objects import MIN_BASELINE_ANNOTATION, NodeAttestation
from tests.admission.test_controller_reconcile import BAD, World
from tests.admission.world import NODE, NODE_UID, NOW, POD_UID, a_cluster, a_node, a_pod, a_policy, a_result, a_workload
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure, Rejection
from verifier.wire.result import BaselineRef, Verdict

CODES = {code.value: code for code in ReasonCode}
BOTH = (a_policy(), a_policy(name="h200-gold", baselines={"h200-gold": (1, 0, 0), "h200-prod": (4, 1, 0)}))


def binding_codes(state: Any) -> set[ReasonCode]:
    denied = decide_binding(state, BindingRequest("ml", "llm-0", POD_UID, NODE, {}, {}), NOW)
    return {failure.code for failure in denied.failures} if isinstance(denied, Deny) else set()


def status_codes(state: Any, pod: Any) -> set[ReasonCode]:
    scan = scan_workload(state, a_workload(), [ObservedPod(pod, (), None)], NOW)
    assert scan.verified + len(scan.violations) == 1
    return {failure.code for violation in scan.violations for failure in violation.failures}


def report_codes(state: Any, pod: Any) -> set[ReasonCode]:
    failed = [one for one in pod_results(state, pod, NOW) if one["result"] == "fail"]
    return {CODES[code] for one in failed for code in one["properties"]["codes"].split(",")}


@pytest.mark.parametrize(
    ("demand", "changes", "expected"),
    [
        (None, {}, set()),
        ("h200-prod@4.2.0", {}, set()),
        ("h200-prod@4.0.0", {}, set()),
        ("h200-prod@4.2.1", {}, {ReasonCode.BASELINE_BELOW_FLOOR}),
        ("h200-prod@9.0.0", {}, {ReasonCode.BASELINE_BELOW_FLOOR}),
        ("h200-gold@1.0.0", {"policies": (BOTH[1],)}, {ReasonCode.POLICY_UNKNOWN}),
        ("unheard-of@1.0.0", {}, {ReasonCode.MIN_BASELINE_INVALID, ReasonCode.BASELINE_NOT_ACCEPTED}),
        ("4.2.0", {}, {ReasonCode.MIN_BASELINE_INVALID}),
        ("h200-prod@4.2.1", {"result": a_result(verdict=Verdict.CONTRAINDICATED)}, {ReasonCode.NODE_NOT_VERIFIED}),
        ("h200-prod@4.2.1", {"result": Failure(ReasonCode.RESULT_MISSING, "nodes")}, {ReasonCode.RESULT_MISSING}),
        (
            "h200-prod@4.2.0",
            {"result": a_result(baseline=BaselineRef("h200-prod", "4.1.9", "ba" * 32))},
            {ReasonCode.BASELINE_BELOW_FLOOR},
        ),
    ],
)
def test_binding_status_and_report_agree_about_a_pod(
    demand: str | None, changes: dict[str, Any], expected: set[ReasonCode]
) -> None:
    annotations = {} if demand is None else {MIN_BASELINE_ANNOTATION: demand}
    waits, runs = (a_pod(node_name=name, annotations=annotations) for name in ("", NODE))
    bound = binding_codes(a_cluster(pod=waits, **changes))
    state = a_cluster(pod=runs, **changes)
    assert bound == status_codes(state, runs) == report_codes(state, runs)
    assert expected <= bound
    assert bool(expected) == bool(bound)


def fate(demand: str, since: int | None, **changes: Any) -> Any:
    pod = a_pod(node_name=NODE, annotations={MIN_BASELINE_ANNOTATION: demand})
    state = a_cluster(pod=pod, **changes)
    governance, found = govern(state, pod, NOW), state.result_of(a_node())
    assert governance is not None
    return fate_of(state, governance, a_node(), None if isinstance(found, Failure) else found, since, NOW)


def test_a_pod_that_only_misses_its_own_floor_is_shown_and_not_ended() -> None:
    # The node may be unproven since long ago for another policy, which has no say about this pod.
    shown = fate("h200-prod@9.0.0", NOW - 100_000)
    assert {failure.code for failure in shown.failures} == {ReasonCode.BASELINE_BELOW_FLOOR}
    assert shown.ending is None


def test_a_pod_with_a_floor_of_its_own_ends_with_its_node_as_any_other() -> None:
    fallen = fate("h200-prod@9.0.0", None, result=a_result(verdict=Verdict.CONTRAINDICATED))
    assert fallen.ending is not None
    assert fallen.ending.cause == "fallen"
    silent = fate("h200-prod@4.2.0", NOW, result=Failure(ReasonCode.RESULT_MISSING, "nodes"))
    assert silent.ending is not None
    assert silent.ending.cause == "silent"


# --- a node that passes, and runs a pod that could act upon it ---


@pytest.fixture
def intruded() -> World:
    world = World()
    world.put_pod(ObservedPod(a_pod(name="root", namespace="x", node_name=NODE), ("hostPID",), None))
    return world


def told(world: World) -> NodeAttestation:
    """The NodeAttestation of the node as the controller writes it now, and as webhook and broker read it."""
    world.nodes.reconcile(NODE)
    status = [body for method, path, body in world.api.requests if path.endswith(f"/{NODE}/status")][-1]["status"]
    stored = {**attestation_manifest(NODE, NODE_UID, status["result"]), "status": status}
    return parse_attestation(stored, "told")


def test_what_the_webhook_denies_for_an_intruder_is_shown_as_a_violation_and_reported(intruded: World) -> None:
    with pytest.raises(Rejection) as denied:
        told(intruded).require_no_host_access()
    pod = a_pod(node_name=NODE)
    state = JudgedState(intruded.view, NOW)
    assert {denied.value.code} == status_codes(state, pod) == report_codes(state, pod)
    assert denied.value.code is ReasonCode.NODE_RUNS_INTRUDER
    assert not [path for _, path in intruded.api.asked() if "/pods/" in path]


def test_statuses_and_reports_are_of_the_state_in_which_the_webhook_denies(intruded: World) -> None:
    Overview(intruded.view, intruded.writer, lambda: NOW).workload("llm")
    status = intruded.body_of(f"{OURS}/sensitiveworkloads/llm/status")["status"]
    assert status["pods"] == {"verified": 0, "gated": 0, "violating": 1}
    reports = PolicyReports(intruded.view, intruded.view.nodes._client, intruded.writer, lambda: NOW)
    [one] = reports._results()["ml"]
    assert (one["result"], one["properties"]["codes"]) == ("fail", ReasonCode.NODE_RUNS_INTRUDER.value)


def test_of_a_node_that_fell_the_verdict_is_told_and_not_its_intruder(intruded: World) -> None:
    intruded.take(**BAD)
    state, pod = JudgedState(intruded.view, NOW), a_pod(node_name=NODE)
    told(intruded).require_no_host_access()
    assert status_codes(state, pod) == report_codes(state, pod) == {ReasonCode.NODE_NOT_VERIFIED}
