"""What is remembered of nodes and rules dies with whatever it was worked out of: no allow outlives its reasons."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admission import node_check, pod_rules
from admission.cluster_view import Snapshot
from admission.decision import Allow, BindingRequest, Deny, decide_binding
from admission.node_check import RaisedFloor, node_failures
from admission.pod_rules import govern
from admission.trust_objects import MIN_BASELINE_ANNOTATION, Exemption, NodeTrustPolicy, StricterRule
from tests.admission.world import NODE, NOW, POD_UID, a_cluster, a_node, a_pod, a_policy, a_result, a_workload
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure
from verifier.wire.result import AttestationResult, BaselineRef, Verdict


@pytest.fixture(autouse=True)
def nothing_remembered() -> Iterator[None]:
    node_check._PASSES.clear()
    pod_rules._PLAIN.clear()
    yield
    node_check._PASSES.clear()
    pod_rules._PLAIN.clear()


def codes(state: Snapshot, now: int = NOW) -> list[ReasonCode]:
    decision = decide_binding(state, BindingRequest("ml", "llm-0", POD_UID, NODE), now)
    return [failure.code for failure in decision.failures] if isinstance(decision, Deny) else []


def warnings(state: Snapshot) -> list[ReasonCode]:
    decision = decide_binding(state, BindingRequest("ml", "llm-0", POD_UID, NODE), NOW)
    assert isinstance(decision, Allow)
    return [failure.code for failure in decision.warnings]


ALLOWED = a_cluster()


def result_of(**changes: Any) -> Snapshot:
    return replace(ALLOWED, results={NODE: a_result(**changes)})


def node_of(**changes: Any) -> Snapshot:
    return replace(ALLOWED, nodes={NODE: a_node(**changes)})


def policy_of(**changes: Any) -> Snapshot:
    return replace(ALLOWED, policies={"h200-prod": a_policy(**changes)})


def workload_of(**changes: Any) -> Snapshot:
    return replace(ALLOWED, workloads=(a_workload(**changes),))


CHANGES = [
    (result_of(verdict=Verdict.CONTRAINDICATED), ReasonCode.NODE_NOT_VERIFIED),
    (result_of(expires_at=NOW), ReasonCode.RESULT_EXPIRED),
    (result_of(issued_at=NOW - 301), ReasonCode.RESULT_TOO_OLD),
    (result_of(linux_boot_id="another"), ReasonCode.BOOT_MISMATCH),
    (result_of(baseline=BaselineRef("h200-prod", "4.0.9", "ba" * 32)), ReasonCode.BASELINE_BELOW_FLOOR),
    (replace(ALLOWED, results={}), ReasonCode.RESULT_MISSING),
    (replace(ALLOWED, results={NODE: Failure(ReasonCode.RESULT_ROLLED_BACK, "seq")}), ReasonCode.RESULT_ROLLED_BACK),
    (node_of(claimed_boot_id="after-reboot"), ReasonCode.BOOT_MISMATCH),
    (node_of(uid="made-again"), ReasonCode.RESULT_NODE_MISMATCH),
    (node_of(deleting=True), ReasonCode.NODE_UNKNOWN_TO_CLUSTER),
    (replace(ALLOWED, nodes={}), ReasonCode.NODE_UNKNOWN_TO_CLUSTER),
    (policy_of(baselines={"h200-prod": (4, 3, 0)}), ReasonCode.BASELINE_BELOW_FLOOR),
    (policy_of(accept=frozenset({Verdict.WARNING})), ReasonCode.NODE_NOT_VERIFIED),
    (policy_of(min_remaining_seconds=241), ReasonCode.RESULT_VALIDITY_TOO_SHORT),
    (policy_of(max_evidence_age_seconds=29), ReasonCode.RESULT_TOO_OLD),
    (replace(ALLOWED, policies={}), ReasonCode.POLICY_UNKNOWN),
    (workload_of(policy="another"), ReasonCode.POLICY_UNKNOWN),
    (workload_of(stricter=(StricterRule({}, "another"),)), ReasonCode.POLICY_UNKNOWN),
    (replace(ALLOWED, fault=Failure(ReasonCode.VIEW_STALE, "view")), ReasonCode.VIEW_STALE),
]


@pytest.mark.parametrize(("changed", "code"), CHANGES)
def test_an_allow_dies_with_the_change_and_comes_back_when_it_is_undone(changed: Snapshot, code: ReasonCode) -> None:
    assert codes(ALLOWED) == codes(ALLOWED) == []
    assert node_check._PASSES
    assert pod_rules._PLAIN
    assert codes(changed) == [code]
    assert codes(ALLOWED) == []
    assert codes(changed) == [code]


def test_a_pod_s_own_words_are_read_each_time() -> None:
    assert codes(ALLOWED) == []
    key = ("ml", "llm-0")
    raised = replace(ALLOWED, pods={key: a_pod(annotations={MIN_BASELINE_ANNOTATION: "h200-prod@9.0.0"})})
    assert codes(raised) == [ReasonCode.BASELINE_BELOW_FLOOR]
    invalid = replace(ALLOWED, pods={key: a_pod(annotations={MIN_BASELINE_ANNOTATION: "?"})})
    assert codes(invalid) == [ReasonCode.MIN_BASELINE_INVALID]
    gold = a_policy(name="gold", baselines={"h200-prod": (9, 0, 0)})
    workload = a_workload(stricter=(StricterRule({"tier": "gold"}, "gold"),))
    state = replace(ALLOWED, workloads=(workload,), policies={**ALLOWED.policies, "gold": gold})
    assert codes(state) == []
    labelled = replace(state, pods={key: a_pod(labels={"tier": "gold"})})
    assert codes(labelled) == [ReasonCode.BASELINE_BELOW_FLOOR]


def test_what_a_policy_does_about_a_failure_is_the_policy_of_now() -> None:
    bad = {NODE: a_result(verdict=Verdict.CONTRAINDICATED)}
    warning = replace(ALLOWED, results=bad, policies={"h200-prod": a_policy(enforcement="warn")})
    assert warnings(warning) == [ReasonCode.NODE_NOT_VERIFIED]
    assert codes(replace(ALLOWED, results=bad)) == [ReasonCode.NODE_NOT_VERIFIED]


def test_an_exemption_ends_on_time() -> None:
    bad = {NODE: a_result(verdict=Verdict.CONTRAINDICATED)}
    exempt = a_policy(exemptions=(Exemption("ml", "llm", "INC-1", NOW + 5),))
    state = replace(ALLOWED, results=bad, policies={"h200-prod": exempt})
    assert codes(state, NOW + 4) == []
    assert codes(state, NOW + 5) == [ReasonCode.NODE_NOT_VERIFIED]


def test_a_pass_of_one_node_is_none_of_another_and_one_policy_s_none_of_another_s() -> None:
    assert node_failures(ALLOWED, NODE, a_policy(), None, NOW) == ()
    others = replace(ALLOWED, nodes={"gpu-2": a_node(name="gpu-2")}, results={"gpu-2": a_result()})
    assert [f.code for f in node_failures(others, "gpu-2", a_policy(), None, NOW)] == [ReasonCode.RESULT_NODE_MISMATCH]
    stricter = a_policy(name="gold", baselines={"h200-prod": (9, 0, 0)})
    assert [f.code for f in node_failures(ALLOWED, NODE, stricter, None, NOW)] == [ReasonCode.BASELINE_BELOW_FLOOR]


def test_a_raised_floor_is_asked_anew_after_a_pass_without_one() -> None:
    policy = a_policy()
    assert node_failures(ALLOWED, NODE, policy, None, NOW) == ()
    failures = node_failures(ALLOWED, NODE, policy, RaisedFloor("h200-prod", (9, 0, 0)), NOW)
    assert [failure.code for failure in failures] == [ReasonCode.BASELINE_BELOW_FLOOR]


TIMES = st.integers(NOW - 700, NOW + 700)


def _fresh(result: AttestationResult, policy: NodeTrustPolicy, now: int) -> tuple[Failure, ...]:
    node_check._PASSES.clear()
    return node_failures(replace(ALLOWED, results={NODE: result}), NODE, policy, None, now)


@given(TIMES, TIMES, st.integers(1, 900), st.integers(0, 300), TIMES, TIMES)
def test_at_no_time_does_a_remembered_pass_say_other_than_a_fresh_look(
    issued_at: int, expires_at: int, max_age: int, min_remaining: int, first: int, then: int
) -> None:
    result = a_result(issued_at=issued_at, expires_at=expires_at)
    policy = a_policy(max_evidence_age_seconds=max_age, min_remaining_seconds=min_remaining)
    expected = _fresh(result, policy, then)
    state = replace(ALLOWED, results={NODE: result})
    node_check._PASSES.clear()
    # At every second at which it could have been remembered, and at one of any.
    for now in (first, issued_at, expires_at - min_remaining, expires_at - 1, issued_at + max_age):
        node_failures(state, NODE, policy, None, now)
    assert node_failures(state, NODE, policy, None, then) == expected


def test_memory_for_what_passed_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_check, "MAX_REMEMBERED", 3)
    monkeypatch.setattr(pod_rules, "MAX_REMEMBERED", 3)
    for n in range(20):
        name = f"gpu-{n}"
        workload = a_workload(subjects=frozenset({("ml", name)}))
        state = a_cluster(node=a_node(name=name), result=a_result(node_name=name), workloads=(workload,))
        assert node_failures(state, name, a_policy(), None, NOW) == ()
        assert govern(state, a_pod(service_account=name), NOW) is not None
        assert len(node_check._PASSES) <= 3
        assert len(pod_rules._PLAIN) <= 3


def test_the_same_rules_are_the_same_object_until_they_change() -> None:
    governance = govern(ALLOWED, a_pod(), NOW)
    assert governance is govern(ALLOWED, a_pod(name="llm-1"), NOW + 100)
    # Equal, and yet others: read again, they are judged again.
    again = replace(ALLOWED, workloads=(a_workload(),), policies={"h200-prod": a_policy()})
    assert govern(again, a_pod(), NOW) == governance
    assert govern(again, a_pod(), NOW) is not governance
