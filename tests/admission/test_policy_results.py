"""What a PolicyReport says of each sensitive pod, and which of it stays when nothing changed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from admission.controller.policy_results import (
    LEFT_OUT,
    MANAGED_BY,
    MAX_MESSAGE_CHARACTERS,
    MAX_RESULTS,
    is_ours,
    pod_results,
    report,
    stands,
)
from admission.trust_objects import MIN_BASELINE_ANNOTATION, Exemption, StricterRule
from tests.admission.test_controller_decisions import BAD
from tests.admission.world import NODE, NOW, POD_UID, a_cluster, a_pod, a_policy, a_result, a_workload
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure

PLACED = a_pod(node_name=NODE)
MISSING = Failure(ReasonCode.RESULT_MISSING, "nodes")


def results(pod: Any = PLACED, now: int = NOW, **cluster: Any) -> list[Any]:
    return pod_results(a_cluster(pod=pod, **cluster), pod, now)


def result(pod: Any = PLACED, now: int = NOW, **cluster: Any) -> Any:
    (found,) = results(pod, now, **cluster)
    return found


def verdict(found: Any) -> tuple[str, str, str]:
    return found["result"], found["severity"], found["properties"].get("codes", "")


def a_report(found: list[Any], written: Any = None, stored: Any = None) -> dict[str, Any]:
    return report("ml", found, written or {}, stored or {})


# --- one pod ---


def test_a_pod_where_it_may_be_passes_and_is_named_with_its_uid() -> None:
    found = result()
    assert verdict(found) == ("pass", "info", "")
    assert (found["policy"], found["rule"], found["source"]) == ("h200-prod", "node-verified", "nodewarden")
    assert found["timestamp"] == {"seconds": NOW, "nanos": 0}
    assert found["resources"] == [
        {"apiVersion": "v1", "kind": "Pod", "namespace": "ml", "name": "llm-0", "uid": POD_UID}
    ]


def test_a_pod_on_a_fallen_node_fails_critically_with_code_and_remedy() -> None:
    found = result(result=a_result(**BAD))
    assert verdict(found) == ("fail", "critical", ReasonCode.NODE_NOT_VERIFIED.value)
    assert ReasonCode.NODE_NOT_VERIFIED.value in found["message"]
    assert ReasonCode.NODE_NOT_VERIFIED.remedy in found["message"]
    assert found["properties"]["node"] == NODE


@pytest.mark.parametrize(("enforcement", "severity"), [("deny", "high"), ("warn", "medium"), ("audit", "low")])
def test_a_pod_on_an_unproven_node_fails_as_severely_as_its_policy_acts(enforcement: Any, severity: str) -> None:
    found = result(result=MISSING, policies=(a_policy(enforcement=enforcement),))
    assert verdict(found) == ("fail", severity, ReasonCode.RESULT_MISSING.value)


def test_a_bad_verdict_is_not_critical_to_a_policy_that_only_looks() -> None:
    found = result(result=a_result(**BAD), policies=(a_policy(enforcement="audit"),))
    assert verdict(found)[:2] == ("fail", "low")


def test_a_pod_on_a_node_that_is_not_there_fails() -> None:
    found = result(a_pod(node_name="gone"))
    assert verdict(found) == ("fail", "high", ReasonCode.NODE_UNKNOWN_TO_CLUSTER.value)


def test_a_pod_without_a_node_is_skipped() -> None:
    for pod in (a_pod(), a_pod(gates=("nodewarden.dev/attestation",))):
        assert verdict(result(pod, result=MISSING)) == ("skip", "info", "")


def test_an_exemption_skips_a_pod_while_it_holds_and_says_what_it_lets_pass() -> None:
    policies = (a_policy(exemptions=(Exemption("ml", "llm", "INC-1", NOW + 9),)),)
    found = result(result=MISSING, policies=policies)
    assert verdict(found) == ("skip", "info", ReasonCode.RESULT_MISSING.value)
    assert "INC-1" in found["message"]
    assert verdict(result(policies=policies)) == ("pass", "info", "")
    assert verdict(result(result=MISSING, policies=policies, now=NOW + 9))[0] == "fail"


def test_a_pod_that_raised_its_floor_above_its_node_fails() -> None:
    raised = a_pod(node_name=NODE, annotations={MIN_BASELINE_ANNOTATION: "h200-prod@4.3.0"})
    assert verdict(result(raised)) == ("fail", "high", ReasonCode.BASELINE_BELOW_FLOOR.value)


def test_each_policy_over_a_pod_has_a_result_and_so_has_each_fault_of_its_rules() -> None:
    gold = a_workload(stricter=(StricterRule({}, "gold"), StricterRule({}, "none")))
    found = results(policies=(a_policy(), a_policy(name="gold", baselines={"x": (1, 0, 0)})), workloads=(gold,))
    assert [(one["policy"], one["rule"], one["result"]) for one in found] == [
        ("none", "rules-apply", "fail"),
        ("h200-prod", "node-verified", "pass"),
        ("gold", "node-verified", "fail"),
    ]
    assert found[0]["properties"]["codes"] == ReasonCode.POLICY_UNKNOWN.value
    assert found[2]["properties"]["codes"] == ReasonCode.BASELINE_NOT_ACCEPTED.value


def test_a_policy_that_does_not_exist_is_named() -> None:
    found = result(policies=())
    assert (found["policy"], found["rule"]) == ("h200-prod", "rules-apply")
    assert verdict(found) == ("fail", "high", ReasonCode.POLICY_UNKNOWN.value)


def test_pods_that_nothing_governs_and_pods_that_ended_are_not_told_of() -> None:
    assert results(a_pod(node_name=NODE, service_account="other")) == []
    assert results(a_pod(node_name=NODE, ended=True)) == []


# --- the report ---


def many(count: int, **cluster: Any) -> list[Any]:
    return [one for n in range(count) for one in results(a_pod(name=f"p-{n:04}", node_name=NODE), **cluster)]


def test_a_report_has_no_owner_is_labelled_and_counts_its_results() -> None:
    made = a_report([result(), result(result=MISSING), *results(a_pod())])
    assert made["metadata"]["labels"] == {"app.kubernetes.io/managed-by": "nodewarden"}
    assert made["metadata"]["ownerReferences"] is None
    assert made["summary"] == {"pass": 1, "fail": 1, "skip": 1, "warn": 0, "error": 0}
    assert [one["result"] for one in made["results"]] == ["fail", "skip", "pass"]


def test_a_report_that_is_too_long_keeps_failures_and_says_how_many_it_left_out() -> None:
    made = a_report([*many(MAX_RESULTS), *many(7, result=MISSING)])
    assert len(made["results"]) == MAX_RESULTS
    assert [one["result"] for one in made["results"][:8]] == ["fail"] * 7 + ["pass"]
    assert made["summary"]["pass"] + made["summary"]["fail"] == MAX_RESULTS + 7
    assert made["metadata"]["annotations"] == {LEFT_OUT: "7"}


def test_the_longest_report_is_one_that_the_api_server_stores() -> None:
    longest = "\U0001f600" * 400
    failure = Failure(ReasonCode.RESULT_MISSING, longest, longest, longest)
    pods = [a_pod(namespace="n" * 63, name=f"{n:0253}", node_name="k" * 253) for n in range(MAX_RESULTS)]
    subjects = frozenset({("n" * 63, "llm")})
    policy = "p" * 253
    one = a_cluster(workloads=(a_workload(subjects=subjects, policy=policy),), policies=(a_policy(name=policy),))
    one.nodes["k" * 253], one.results[NODE] = one.nodes[NODE], failure  # type: ignore[index]  # - a dict here
    made = a_report([found for pod in pods for found in pod_results(one, pod, NOW)])
    assert len(made["results"]) == MAX_RESULTS
    assert all(len(found["message"]) == MAX_MESSAGE_CHARACTERS for found in made["results"])
    # etcd takes requests of 1.5 MiB (--max-request-bytes).
    assert len(json.dumps(made, ensure_ascii=False).encode()) < 1_500_000


def test_what_says_the_same_keeps_its_time_and_its_words() -> None:
    first = a_report([result(now=NOW + 240)])
    again = a_report([result(now=NOW + 300)], written=first)
    assert first["results"][0]["result"] == "fail"
    assert again == first
    changed = a_report([result(now=NOW + 300, result=a_result(**BAD))], written=first)
    assert changed["results"][0]["timestamp"]["seconds"] == NOW + 300


def test_of_a_stored_report_only_times_are_believed_and_none_of_the_future() -> None:
    stored = a_report([result(result=MISSING)])
    stored["results"][0] |= {"message": "all is well", "timestamp": {"seconds": NOW - 50, "nanos": 1}}
    made = a_report([result(result=MISSING)], stored=stored)["results"][0]
    assert made["timestamp"] == {"seconds": NOW - 50, "nanos": 0}
    assert made["message"] != "all is well"
    for time in ({"seconds": NOW + 1, "nanos": 0}, {"seconds": -1}, {"seconds": "1"}, "x", None):
        stored["results"][0]["timestamp"] = time
        assert a_report([result(result=MISSING)], stored=stored)["results"][0]["timestamp"]["seconds"] == NOW


@pytest.mark.parametrize("stored", [{"results": "x"}, {"results": [1, {"resources": 7, "properties": "y"}]}, {}])
def test_a_stored_report_of_any_form_is_no_obstacle(stored: Any) -> None:
    wanted = a_report([result()])
    assert a_report([result()], stored=stored) == wanted
    assert not stands(stored, wanted)
    assert not is_ours(stored)


@pytest.mark.parametrize(
    "change",
    [
        {"results": []},
        {"summary": {"pass": 7}},
        {"scope": {"kind": "Pod"}},
        {"metadata": {"name": "nodewarden", "labels": {}}},
        {"metadata": {"name": "nodewarden", "labels": MANAGED_BY, "ownerReferences": [{"kind": "Pod"}]}},
        {"metadata": {"name": "nodewarden", "labels": MANAGED_BY, "annotations": {LEFT_OUT: "3"}}},
    ],
)
def test_a_report_that_somebody_changed_does_not_stand(change: dict[str, Any]) -> None:
    wanted = a_report([result()])
    stored = {key: value for key, value in wanted.items() if value is not None}
    stored["metadata"] = {"name": "nodewarden", "labels": {**MANAGED_BY, "mine": "too"}}
    assert stands(stored, wanted)
    assert is_ours(stored)
    assert not stands({**stored, **change}, wanted)
