"""What holds without any process of ours: policies of the API server guard labels, taints, objects and webhooks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.client import Client
from tests.e2e.control_plane import ControlPlane
from tests.e2e.governed import GOOD_NODES, GROUP, UNKNOWN_NODE, VERIFIED_LABEL, Governed, is_labelled
from tests.e2e.pods import a_pod, pods_path, wait_for_phase
from tests.e2e.programs import wait_until
from tests.e2e.system import System
from verifier.wire.codes import ReasonCode

pytestmark = pytest.mark.usefixtures("fleet")

WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/{}webhookconfigurations/nodewarden"
TAINT = {"key": "nodewarden.dev/unverified", "effect": "NoSchedule"}


@pytest.fixture
def node_patcher(plane: ControlPlane, namespace: str) -> Iterator[Client]:
    """A ServiceAccount that may patch every node, as many agents may."""
    role = f"patch-nodes-{namespace}"
    rules = [{"apiGroups": [""], "resources": ["nodes", "nodes/status"], "verbs": ["get", "patch", "update"]}]
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    plane.admin.must_create(f"{rbac}/clusterroles", {"metadata": {"name": role}, "rules": rules})
    binding = {
        "metadata": {"name": role},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "namespace": namespace, "name": "default"}],
    }
    plane.admin.must_create(f"{rbac}/clusterrolebindings", binding)
    with plane.as_service_account(namespace, "default") as client:
        yield client
    plane.admin.delete(f"{rbac}/clusterrolebindings/{role}")
    plane.admin.delete(f"{rbac}/clusterroles/{role}")


@pytest.mark.parametrize("subresource", ["", "/status"])
@pytest.mark.parametrize(
    ("target", "value"), [(UNKNOWN_NODE, "true"), (GOOD_NODES[0], None), (GOOD_NODES[0], "false")], ids=str
)
def test_a_service_account_that_patches_nodes_cannot_touch_our_labels(
    node_patcher: Client, target: str, value: str | None, subresource: str
) -> None:
    answer = node_patcher.patch(
        f"/api/v1/nodes/{target}{subresource}", {"metadata": {"labels": {VERIFIED_LABEL: value}}}
    )
    assert answer.denied_by_policy("nodewarden-nodes"), answer.message


def test_a_service_account_that_patches_nodes_may_set_other_labels(node_patcher: Client) -> None:
    answer = node_patcher.patch(f"/api/v1/nodes/{UNKNOWN_NODE}", {"metadata": {"labels": {"example.org/a": "b"}}})
    assert answer.accepted, answer.message


def test_a_kubelet_cannot_label_its_own_node(plane: ControlPlane) -> None:
    with plane.as_user(f"system:node:{UNKNOWN_NODE}", "system:nodes") as kubelet:
        change = {"metadata": {"labels": {VERIFIED_LABEL: "true"}}}
        answer = kubelet.patch(f"/api/v1/nodes/{UNKNOWN_NODE}", change)
    assert answer.status == 403
    # Kubernetes' own NodeRestriction: the label's domain is one that a kubelet may not touch.
    assert f"is not allowed to modify labels: {VERIFIED_LABEL}" in answer.message
    assert not is_labelled(plane.admin, UNKNOWN_NODE)


def test_our_taint_is_the_controller_s(plane: ControlPlane, node_patcher: Client) -> None:
    answer = node_patcher.patch(f"/api/v1/nodes/{UNKNOWN_NODE}", {"spec": {"taints": [TAINT]}})
    assert answer.denied_by_policy("nodewarden-nodes"), answer.message


def test_the_cluster_s_admin_cannot_label_a_node_without_breaking_the_glass(plane: ControlPlane) -> None:
    change = {"metadata": {"labels": {VERIFIED_LABEL: "true"}}}
    answer = plane.admin.patch(f"/api/v1/nodes/{UNKNOWN_NODE}", change)
    assert answer.denied_by_policy("nodewarden-nodes"), answer.message


@pytest.mark.parametrize("kind", ["validating", "mutating"])
def test_the_webhook_configuration_cannot_be_deleted_or_weakened(system: System, kind: str) -> None:
    admin, path = system.plane.admin, WEBHOOKS.format(kind)
    for gone in (path, path.rpartition("/")[0]):
        answer = admin.delete(gone)
        assert answer.denied_by_policy("nodewarden-webhooks"), answer.message
    weakened = admin.must_get(path)
    weakened["webhooks"][0]["rules"] = weakened["webhooks"][0]["rules"][:1]
    weakened["webhooks"][0]["namespaceSelector"] = {"matchLabels": {"no": "such"}}
    answer = admin.replace(path, weakened)
    assert answer.denied_by_policy("nodewarden-webhooks"), answer.message


def test_who_breaks_the_glass_may_change_the_webhook_configuration(plane: ControlPlane) -> None:
    with plane.as_user("somebody", "system:masters", "nodewarden:break-glass") as person:
        path = WEBHOOKS.format("mutating")
        labels = {"metadata": {"labels": {"example.org/incident": "1"}}}
        assert person.patch(path, labels).accepted


@pytest.mark.parametrize("resource", ["nodeattestations", "verifiednodesets", "secretreleases"])
def test_what_the_controller_concludes_nobody_else_deletes(plane: ControlPlane, resource: str) -> None:
    for item in plane.admin.must_get(f"{GROUP}/{resource}")["items"]:
        answer = plane.admin.delete(f"{GROUP}/{resource}/{item['metadata']['name']}")
        assert answer.denied_by_policy("nodewarden-objects"), answer.message


def test_nobody_else_writes_a_node_attestation(plane: ControlPlane) -> None:
    spec = {"nodeName": UNKNOWN_NODE, "nodeUID": "1"}
    body = {"apiVersion": "nodewarden.dev/v1alpha1", "kind": "NodeAttestation", "metadata": {"name": UNKNOWN_NODE}}
    answer = plane.admin.create(f"{GROUP}/nodeattestations", {**body, "spec": spec})
    assert answer.denied_by_policy("nodewarden-objects"), answer.message


def test_a_tenant_reaches_none_of_our_objects(tenant: Client) -> None:
    for resource in ("nodetrustpolicies", "sensitiveworkloads", "nodeattestations", "verifiednodesets"):
        assert tenant.get(f"{GROUP}/{resource}").status == 403


HOST_PATH: dict[str, Any] = {"volumes": [{"name": "host", "hostPath": {"path": "/"}}]}
PRIVILEGED: dict[str, Any] = {"containers": [{"name": "main", "image": "x", "securityContext": {"privileged": True}}]}
CAPABLE = {"containers": [{"name": "m", "image": "x", "securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}]}
INIT = {"initContainers": [{"name": "i", "image": "x", "securityContext": {"privileged": True}}]}
STEERED_OFF: dict[str, Any] = {
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": VERIFIED_LABEL, "operator": "DoesNotExist"}]}]
            }
        }
    }
}
REACHES = pytest.mark.parametrize(
    "reach",
    [HOST_PATH, PRIVILEGED, CAPABLE, INIT, {"hostPID": True}, {"hostNetwork": True}, {"hostIPC": True}],
    ids=["hostPath", "privileged", "capability", "init", "hostPID", "hostNetwork", "hostIPC"],
)


@REACHES
def test_a_pod_that_reaches_its_node_must_stay_off_verified_nodes_in_any_namespace(
    namespace: str, tenant: Client, reach: dict[str, Any]
) -> None:
    answer = tenant.create(pods_path(namespace), a_pod("p", **reach))
    assert answer.denied_by_policy("nodewarden-privileged-pods"), answer.message
    named = tenant.create(pods_path(namespace), a_pod("p", **{**reach, **STEERED_OFF, "nodeName": GOOD_NODES[0]}))
    assert named.denied_by_policy("nodewarden-privileged-pods"), named.message


def test_a_privileged_pod_that_is_steered_off_runs_elsewhere(namespace: str, tenant: Client) -> None:
    tenant.must_create(pods_path(namespace), a_pod("p", **PRIVILEGED, **STEERED_OFF))
    assert wait_for_phase(tenant, namespace, "p")["spec"]["nodeName"] not in GOOD_NODES


def test_an_ephemeral_container_with_added_rights_is_denied_on_a_verified_node(namespace: str, tenant: Client) -> None:
    tenant.must_create(pods_path(namespace), a_pod("p", nodeName=GOOD_NODES[0]))
    wait_for_phase(tenant, namespace, "p")
    debug = {"name": "debug", "image": "x", "securityContext": {"privileged": True}}
    path = pods_path(namespace, "p", "ephemeralcontainers")
    answer = tenant.patch(path, {"spec": {"ephemeralContainers": [debug]}}, kind="strategic")
    assert answer.denied_by_policy("nodewarden-privileged-pods"), answer.message
    plain = {"name": "debug", "image": "x"}
    assert tenant.patch(path, {"spec": {"ephemeralContainers": [plain]}}, kind="strategic").accepted


def test_the_label_that_enforces_a_namespace_does_not_come_off(
    plane: ControlPlane, governed: Governed, tenant: Client
) -> None:
    path = f"/api/v1/namespaces/{governed.namespace}"
    plane.admin.must_patch(path, {"metadata": {"labels": {"nodewarden.dev/enforced": "true"}}})
    for value in (None, "false"):
        answer = tenant.patch(path, {"metadata": {"labels": {"nodewarden.dev/enforced": value}}})
        assert answer.denied_by_policy("nodewarden-namespaces"), answer.message


def test_a_governed_namespace_keeps_the_label_also_when_the_glass_is_broken_and_is_not_deleted(
    plane: ControlPlane, governed: Governed, tenant: Client
) -> None:
    path = f"/api/v1/namespaces/{governed.namespace}"
    plane.admin.must_patch(path, {"metadata": {"labels": {"nodewarden.dev/enforced": "true"}}})
    with plane.as_user("somebody", "system:masters", "nodewarden:break-glass") as person:
        off = {"metadata": {"labels": {"nodewarden.dev/enforced": None}}}
        answer = person.patch(path, off)
        assert answer.denies(ReasonCode.NAMESPACE_LABEL_REMOVED), answer.message
        answer = tenant.delete(path)
        assert answer.denies(ReasonCode.NAMESPACE_GOVERNED), answer.message
        # As the remedy says: first the workload, then the label.
        plane.admin.delete(f"{GROUP}/sensitiveworkloads/{governed.namespace}")
        wait_until("the webhook knows", lambda: person.patch(path, off).accepted, 10)


def test_in_an_enforced_namespace_bindings_are_denied_by_policy_alone(
    system: System, plane: ControlPlane, namespace: str, tenant: Client
) -> None:
    path = f"/api/v1/namespaces/{namespace}"
    plane.admin.must_patch(path, {"metadata": {"labels": {"nodewarden.dev/enforced": "true"}}})
    tenant.must_create(pods_path(namespace), a_pod("p", schedulerName="nobody"))
    uid = tenant.must_get(pods_path(namespace, "p"))["metadata"]["uid"]
    for node, accepted in ((UNKNOWN_NODE, False), (GOOD_NODES[0], True)):
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p", "uid": uid}, "target": target}
        answer = tenant.create(pods_path(namespace, "p", "binding"), binding)
        assert answer.accepted is accepted, answer.message
        assert accepted or answer.denied_by_policy("nodewarden-bindings"), answer.message
