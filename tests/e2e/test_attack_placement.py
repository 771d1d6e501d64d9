"""A tenant with every right in a namespace tries to get a sensitive pod onto a node that is not verified."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.client import Client
from tests.e2e.governed import (
    BAD_NODE,
    GATE,
    GOOD_NODES,
    POLICY,
    UNKNOWN_NODE,
    UNREACHABLE_POLICY,
    Governed,
    governed_namespace,
    is_labelled,
)
from tests.e2e.pods import wait_for_phase
from tests.e2e.system import System
from verifier.wire.codes import ReasonCode

OTHER_IMAGE = "registry.example/shell@sha256:" + "b" * 64
UNSCHEDULED = {"schedulerName": "nobody"}


@pytest.fixture
def never_verified(system: System, fleet: object, namespace: str) -> Iterator[Governed]:
    """A governed namespace whose policy no node meets."""
    with governed_namespace(system, namespace, policy=UNREACHABLE_POLICY) as made:
        yield made


def test_a_sensitive_pod_runs_on_a_verified_node(governed: Governed, tenant: Client) -> None:
    for number in range(4):
        tenant.must_create(governed.path(), governed.pod(f"p{number}"))
    for number in range(4):
        pod = wait_for_phase(tenant, governed.namespace, f"p{number}", seconds=30)
        assert is_labelled(governed.admin, pod["spec"]["nodeName"])


@pytest.mark.parametrize("target", [BAD_NODE, UNKNOWN_NODE])
def test_a_pod_that_names_an_unverified_node_itself_is_denied(governed: Governed, tenant: Client, target: str) -> None:
    answer = tenant.create(governed.path(), governed.pod("p", nodeName=target))
    why = ReasonCode.NODE_NOT_VERIFIED if target == BAD_NODE else ReasonCode.RESULT_MISSING
    assert answer.denies(ReasonCode.NODE_NAME_SET_DIRECTLY, why), answer.message
    assert tenant.create(governed.path(), governed.pod("p", nodeName=GOOD_NODES[0])).accepted


@pytest.mark.parametrize("target", [BAD_NODE, UNKNOWN_NODE])
def test_a_binding_posted_by_hand_to_an_unverified_node_is_denied(
    governed: Governed, tenant: Client, target: str
) -> None:
    tenant.must_create(governed.path(), governed.pod("p", **UNSCHEDULED))
    governed.ungated("p")
    answer = tenant.create(governed.path("p", "binding"), governed.binding("p", target))
    why = ReasonCode.NODE_NOT_VERIFIED if target == BAD_NODE else ReasonCode.RESULT_MISSING
    assert answer.denies(why), answer.message

    assert tenant.create(governed.path("p", "binding"), governed.binding("p", GOOD_NODES[1])).accepted
    assert wait_for_phase(tenant, governed.namespace, "p")["spec"]["nodeName"] == GOOD_NODES[1]


def test_the_older_resource_for_bindings_is_no_way_around(governed: Governed, tenant: Client, namespace: str) -> None:
    tenant.must_create(governed.path(), governed.pod("p", **UNSCHEDULED))
    governed.ungated("p")
    path = f"/api/v1/namespaces/{namespace}/bindings"
    # The API server takes the UID out of a Binding that comes this way, so that none can name its pod.
    answer = tenant.create(path, governed.binding("p", UNKNOWN_NODE))
    assert answer.denies(ReasonCode.BINDING_UID_MISSING, ReasonCode.RESULT_MISSING), answer.message
    answer = tenant.create(path, governed.binding("p", GOOD_NODES[0]))
    assert answer.denies(ReasonCode.BINDING_UID_MISSING), answer.message


def test_a_binding_that_names_no_pod_uid_is_denied(governed: Governed, tenant: Client) -> None:
    tenant.must_create(governed.path(), governed.pod("p", **UNSCHEDULED))
    governed.ungated("p")
    answer = tenant.create(governed.path("p", "binding"), governed.binding("p", GOOD_NODES[0], uid=None))
    assert answer.denies(ReasonCode.BINDING_UID_MISSING), answer.message


def test_a_binding_that_carries_our_keys_to_the_pod_is_denied(governed: Governed, tenant: Client) -> None:
    tenant.must_create(governed.path(), governed.pod("p", **UNSCHEDULED))
    governed.ungated("p")
    keys = {"nodewarden.dev/min-baseline": "demo-node@0.0.1"}
    answer = tenant.create(governed.path("p", "binding"), governed.binding("p", GOOD_NODES[0], annotations=keys))
    assert answer.denies(ReasonCode.BINDING_METADATA_FORBIDDEN), answer.message


@pytest.mark.parametrize(
    "toleration",
    [{"operator": "Exists"}, {"key": "nodewarden.dev/unverified", "operator": "Exists"}],
    ids=["wildcard", "ours by name"],
)
def test_a_toleration_of_our_taint_is_denied(governed: Governed, tenant: Client, toleration: dict[str, str]) -> None:
    answer = tenant.create(governed.path(), governed.pod("p", tolerations=[toleration]))
    assert answer.denies(ReasonCode.WORKLOAD_TOLERATION_FORBIDDEN), answer.message

    tenant.must_create(governed.path(), governed.pod("p"))
    later = tenant.patch(
        governed.path("p"), [{"op": "add", "path": "/spec/tolerations/-", "value": toleration}], kind="json"
    )
    assert later.denies(ReasonCode.WORKLOAD_TOLERATION_FORBIDDEN), later.message


def test_another_scheduler_s_pods_are_judged_alike(governed: Governed, tenant: Client) -> None:
    mine = {"schedulerName": "tenants-own"}
    answer = tenant.create(governed.path(), governed.pod("p", OTHER_IMAGE, **mine))
    assert answer.denies(ReasonCode.WORKLOAD_IMAGE_NOT_ALLOWED), answer.message
    made = tenant.must_create(governed.path(), governed.pod("p", **mine))
    terms = made["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (term,) = terms["nodeSelectorTerms"]
    assert POLICY in {part["key"].rpartition("/")[2] for part in term["matchExpressions"]}
    governed.ungated("p")
    bound = tenant.create(governed.path("p", "binding"), governed.binding("p", BAD_NODE))
    assert bound.denies(ReasonCode.NODE_NOT_VERIFIED), bound.message


def test_an_affinity_of_the_tenants_own_does_not_lead_elsewhere(governed: Governed, tenant: Client) -> None:
    hostname = {"key": "kubernetes.io/hostname", "operator": "In", "values": [UNKNOWN_NODE]}
    other = {"key": "kubernetes.io/hostname", "operator": "In", "values": [GOOD_NODES[0]]}
    terms = [{"matchExpressions": [hostname]}, {"matchExpressions": [other]}]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    tenant.must_create(governed.path(), governed.pod("p", affinity=affinity))
    assert wait_for_phase(tenant, governed.namespace, "p")["spec"]["nodeName"] == GOOD_NODES[0]


def test_the_gate_is_not_the_tenants_to_remove(never_verified: Governed, tenant: Client) -> None:
    tenant.must_create(never_verified.path(), never_verified.pod("p"))
    gates = tenant.must_get(never_verified.path("p"))["spec"].get("schedulingGates", [])
    assert {"name": GATE} in gates
    answer = tenant.patch(never_verified.path("p"), {"spec": {"schedulingGates": None}})
    assert answer.denies(ReasonCode.GATE_REMOVED), answer.message
