"""Policies over node labels and taints, our objects and our webhook configurations: none of our processes runs."""

from __future__ import annotations

import base64
import copy
from collections.abc import Iterator
from typing import Any

import pytest

from tests.deploy.rendered import installed
from tests.e2e.client import Client
from tests.e2e.control_plane import ControlPlane, fake_node
from tests.e2e.installation.guards import FLOW_CONTROL, LABEL, OURS, REGISTRATION, denied_by, patched


@pytest.fixture
def patcher(bare: ControlPlane) -> Iterator[Client]:
    """A ServiceAccount of someone else that may do anything to nodes, as some operators' do."""
    account = {"metadata": {"name": "node-operator"}}
    assert bare.admin.create("/api/v1/namespaces/default/serviceaccounts", account).status in {201, 409}
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    role = {
        "metadata": {"name": "node-operator"},
        "rules": [{"apiGroups": [""], "resources": ["nodes", "nodes/status"], "verbs": ["*"]}],
    }
    subject = {"kind": "ServiceAccount", "name": "node-operator", "namespace": "default"}
    binding = {
        "metadata": {"name": "node-operator"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "node-operator"},
        "subjects": [subject],
    }
    for plural, body in (("clusterroles", role), ("clusterrolebindings", binding)):
        assert bare.admin.create(f"{rbac}/{plural}", body).status in {201, 409}
    with bare.as_service_account("default", "node-operator") as client:
        yield client


@pytest.mark.parametrize("part", ["", "/status"])
def test_a_service_account_that_patches_nodes_cannot_label_one(patcher: Client, part: str) -> None:
    for key in (LABEL, "nodewarden.node-restriction.kubernetes.io/h200-prod"):
        answer = patched(patcher, "fake-0", {"metadata": {"labels": {key: "true"}}}, part)
        assert denied_by(answer, "nodewarden-nodes")


def test_it_can_set_labels_of_its_own(patcher: Client) -> None:
    assert patched(patcher, "fake-0", {"metadata": {"labels": {"example.org/x": "1"}}}).accepted


def test_an_administrator_can_neither_label_nor_unlabel_a_node_and_the_controller_can(
    bare: ControlPlane, controller: Client
) -> None:
    assert denied_by(patched(bare.admin, "fake-1", {"metadata": {"labels": {LABEL: "true"}}}), "nodewarden-nodes")
    assert patched(controller, "fake-1", {"metadata": {"labels": {LABEL: "true"}}}).accepted
    for value in (None, "false"):
        assert denied_by(patched(bare.admin, "fake-1", {"metadata": {"labels": {LABEL: value}}}), "nodewarden-nodes")
    assert patched(controller, "fake-1", {"metadata": {"labels": {LABEL: None}}}).accepted


def test_a_kubelet_cannot_label_itself(bare: ControlPlane) -> None:
    with bare.as_user("system:node:fake-0", "system:nodes") as kubelet:
        for part in ("", "/status"):
            answer = patched(kubelet, "fake-0", {"metadata": {"labels": {LABEL: "true"}}}, part)
            assert answer.status == 403


def test_a_node_is_not_born_with_our_label_but_may_be_born_with_the_taint(bare: ControlPlane, breaker: Client) -> None:
    node = fake_node("born")
    node["metadata"]["labels"][LABEL] = "true"
    assert denied_by(bare.admin.create("/api/v1/nodes", node), "nodewarden-nodes")
    del node["metadata"]["labels"][LABEL]
    node["spec"] = {"taints": [{"key": "nodewarden.dev/unverified", "effect": "NoSchedule"}]}
    assert bare.admin.create("/api/v1/nodes", node).accepted
    assert denied_by(patched(bare.admin, "born", {"spec": {"taints": None}}), "nodewarden-nodes")
    breaker.delete("/api/v1/nodes/born")


def test_only_the_controller_sets_and_removes_the_taint(patcher: Client, controller: Client) -> None:
    taint = {"spec": {"taints": [{"key": "nodewarden.dev/unverified", "effect": "NoExecute", "value": "p"}]}}
    assert denied_by(patched(patcher, "fake-0", taint), "nodewarden-nodes")
    assert patched(controller, "fake-0", taint).accepted
    assert denied_by(patched(patcher, "fake-0", {"spec": {"taints": None}}), "nodewarden-nodes")
    other = copy.deepcopy(taint)
    other["spec"]["taints"][0]["value"] = "q"
    assert denied_by(patched(patcher, "fake-0", other), "nodewarden-nodes")
    assert patched(controller, "fake-0", {"spec": {"taints": None}}).accepted


def test_an_administrator_cannot_write_what_the_controller_concludes(bare: ControlPlane, controller: Client) -> None:
    attestation = {
        "apiVersion": "nodewarden.dev/v1alpha1",
        "kind": "NodeAttestation",
        "metadata": {"name": "fake-0"},
        "spec": {"nodeName": "fake-0", "nodeUID": "u"},
    }
    node_set = {**attestation, "kind": "VerifiedNodeSet", "metadata": {"name": "verified"}, "spec": {"nodes": {}}}
    for plural, body in (("nodeattestations", attestation), ("verifiednodesets", node_set)):
        assert denied_by(bare.admin.create(f"{OURS}/{plural}", body), "nodewarden-objects")
        assert controller.create(f"{OURS}/{plural}", body).accepted
        path = f"{OURS}/{plural}/{body['metadata']['name']}"  # type: ignore[index]  # a literal above
        assert denied_by(bare.admin.patch(path, {"metadata": {"annotations": {"a": "b"}}}), "nodewarden-objects")
        assert denied_by(bare.admin.delete(path), "nodewarden-objects")
        assert denied_by(bare.admin.delete(f"{OURS}/{plural}"), "nodewarden-objects")
    status = {"status": {"result": "forged"}}
    assert denied_by(bare.admin.patch(f"{OURS}/nodeattestations/fake-0/status", status), "nodewarden-objects")
    assert controller.delete(f"{OURS}/nodeattestations/fake-0").accepted


