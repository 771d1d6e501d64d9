"""Every object of the installation as the API server reads it, and the cluster while our webhook is down."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from tests.deploy.rendered import Manifest, every_manifest, installed, pod_templates
from tests.e2e.client import Answer, Client
from tests.e2e.control_plane import ControlPlane
from tests.e2e.install import object_path
from tests.e2e.installation.guards import REGISTRATION, denied_by
from tests.e2e.programs import wait_until


@pytest.mark.parametrize("manifest", every_manifest(), ids=lambda m: f"{m['kind']} {m['metadata']['name']}")
def test_the_api_server_takes_each_object_as_it_is_written(bare: ControlPlane, manifest: Manifest) -> None:
    parameters = {"fieldManager": "test", "force": "true", "dryRun": "All", "fieldValidation": "Strict"}
    answer = bare.admin.request(
        "PATCH",
        object_path(bare.admin, manifest),
        manifest,
        parameters=parameters,
        content_type="application/apply-patch+yaml",
    )
    assert answer.accepted, answer.message
    # Pod Security would warn of a workload whose pods it is going to refuse.
    assert answer.warnings == ()


def _tried_pod(client: Client, name: str) -> Answer:
    template = copy.deepcopy(pod_templates()[name])
    namespace = "nodewarden-attester" if name == "nodewarden-attester" else "nodewarden-system"
    body = {**template, "metadata": {**template["metadata"], "name": "tried"}}
    return client.create(f"/api/v1/namespaces/{namespace}/pods", body, dry_run=True)


@pytest.mark.parametrize("name", pod_templates())
def test_pod_security_and_our_own_policies_let_our_pods_in(bare: ControlPlane, name: str) -> None:
    answer = _tried_pod(bare.admin, name)
    assert answer.accepted, answer.message


def test_the_attesters_rights_are_for_its_account_alone(bare: ControlPlane) -> None:
    template = copy.deepcopy(pod_templates()["nodewarden-attester"])
    template["spec"]["serviceAccountName"] = "default"
    body = {**template, "metadata": {"name": "tried"}}
    answer = bare.admin.create("/api/v1/namespaces/nodewarden-attester/pods", body, dry_run=True)
    assert denied_by(answer, "nodewarden-privileged-pods")


# While the webhook is down


@pytest.fixture(scope="module")
def down(bare: ControlPlane, breaker: Client) -> Iterator[ControlPlane]:
    """The webhook is registered, and nothing answers."""
    kinds = {
        "validatingwebhookconfigurations": "ValidatingWebhookConfiguration",
        "mutatingwebhookconfigurations": "MutatingWebhookConfiguration",
    }
    for name in ("running", "system"):
        space = "default" if name == "running" else "kube-system"
        bare.admin.create(f"/api/v1/namespaces/{space}/serviceaccounts", {"metadata": {"name": "default"}})
    bare.admin.must_create("/api/v1/namespaces/default/pods", _pod("running"))
    for plural, kind in kinds.items():
        bare.admin.must_create(f"{REGISTRATION}/{plural}", installed(kind)["nodewarden"])
    try:
        refused = "the webhook is asked"
        wait_until(refused, lambda: not _create(bare.admin, "default").accepted, 30)
        yield bare
    finally:
        for plural in kinds:
            assert breaker.delete(f"{REGISTRATION}/{plural}/nodewarden").accepted
        wait_until("the webhook is gone", lambda: _create(bare.admin, "default").accepted, 30)


def _pod(name: str) -> dict[str, Any]:
    container = {"name": "c", "image": "example.org/app:1"}
    return {"metadata": {"name": name}, "spec": {"schedulerName": "none", "containers": [container]}}


def _create(client: Client, namespace: str) -> Answer:
    return client.create(f"/api/v1/namespaces/{namespace}/pods", _pod("new"), dry_run=True)


def test_pods_cannot_be_made_or_changed_without_it(down: ControlPlane) -> None:
    answers = (
        _create(down.admin, "default"),
        down.admin.patch("/api/v1/namespaces/default/pods/running", {"metadata": {"labels": {"a": "b"}}}),
        down.admin.create(
            "/api/v1/namespaces/default/pods/running/binding",
            {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "running"}, "target": {"name": "fake-0"}},
        ),
        down.admin.request("POST", "/api/v1/namespaces/default/pods/running/exec?command=id&stdout=true"),
        down.admin.get("/api/v1/namespaces/default/pods/running/proxy/"),
    )
    for answer in answers:
        assert not answer.accepted
        assert 'failed calling webhook "pods.nodewarden.dev"' in answer.message


@pytest.mark.parametrize("namespace", ["kube-system", "nodewarden-system"])
def test_the_system_and_we_ourselves_come_up_without_it(down: ControlPlane, namespace: str) -> None:
    if namespace == "nodewarden-system":
        for name in pod_templates():
            assert _tried_pod(down.admin, name).accepted
        return
    pods = "/api/v1/namespaces/kube-system/pods"
    pod = _pod("proxy")
    pod["spec"] |= {"hostNetwork": True, "priorityClassName": "system-node-critical"}
    assert down.admin.create(pods, pod).accepted
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "proxy"}, "target": {"name": "fake-0"}}
    assert down.admin.create(f"{pods}/proxy/binding", binding).accepted
    assert down.admin.patch(f"{pods}/proxy", {"metadata": {"labels": {"a": "b"}}}).accepted


def test_kubelets_report_and_pods_end_without_it(down: ControlPlane) -> None:
    path = "/api/v1/namespaces/default/pods/running"
    assert down.admin.patch(f"{path}/status", {"status": {"message": "reported"}}).accepted
    lease = {"metadata": {"name": "n"}, "spec": {"holderIdentity": "n"}}
    assert down.admin.create("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases", lease).accepted
    assert down.admin.request("DELETE", path, parameters={"dryRun": "All"}).accepted


def test_only_enforced_namespaces_are_frozen_without_it(down: ControlPlane) -> None:
    plain, enforced = ({"metadata": {"name": name}} for name in ("plain", "frozen"))
    enforced["metadata"]["labels"] = {"nodewarden.dev/enforced": "true"}  # type: ignore[assignment]  # a dict of ours
    for body in (plain, enforced):
        down.admin.must_create("/api/v1/namespaces", body)
    label = {"metadata": {"labels": {"a": "b"}}}
    assert down.admin.patch("/api/v1/namespaces/plain", label).accepted
    assert down.admin.delete("/api/v1/namespaces/plain").accepted
    without = {"metadata": {"labels": {"nodewarden.dev/enforced": None}}}
    for answer in (
        down.admin.patch("/api/v1/namespaces/frozen", label),
        down.admin.patch("/api/v1/namespaces/frozen", without),
        down.admin.delete("/api/v1/namespaces/frozen"),
    ):
        assert not answer.accepted
