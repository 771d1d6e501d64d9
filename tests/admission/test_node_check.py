"""The node check that all decisions share: accepted as a whole, refused for each single change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from admission.node_check import RaisedFloor, node_failures
from tests.admission.world import NODE, NOW, a_cluster, a_node, a_policy, a_result
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure
from verifier.wire.result import BaselineRef, Submodule, Verdict


def codes(failures: tuple[Failure, ...]) -> list[ReasonCode]:
    return [failure.code for failure in failures]


def checked(result: Any = None, node: Any = None, policy: Any = None, raised: RaisedFloor | None = None) -> list[Any]:
    state = a_cluster(result=result, node=node)
    return codes(node_failures(state, NODE, policy or a_policy(), raised, NOW))


def test_a_fresh_affirming_result_of_this_node_and_boot_passes() -> None:
    assert checked() == []


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"expires_at": NOW}, ReasonCode.RESULT_EXPIRED),
        ({"expires_at": NOW - 1}, ReasonCode.RESULT_EXPIRED),
        ({"expires_at": NOW + 59}, ReasonCode.RESULT_VALIDITY_TOO_SHORT),
        ({"issued_at": NOW - 301}, ReasonCode.RESULT_TOO_OLD),
        ({"issued_at": NOW + 31}, ReasonCode.RESULT_FROM_FUTURE),
        ({"verdict": Verdict.WARNING}, ReasonCode.NODE_NOT_VERIFIED),
        ({"verdict": Verdict.CONTRAINDICATED}, ReasonCode.NODE_NOT_VERIFIED),
        ({"verdict": Verdict.NONE}, ReasonCode.NODE_NOT_VERIFIED),
        ({"baseline": None}, ReasonCode.BASELINE_NOT_ACCEPTED),
        ({"baseline": BaselineRef("h200-lab", "9.0.0", "ba" * 32)}, ReasonCode.BASELINE_NOT_ACCEPTED),
        ({"baseline": BaselineRef("h200-prod", "4.0.9", "ba" * 32)}, ReasonCode.BASELINE_BELOW_FLOOR),
        ({"baseline": BaselineRef("h200-prod", "4.2", "ba" * 32)}, ReasonCode.BASELINE_BELOW_FLOOR),
        ({"kubernetes_node_uid": None}, ReasonCode.RESULT_NODE_MISMATCH),
        ({"kubernetes_node_uid": "another"}, ReasonCode.RESULT_NODE_MISMATCH),
        ({"node_name": "gpu-2"}, ReasonCode.RESULT_NODE_MISMATCH),
        ({"linux_boot_id": None}, ReasonCode.BOOT_MISMATCH),
        ({"linux_boot_id": "another"}, ReasonCode.BOOT_MISMATCH),
    ],
)
def test_a_result_with_one_wrong_claim_is_refused_for_that_claim(changes: dict[str, Any], code: ReasonCode) -> None:
    assert checked(a_result(**changes)) == [code]


def test_a_version_is_compared_by_number_and_not_as_text() -> None:
    policy = a_policy(baselines={"h200-prod": (4, 9, 0)})
    assert checked(a_result(baseline=BaselineRef("h200-prod", "4.10.0", "ba" * 32)), policy=policy) == []


def test_the_last_second_of_a_result_is_its_expiry_without_leeway() -> None:
    policy = a_policy(min_remaining_seconds=1)
    assert checked(a_result(expires_at=NOW + 1), policy=policy) == []
    assert checked(a_result(expires_at=NOW), policy=policy) == [ReasonCode.RESULT_EXPIRED]


def test_a_warning_passes_only_under_a_policy_that_accepts_warnings() -> None:
    result = a_result(verdict=Verdict.WARNING, submodules={"tpm": Submodule(Verdict.WARNING, {"hardware": 32})})
    accepting = a_policy(accept=frozenset({Verdict.AFFIRMING, Verdict.WARNING}))
    assert checked(result, policy=accepting) == []


def test_a_node_without_any_result_is_refused() -> None:
    state = replace(a_cluster(), results={})
    assert codes(node_failures(state, NODE, a_policy(), None, NOW)) == [ReasonCode.RESULT_MISSING]


def test_a_result_that_was_refused_when_read_denies_with_its_own_reason() -> None:
    assert checked(Failure(ReasonCode.RESULT_ROLLED_BACK, "seq")) == [ReasonCode.RESULT_ROLLED_BACK]


def test_an_unknown_or_vanishing_node_is_refused() -> None:
    assert codes(node_failures(a_cluster(), "gpu-9", a_policy(), None, NOW)) == [ReasonCode.NODE_UNKNOWN_TO_CLUSTER]
    assert checked(node=a_node(deleting=True)) == [ReasonCode.NODE_UNKNOWN_TO_CLUSTER]


def test_a_rebooted_node_is_refused_until_it_is_attested_again() -> None:
    assert checked(node=a_node(claimed_boot_id="after-reboot")) == [ReasonCode.BOOT_MISMATCH]


def test_a_node_that_states_no_boot_id_is_refused_even_where_the_result_has_none_either() -> None:
    assert checked(a_result(linux_boot_id=""), node=a_node(claimed_boot_id="")) == [ReasonCode.BOOT_MISMATCH]
    assert checked(a_result(linux_boot_id=None), node=a_node(claimed_boot_id="")) == [ReasonCode.BOOT_MISMATCH]


def test_every_failed_claim_is_listed_so_that_one_look_is_enough() -> None:
    foreign = BaselineRef("h200-lab", "9.0.0", "ba" * 32)
    wrong = a_result(verdict=Verdict.NONE, baseline=foreign, expires_at=NOW - 5)
    assert checked(wrong) == [ReasonCode.RESULT_EXPIRED, ReasonCode.NODE_NOT_VERIFIED, ReasonCode.BASELINE_NOT_ACCEPTED]


def test_a_verdict_that_no_baseline_gave_is_one_reason_and_not_two() -> None:
    fallen = a_result(verdict=Verdict.CONTRAINDICATED, baseline=None)
    assert checked(fallen) == [ReasonCode.NODE_NOT_VERIFIED]


def test_a_pods_own_floor_raises_and_never_lowers_the_policys() -> None:
    assert checked(raised=RaisedFloor("h200-prod", (4, 2, 1))) == [ReasonCode.BASELINE_BELOW_FLOOR]
    assert checked(raised=RaisedFloor("h200-prod", (4, 2, 0))) == []
    below = a_result(baseline=BaselineRef("h200-prod", "4.0.0", "ba" * 32))
    assert checked(below, raised=RaisedFloor("h200-prod", (1, 0, 0))) == [ReasonCode.BASELINE_BELOW_FLOOR]
    both = a_policy(baselines={"h200-prod": (4, 1, 0), "h200-lab": (1, 0, 0)})
    assert checked(policy=both, raised=RaisedFloor("h200-lab", (1, 0, 0))) == [ReasonCode.BASELINE_NOT_ACCEPTED]
