"""Uninstalling: a cluster that had Nodewarden and its guards carries nothing of it that could be in the way."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from admission.trust_objects import ATTESTATION_GATE, UNVERIFIED_TAINT, VERIFIED_LABEL_PREFIX
from tests.e2e.client import Client
from tests.e2e.control_plane import ControlPlane, Options, control_plane, fake_node
from tests.e2e.controllers import IMAGE, OURS
from tests.e2e.install import apply, install
from tests.e2e.machines import nodewarden
from tests.e2e.pods import pods_path
from tests.e2e.programs import wait_until

REGISTRATION = "/apis/admissionregistration.k8s.io/v1"


@pytest.fixture(scope="module")
def plane(folder: Path) -> Iterator[ControlPlane]:
    """A control plane of this module's own, which it takes the product off."""
    with control_plane(folder / "uninstall", Options(nodes=0)) as running:
        yield running


def test_uninstall_leaves_no_guard_webhook_gate_label_taint_or_finalizer(plane: ControlPlane, namespace: str) -> None:
    webhooks = install(plane)
    with plane.as_user("e2e-admin", "system:masters", "nodewarden:break-glass") as admin:
        _mark(admin, namespace)
    for manifest in webhooks:
        # Its server does not run: with failurePolicy Fail, nothing of an enforced namespace could be changed.
        apply(plane.admin, manifest)
    config = str(plane.kubeconfigs["admin"])
    wait_until("the guards hold", lambda: _guarded(plane.admin), 20)

    removed = json.loads(nodewarden("admission", "uninstall", "--kubeconfig", config, "--json"))["removed"]
    assert {"what": "node label and taint", "where": "gpu-1"} in removed
    assert {"what": "gate", "where": f"{namespace}/gated"} in removed

    for plural in (
        "validatingadmissionpolicies",
        "validatingadmissionpolicybindings",
        "validatingwebhookconfigurations",
        "mutatingwebhookconfigurations",
    ):
        assert plane.admin.must_get(f"{REGISTRATION}/{plural}")["items"] == []
    node = plane.admin.must_get("/api/v1/nodes/gpu-1")
    assert [key for key in node["metadata"]["labels"] if key.startswith(VERIFIED_LABEL_PREFIX)] == []
    assert [taint["key"] for taint in node["spec"].get("taints", []) if taint["key"] != "example.org/mine"] == []
    assert node["spec"]["taints"][0]["key"] == "example.org/mine"
    assert "schedulingGates" not in plane.admin.must_get(pods_path(namespace, "gated"))["spec"]
    policy = plane.admin.must_get(f"{OURS}/nodetrustpolicies/kept")
    assert "finalizers" not in policy["metadata"]
    labels = plane.admin.must_get(f"/api/v1/namespaces/{namespace}")["metadata"]["labels"]
    assert "nodewarden.dev/enforced" not in labels

    again = json.loads(nodewarden("admission", "uninstall", "--kubeconfig", config, "--json"))
    assert again == {"removed": []}


def _mark(admin: Client, namespace: str) -> None:
    node = fake_node("gpu-1")
    node["metadata"]["labels"] |= {f"{VERIFIED_LABEL_PREFIX}verified": "true"}
    node["spec"] = {
        "taints": [
            {"key": "example.org/mine", "effect": "NoSchedule"},
            {"key": UNVERIFIED_TAINT, "value": "kept", "effect": "NoExecute"},
        ]
    }
    admin.must_create("/api/v1/nodes", node)
    wait_until(
        "kwok's node settles",
        lambda: (
            not any("not-ready" in t["key"] for t in admin.must_get("/api/v1/nodes/gpu-1")["spec"].get("taints", []))
        ),
        30,
    )
    pod = {
        "metadata": {"name": "gated"},
        "spec": {"containers": [{"name": "main", "image": IMAGE}], "schedulingGates": [{"name": ATTESTATION_GATE}]},
    }
    admin.must_create(pods_path(namespace), pod)
    policy = {
        "apiVersion": "nodewarden.dev/v1alpha1",
        "kind": "NodeTrustPolicy",
        "metadata": {"name": "kept", "finalizers": ["nodewarden.dev/someone-forgot"]},
        "spec": {"baselines": [{"name": "h200-prod", "floor": "4.1.0"}]},
    }
    admin.must_create(f"{OURS}/nodetrustpolicies", policy)
    admin.must_patch(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": {"nodewarden.dev/enforced": "true"}}})


def _guarded(admin: Client) -> bool:
    """Whether even an administrator may not take our label off."""
    patch = {"metadata": {"labels": {f"{VERIFIED_LABEL_PREFIX}verified": None}}}
    answer = admin.request(
        "PATCH",
        "/api/v1/nodes/gpu-1",
        patch,
        parameters={"dryRun": "All"},
        content_type="application/merge-patch+json",
    )
    return not answer.accepted
