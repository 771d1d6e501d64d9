"""What a binding would be told, what the workload's status says and what the PolicyReport says of one pod: one word."""

from __future__ import annotations

from typing import Any

import pytest

from admission.controller.loss import fate_of
from admission.controller.observed import ObservedPod
from admission.controller.policy_results import pod_results
from admission.controller.scan import scan_workload
from admission.decision import BindingRequest, Deny, decide_binding
from admission.pod_rules import govern
from admission.trust_objects import MIN_BASELINE_ANNOTATION
from tests.admission.world import NODE, NOW, POD_UID, a_cluster, a_node, a_pod, a_policy, a_result, a_workload
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure
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
