"""Our requests have seats of their own at the API server: no tenant takes them, and no account of ours another's."""

from __future__ import annotations

import math
from typing import Any

import pytest
import yaml

from admission.controller.heartbeat import LEASE_NAME as RESULTS_LEASE
from admission.controller.leadership import LEASE_NAME as LEADER_LEASE
from tests.deploy.rendered import Manifest, installed, pod_templates, render
from tests.deploy.test_rights import rights_of

LEASES = "nodewarden-leases"
KUBERNETES_SHARES = 245
"""Of the levels that Kubernetes has itself: system, node-high, leader-election, workload-high, workload-low,
global-default, catch-all."""
DEFAULT_SEATS = 600
ALL_SERVICE_ACCOUNTS, KUBE_SYSTEM_ACCOUNTS = 9000, 900
"""Precedences of Kubernetes' own schemas that would match our accounts or come next."""


def levels() -> dict[str, Any]:
    return {name: d["spec"] for name, d in installed("PriorityLevelConfiguration").items()}


def schemas() -> dict[str, Any]:
    return {name: d["spec"] for name, d in installed("FlowSchema").items()}


def accounts_of(schema: Any) -> list[tuple[str, str]]:
    subjects = [subject for rule in schema["rules"] for subject in rule["subjects"]]
    assert all(subject["kind"] == "ServiceAccount" for subject in subjects)
    return [(s["serviceAccount"]["namespace"], s["serviceAccount"]["name"]) for s in subjects]


def askers() -> set[tuple[str, str]]:
    """The accounts whose pods hold a token for the API server."""
    return {
        ("nodewarden-system", template["spec"]["serviceAccountName"])
        for template in pod_templates().values()
        if template["spec"]["automountServiceAccountToken"]
    }


def test_each_account_that_asks_the_api_server_has_a_level_that_nobody_else_is_in() -> None:
    whole = {name: spec for name, spec in schemas().items() if name != LEASES}
    assert [accounts_of(spec) for spec in whole.values()] == [[account] for account in map(_own, whole)]
    assert {account for spec in whole.values() for account in accounts_of(spec)} == askers()
    assert {spec["priorityLevelConfiguration"]["name"] for spec in schemas().values()} == levels().keys()
    for name, spec in schemas().items():
        assert spec["priorityLevelConfiguration"] == {"name": name}
    for spec in whole.values():
        ((rule,),) = [[r for part in spec["rules"] for r in part["resourceRules"]]]
        assert rule == {
            "apiGroups": ["*"],
            "resources": ["*"],
            "verbs": ["*"],
            "clusterScope": True,
            "namespaces": ["*"],
        }


def _own(name: str) -> tuple[str, str]:
    return ("nodewarden-system", name)


def test_the_leases_have_seats_that_only_their_renewals_take() -> None:
    schema = schemas()[LEASES]
    assert accounts_of(schema) == [_own("nodewarden-controller")]
    ((rule,),) = [[r for part in schema["rules"] for r in part["resourceRules"]]]
    assert (rule["apiGroups"], rule["resources"]) == (["coordination.k8s.io"], ["leases"])
    assert rule["namespaces"] == ["nodewarden-system"]
    granted = {
        (verb, name)
        for group, resource, verb, name in rights_of(installed("Role")["nodewarden-controller"])
        if (group, resource) == ("coordination.k8s.io", "nodewarden-system:leases")
    }
    assert {name for _, name in granted} == {"*", RESULTS_LEASE, LEADER_LEASE}
    assert set(rule["verbs"]) == {verb for verb, _ in granted}


def test_they_come_before_the_schemas_of_all_accounts_and_the_leases_first() -> None:
    precedence = {name: spec["matchingPrecedence"] for name, spec in schemas().items()}
    leases = precedence.pop(LEASES)
    assert leases < min(precedence.values())
    assert max(precedence.values()) < KUBE_SYSTEM_ACCOUNTS < ALL_SERVICE_ACCOUNTS


@pytest.mark.parametrize(("seats", "most_of_all"), [(DEFAULT_SEATS, 1 / 7), (60, 1 / 4)])
def test_nothing_of_it_is_lent_and_what_an_account_may_take_is_bounded(seats: int, most_of_all: float) -> None:
    shares = {name: spec["limited"]["nominalConcurrencyShares"] for name, spec in levels().items()}
    total = KUBERNETES_SHARES + sum(shares.values())
    taken = 0
    for name, spec in levels().items():
        limited = spec["limited"]
        assert spec["type"] == "Limited"
        assert limited["lendablePercent"] == 0
        own = math.ceil(seats * shares[name] / total)
        most = own + round(own * limited["borrowingLimitPercent"] / 100)
        assert own >= 1
        taken += most
        # One flow: a queue of its own, which waits and does not refuse at once.
        assert limited["limitResponse"] == {
            "type": "Queue",
            "queuing": {"queues": 1, "handSize": 1, "queueLengthLimit": 200},
        }
    # All our accounts together, stolen and as busy as can be, with all that others leave idle.
    assert taken <= seats * most_of_all
    assert levels()[LEASES]["limited"]["borrowingLimitPercent"] == 0
    assert all("distinguisherMethod" not in spec for spec in schemas().values())


def test_without_the_broker_there_is_no_level_of_it() -> None:
    found: list[Manifest] = [d for d in yaml.safe_load_all(render("--set", "broker.enabled=false")) if d]
    for kind in ("FlowSchema", "PriorityLevelConfiguration"):
        names = {d["metadata"]["name"] for d in found if d["kind"] == kind}
        assert names == {LEASES, "nodewarden-controller", "nodewarden-webhook"}