def test_nobody_else_renews_the_lease_of_results(bare: ControlPlane, controller: Client) -> None:
    path = "/apis/coordination.k8s.io/v1/namespaces/nodewarden-system/leases"
    lease = {"metadata": {"name": "nodewarden-results"}, "spec": {"holderIdentity": "x"}}
    assert denied_by(bare.admin.create(path, lease), "nodewarden-lease")
    assert controller.create(path, lease).accepted
    assert denied_by(
        bare.admin.patch(f"{path}/nodewarden-results", {"spec": {"holderIdentity": "y"}}), "nodewarden-lease"
    )
    assert denied_by(bare.admin.delete(f"{path}/nodewarden-results"), "nodewarden-lease")
    assert denied_by(bare.admin.delete(path), "nodewarden-lease")
    assert bare.admin.create(path, {"metadata": {"name": "another"}}).accepted


@pytest.mark.parametrize("plural", ["flowschemas", "prioritylevelconfigurations"])
def test_our_seats_at_the_api_server_are_changed_only_by_breaking_the_glass(
    bare: ControlPlane, breaker: Client, plural: str
) -> None:
    path = f"{FLOW_CONTROL}/{plural}"
    changes: dict[str, dict[str, Any]] = {
        "flowschemas": {"matchingPrecedence": 9999},
        "prioritylevelconfigurations": {"limited": {"nominalConcurrencyShares": 0}},
    }
    weaker = changes[plural]
    for name in ("nodewarden-leases", "nodewarden-controller"):
        before = bare.admin.must_get(f"{path}/{name}")
        assert denied_by(bare.admin.patch(f"{path}/{name}", {"spec": weaker}), "nodewarden-flow-control")
        assert denied_by(bare.admin.delete(f"{path}/{name}"), "nodewarden-flow-control")
        assert bare.admin.patch(f"{path}/{name}", {"metadata": {"annotations": {"example.org/x": "1"}}}).accepted
        assert breaker.patch(f"{path}/{name}", {"spec": weaker}).accepted
        assert breaker.patch(f"{path}/{name}", {"spec": before["spec"]}).accepted
    own = {"metadata": {"name": "another"}, "spec": bare.admin.must_get(f"{path}/nodewarden-webhook")["spec"]}
    bare.admin.must_create(path, own)
    assert bare.admin.delete(f"{path}/another").accepted


@pytest.fixture
def hooks(bare: ControlPlane, breaker: Client) -> Iterator[dict[str, str]]:
    """Both configurations as the installation has them; no pod is made meanwhile, since no webhook runs here."""
    paths = {}
    for plural, kind in (
        ("validatingwebhookconfigurations", "ValidatingWebhookConfiguration"),
        ("mutatingwebhookconfigurations", "MutatingWebhookConfiguration"),
    ):
        bare.admin.must_create(f"{REGISTRATION}/{plural}", installed(kind)["nodewarden"])
        paths[plural] = f"{REGISTRATION}/{plural}/nodewarden"
    yield paths
    for path in paths.values():
        assert breaker.delete(path).accepted


def test_an_administrator_can_neither_delete_nor_weaken_the_webhooks(bare: ControlPlane, hooks: dict[str, str]) -> None:
    for plural, path in hooks.items():
        assert denied_by(bare.admin.delete(path), "nodewarden-webhooks")
        # A deletecollection names no object.
        assert denied_by(bare.admin.delete(f"{REGISTRATION}/{plural}"), "nodewarden-webhooks")
        found = bare.admin.must_get(path)
        changes: tuple[tuple[str, Any], ...] = (
            ("failurePolicy", "Ignore" if plural.startswith("validating") else "Fail"),
            ("namespaceSelector", {"matchLabels": {"nothing": "matches"}}),
            ("objectSelector", {"matchLabels": {"nothing": "matches"}}),
            ("matchConditions", [{"name": "never", "expression": "false"}]),
            ("rules", [{**found["webhooks"][0]["rules"][0], "operations": ["DELETE"]}]),
            ("clientConfig", {"url": "https://127.0.0.1:1/always-yes"}),
            ("timeoutSeconds", 1),
        )
        for field, value in changes:
            weaker = copy.deepcopy(found)
            weaker["webhooks"][0][field] = value
            assert denied_by(bare.admin.replace(path, weaker), "nodewarden-webhooks"), field
        assert denied_by(bare.admin.replace(path, {**found, "webhooks": []}), "nodewarden-webhooks")


def test_the_webhook_writes_its_ca_bundle_and_nothing_else(bare: ControlPlane, hooks: dict[str, str]) -> None:
    bundle = base64.b64encode(bare.ca.read_bytes()).decode()
    with bare.as_service_account("nodewarden-system", "nodewarden-webhook") as webhook:
        for path in hooks.values():
            found = webhook.must_get(path)
            for hook in found["webhooks"]:
                hook["clientConfig"]["caBundle"] = bundle
            assert denied_by(bare.admin.replace(path, found), "nodewarden-webhooks")
            weaker = copy.deepcopy(found)
            weaker["webhooks"][0]["timeoutSeconds"] = 2
            assert denied_by(webhook.replace(path, weaker), "nodewarden-webhooks")
            assert webhook.replace(path, found).accepted


def test_configurations_of_others_are_left_alone(bare: ControlPlane) -> None:
    path = f"{REGISTRATION}/validatingwebhookconfigurations"
    bare.admin.must_create(path, {"metadata": {"name": "another"}, "webhooks": []})
    assert bare.admin.delete(f"{path}/another").accepted
