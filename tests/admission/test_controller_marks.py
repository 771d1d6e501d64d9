"""Which labels and taints a node shall have, and that nothing is taken off that we did not put on."""

from __future__ import annotations

from typing import Any

import pytest

from admission.controller.node_marks import (
    VERIFIED_LABEL,
    label_patch,
    labels_wanted,
    lost_policies,
    taint_patch,
    taints_wanted,
)
from admission.controller.observed import ObservedNode
from admission.controller.standing import NodeStanding
from admission.trust_objects import UNVERIFIED_TAINT, VERIFIED_LABEL_PREFIX, OnLoss
from tests.admission.test_controller_decisions import BAD, HOLDS, a_standing
from tests.admission.world import NODE_UID, NOW, a_node, a_policy, a_result
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure
from verifier.wire.result import AttestationResult


def observed(labels: dict[str, str] | None = None, taints: tuple[dict[str, Any], ...] = ()) -> ObservedNode:
    return ObservedNode(a_node(), labels or {}, taints, "7")


def test_labels_are_put_on_the_node_that_was_read_only() -> None:
    patch = label_patch(observed({"other": "x"}), labels_wanted(a_standing()))
    assert patch == {"metadata": {"uid": NODE_UID, "labels": {VERIFIED_LABEL: "true", HOLDS: "true"}}}


def test_a_forged_label_of_our_prefix_goes_whatever_it_says() -> None:
    forged = VERIFIED_LABEL_PREFIX + "made-up"
    patch = label_patch(observed({forged: "true", HOLDS: "maybe"}), {})
    assert patch == {"metadata": {"uid": NODE_UID, "labels": {forged: None, HOLDS: None}}}


def test_a_node_that_has_its_labels_is_left_alone() -> None:
    assert label_patch(observed({VERIFIED_LABEL: "true", HOLDS: "true"}), labels_wanted(a_standing())) is None


TAINTING = a_policy(on_loss=OnLoss(taint=True))
OTHER_TAINT = {"key": "other", "effect": "NoSchedule"}


def taints_of(node: ObservedNode, standing: NodeStanding, *recorded: str) -> list[dict[str, Any]]:
    return taints_wanted(node, standing, lost_policies(node, standing, frozenset(recorded), frozenset()))


def effects(taints: list[dict[str, Any]]) -> set[str]:
    return {taint["effect"] for taint in taints if taint["key"] == UNVERIFIED_TAINT}


@pytest.mark.parametrize(
    ("policy", "labels", "result", "now", "expected"),
    [
        (TAINTING, {HOLDS: "true"}, a_result(**BAD), NOW, {"NoSchedule", "NoExecute"}),
        (TAINTING, {HOLDS: "true"}, a_result(), NOW + 999, {"NoSchedule"}),
        (TAINTING, {HOLDS: "true"}, a_result(), NOW, set()),
        (TAINTING, {}, a_result(**BAD), NOW, set()),
        (a_policy(), {HOLDS: "true"}, a_result(**BAD), NOW, set()),
    ],
    ids=["fallen", "silent", "passing", "never held", "not asked for"],
)
def test_the_taint_marks_a_loss_where_the_policy_asks(
    policy: Any, labels: dict[str, str], result: AttestationResult, now: int, expected: set[str]
) -> None:
    standing = a_standing(policies=(policy,), result=result, now=now)
    wanted = taints_of(observed(labels, (OTHER_TAINT,)), standing)
    assert wanted[0] == OTHER_TAINT
    assert effects(wanted) == expected


def a_taint(value: str = "h200-prod", effect: str = "NoExecute") -> dict[str, Any]:
    return {"key": UNVERIFIED_TAINT, "value": value, "effect": effect}


def test_the_taint_stays_until_the_lost_policy_is_held_again() -> None:
    silent = a_standing(policies=(TAINTING,), now=NOW + 999)
    assert effects(taints_of(observed({}, (a_taint(),)), silent)) == {"NoSchedule", "NoExecute"}
    assert taints_of(observed({}, (a_taint(),)), a_standing(policies=(TAINTING,))) == []


def test_the_taint_stays_until_all_policies_that_were_recorded_as_lost_are_held_again() -> None:
    strict = a_policy(name="strict", on_loss=OnLoss(taint=True), accept=frozenset())
    standing = a_standing(policies=(TAINTING, strict))
    node = observed({HOLDS: "true"}, (a_taint(),))
    assert taints_of(node, standing) == []
    assert {taint["value"] for taint in taints_of(node, standing, "h200-prod", "strict")} == {"strict"}


def test_a_taint_for_a_policy_that_cannot_be_read_stays() -> None:
    node, standing = observed({HOLDS: "true"}, (a_taint("newer"),)), a_standing(policies=(TAINTING,))
    lost = lost_policies(node, standing, frozenset({"gone"}), frozenset({"newer"}))
    assert lost == {"newer"}
    assert {taint["value"] for taint in taints_wanted(node, standing, lost)} == {"newer"}


@pytest.mark.parametrize("value", ["", "true", "a-policy-that-was-deleted"])
def test_a_taint_that_no_policy_of_ours_explains_stays_until_the_node_is_labelled(value: str) -> None:
    node = observed({}, (a_taint(value, "NoSchedule"), OTHER_TAINT))
    for standing in (
        a_standing(policies=()),
        a_standing(policies=(TAINTING,), result=Failure(ReasonCode.RESULT_MISSING, "nodes")),
        a_standing(policies=(TAINTING,), intruders=("ml/root (hostPID)",)),
    ):
        assert taints_of(node, standing) == [dict(taint) for taint in node.taints]
    assert taints_of(node, a_standing(policies=(TAINTING,))) == [OTHER_TAINT]


def test_a_taint_of_an_effect_that_we_never_write_is_not_ours() -> None:
    foreign = a_taint(effect="PreferNoSchedule")
    assert taints_of(observed({}, (foreign,)), a_standing(policies=(TAINTING,))) == [foreign]


def test_a_taint_goes_with_the_wish_of_its_policy_for_one() -> None:
    assert taints_of(observed({}, (a_taint(),)), a_standing(result=a_result(**BAD))) == []


def test_taints_are_written_on_the_version_that_was_read() -> None:
    node = observed({}, (OTHER_TAINT, a_taint()))
    patch = taint_patch(node, taints_of(node, a_standing()))
    assert patch == {"metadata": {"uid": NODE_UID, "resourceVersion": "7"}, "spec": {"taints": [OTHER_TAINT]}}
