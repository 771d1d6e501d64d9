"""The condition SecretsReleased: what pods of a workload hold, and what the broker has still to take back."""

from __future__ import annotations

from typing import Any

import pytest

from admission.controller.lease_status import secrets_released
from admission.lease_records import Recorded, instant, observe_record
from tests.admission.lease_objects import FAILED, ORDERED, OVERWRITTEN, REVOKED, a_release
from tests.admission.world import NODE, NOW, POD_UID, a_cluster, a_pod, a_workload


def a_lease(status: dict[str, Any] | None = None, **spec: Any) -> Recorded:
    return observe_record(a_release(status, **spec))


def shown(*releases: Recorded, **before: Any) -> tuple[str, str, str]:
    state = a_cluster(pod=a_pod(node_name=NODE))
    found = secrets_released(state, a_workload(), releases, before, NOW)
    assert found["type"] == "SecretsReleased"
    return found["status"], found["reason"], found["message"]


def test_leases_that_run_are_counted_with_their_pods() -> None:
    status, reason, message = shown(a_lease(), a_lease(secret="llm/other"))
    assert (status, reason) == ("True", "LeasesHeld")
    assert message == "leases that run: 2, of pods: 1"


def test_an_ended_lease_is_held_by_nobody() -> None:
    assert shown(a_lease(expires=instant(NOW)))[:2] == ("False", "NothingReleased")
    assert shown()[:2] == ("False", "NothingReleased")


@pytest.mark.parametrize("uid", [POD_UID, "of a pod that is gone"])
def test_a_revocation_without_answer_shows_before_everything_else_and_why(uid: str) -> None:
    status, reason, message = shown(a_lease(), a_lease(FAILED, podUID=uid))
    assert (status, reason) == ("False", "RevocationPending")
    assert message.endswith(f"llm/key of ml/llm-0 on {NODE} (store-unavailable: backend)")
    for ordered in (ORDERED, OVERWRITTEN):
        assert shown(a_lease(ordered))[:2] == ("False", "RevocationPending")


def test_revoked_leases_show_until_another_runs() -> None:
    assert shown(a_lease(REVOKED))[:2] == ("False", "LeasesRevoked")
    assert shown(a_lease(REVOKED), a_lease(secret="llm/other"))[:2] == ("True", "LeasesHeld")


@pytest.mark.parametrize("change", [{"expires": "soon"}, {"secret": None}, {"namespace": None}, {"podUID": None}])
def test_a_record_that_cannot_be_read_may_be_of_a_lease_that_runs(change: dict[str, Any]) -> None:
    status, reason, message = shown(a_lease(), a_lease(name="odd", **change))
    assert (status, reason) == ("Unknown", "RecordsUnreadable")
    assert message == "records of leases that cannot be read: 1: odd"
    assert shown(a_lease(ORDERED, name="odd", **change))[1] == "RevocationPending"
    assert shown(a_lease(REVOKED, name="odd", **change))[1] == "LeasesRevoked"
    assert shown(a_lease(name="odd", **{**change, "namespace": "another"}))[1] == "NothingReleased"


def test_leases_of_other_accounts_namespaces_and_secrets_are_not_this_workloads() -> None:
    state = a_cluster(pod=a_pod(node_name=NODE, service_account="another"))
    theirs = secrets_released(state, a_workload(), [a_lease()], {}, NOW)
    assert theirs["reason"] == "NothingReleased"
    assert shown(a_lease(podUID="gone", secret="another"))[1] == "NothingReleased"
    assert shown(a_lease(namespace="another"))[1] == "NothingReleased"


def test_many_pending_revocations_stay_a_short_text() -> None:
    message = shown(*(a_lease(ORDERED, secret="llm/key", podUID=str(n)) for n in range(5000)))[2]
    assert "5000" in message
    assert len(message) < 1000
