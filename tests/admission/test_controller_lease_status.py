"""The condition SecretsReleased: what pods of a workload hold, and what the broker has still to take back."""

from __future__ import annotations

from typing import Any

import pytest

from admission.controller.lease_status import Release, secrets_released
from admission.lease_records import instant
from tests.admission.world import NODE, NOW, POD_UID, a_cluster, a_pod, a_workload

ORDER = {"type": "RevocationRequested", "status": "True", "lastTransitionTime": "2027-01-15T08:00:00Z"}
FAILING = {"type": "Revoked", "status": "False", "message": "store-unavailable: backend"}
ORDERED = {"conditions": [ORDER]}
REVOKED = {"conditions": [ORDER], "revokedAt": "2027-01-15T08:00:00Z"}


def a_lease(status: dict[str, Any] | None = None, **spec: Any) -> Release:
    given = {
        "secret": "llm/key",
        "namespace": "ml",
        "podName": "llm-0",
        "podUID": POD_UID,
        "nodeName": NODE,
        "expires": instant(NOW + 60),
    }
    return {**given, **spec}, status or {}


def shown(*releases: Release, **before: Any) -> tuple[str, str, str]:
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
    assert shown(a_lease(expires="soon"))[:2] == ("False", "NothingReleased")
    assert shown()[:2] == ("False", "NothingReleased")


@pytest.mark.parametrize("uid", [POD_UID, "of a pod that is gone"])
def test_a_revocation_without_answer_shows_before_everything_else_and_why(uid: str) -> None:
    status, reason, message = shown(a_lease(), a_lease({"conditions": [ORDER, FAILING]}, podUID=uid))
    assert (status, reason) == ("False", "RevocationPending")
    assert message.endswith(f"llm/key of ml/llm-0 on {NODE} (store-unavailable: backend)")
    assert shown(a_lease(ORDERED))[:2] == ("False", "RevocationPending")


def test_revoked_leases_show_until_another_runs() -> None:
    assert shown(a_lease(REVOKED))[:2] == ("False", "LeasesRevoked")
    assert shown(a_lease(REVOKED), a_lease(secret="llm/other"))[:2] == ("True", "LeasesHeld")


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
