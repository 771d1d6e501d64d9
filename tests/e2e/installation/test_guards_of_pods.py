"""Policies over pods, bindings and namespaces: what holds while none of our processes runs."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.e2e.client import Answer, Client
from tests.e2e.control_plane import ControlPlane
from tests.e2e.installation.guards import LABEL, OURS, denied_by
from tests.e2e.programs import wait_until

STEERED = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": LABEL, "operator": "DoesNotExist"}]}]
        }
    }
}


def test_the_label_of_an_enforced_namespace_comes_off_by_breaking_the_glass_only(
    bare: ControlPlane, breaker: Client, space: str
) -> None:
    path = f"/api/v1/namespaces/{space}"
    assert bare.admin.patch(path, {"metadata": {"labels": {"nodewarden.dev/enforced": "true"}}}).accepted
    for value in (None, "false"):
        change = {"metadata": {"labels": {"nodewarden.dev/enforced": value}}}
        for part in ("", "/status"):
            assert denied_by(bare.admin.patch(path + part, change), "nodewarden-namespaces")
    assert bare.admin.patch(path, {"metadata": {"labels": {"example.org/x": "1"}}}).accepted
    assert breaker.patch(path, {"metadata": {"labels": {"nodewarden.dev/enforced": None}}}).accepted


def _pod(name: str, **spec: Any) -> dict[str, Any]:
    # Another scheduler's, so that only the test binds it.
    container = {"name": "c", "image": "example.org/app:1"}
    return {"metadata": {"name": name}, "spec": {"schedulerName": "none", "containers": [container], **spec}}


def test_in_an_enforced_namespace_pods_are_bound_to_nodes_of_the_set_only(
    bare: ControlPlane, breaker: Client, controller: Client, space: str
) -> None:
    bare.admin.must_patch(f"/api/v1/namespaces/{space}", {"metadata": {"labels": {"nodewarden.dev/enforced": "true"}}})
    breaker.delete(f"{OURS}/verifiednodesets/verified")
    pods = f"/api/v1/namespaces/{space}/pods"
    for name in ("a", "b"):
        bare.admin.must_create(pods, _pod(name))

    def bind(pod: str, node: str, path: str) -> Answer:
        return bare.admin.create(
            path,
            {
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": {"name": pod},
                "target": {"kind": "Node", "name": node},
            },
        )

    ways = (f"{pods}/a/binding", f"/api/v1/namespaces/{space}/bindings")
    wait_until("an absent set denies", lambda: not bind("a", "fake-0", ways[0]).accepted, 10)
    node_set = {
        "apiVersion": "nodewarden.dev/v1alpha1",
        "kind": "VerifiedNodeSet",
        "metadata": {"name": "verified"},
        "spec": {"nodes": {"fake-1": "2099-01-01T00:00:00Z"}},
    }
    controller.must_create(f"{OURS}/verifiednodesets", node_set)
    wait_until("the set is read", lambda: "fake-0 holds no" in bind("a", "fake-0", ways[0]).message, 10)
    for way in ways:
        assert denied_by(bind("a", "fake-0", way), "nodewarden-bindings")
    assert denied_by(bare.admin.create(pods, _pod("direct", nodeName="fake-1")), "nodewarden-direct-pods")
    assert bind("a", "fake-1", ways[0]).accepted
    assert bind("b", "fake-1", ways[1]).accepted


def test_other_namespaces_bind_as_before(bare: ControlPlane, space: str) -> None:
    pods = f"/api/v1/namespaces/{space}/pods"
    bare.admin.must_create(pods, _pod("a"))
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "a"},
        "target": {"kind": "Node", "name": "fake-0"},
    }
    assert bare.admin.create(f"{pods}/a/binding", binding).accepted


_SECURITY: tuple[dict[str, Any], ...] = (
    {"privileged": True},
    {"capabilities": {"add": ["SYS_ADMIN"]}},
    {"capabilities": {"add": ["NET_BIND_SERVICE", "SYS_PTRACE"]}},
)
REACHING: dict[str, dict[str, Any]] = {
    "hostNetwork": {"hostNetwork": True},
    "hostPID": {"hostPID": True},
    "hostIPC": {"hostIPC": True},
    "hostPath": {"volumes": [{"name": "v", "hostPath": {"path": "/"}}]},
    **{
        f"{field} {number}": {
            field: [{"name": "x", "image": "example.org/app:1", "securityContext": context}],
            **({} if field == "containers" else {"containers": [{"name": "c", "image": "example.org/app:1"}]}),
        }
        for field in ("containers", "initContainers")
        for number, context in enumerate(_SECURITY)
    },
}


@pytest.mark.parametrize("spec", REACHING.values(), ids=REACHING.keys())
def test_a_pod_that_reaches_its_node_must_be_steered_off_verified_nodes(
    bare: ControlPlane, space: str, spec: dict[str, Any]
) -> None:
    pods = f"/api/v1/namespaces/{space}/pods"
    assert denied_by(bare.admin.create(pods, _pod("p", **spec), dry_run=True), "nodewarden-privileged-pods")
    assert bare.admin.create(pods, _pod("p", affinity=STEERED, **spec), dry_run=True).accepted
    named = bare.admin.create(pods, _pod("p", affinity=STEERED, nodeName="fake-0", **spec), dry_run=True)
    assert denied_by(named, "nodewarden-privileged-pods")


def test_ordinary_pods_are_left_alone(bare: ControlPlane, space: str) -> None:
    pods = f"/api/v1/namespaces/{space}/pods"
    harmless = {"capabilities": {"add": ["NET_BIND_SERVICE"], "drop": ["ALL"]}, "privileged": False}
    container = {"name": "c", "image": "example.org/app:1", "securityContext": harmless}
    assert bare.admin.create(pods, _pod("p", containers=[container]), dry_run=True).accepted


def test_one_term_without_the_requirement_is_a_way_to_a_verified_node(bare: ControlPlane, space: str) -> None:
    affinity: dict[str, Any] = copy.deepcopy(STEERED)
    other = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "Exists"}]}
    affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"].append(other)
    answer = bare.admin.create(
        f"/api/v1/namespaces/{space}/pods", _pod("p", hostPID=True, affinity=affinity), dry_run=True
    )
    assert denied_by(answer, "nodewarden-privileged-pods")


def test_an_ephemeral_container_with_added_rights_is_refused(bare: ControlPlane, space: str) -> None:
    pods = f"/api/v1/namespaces/{space}/pods"
    bare.admin.must_create(pods, _pod("p", affinity=STEERED))
    ephemeral: dict[str, Any] = {"name": "d", "image": "example.org/app:1"}
    for context in _SECURITY:
        change = {"spec": {"ephemeralContainers": [{**ephemeral, "securityContext": context}]}}
        answer = bare.admin.patch(f"{pods}/p/ephemeralcontainers", change, kind="strategic")
        assert denied_by(answer, "nodewarden-privileged-pods")
    assert bare.admin.patch(
        f"{pods}/p/ephemeralcontainers", {"spec": {"ephemeralContainers": [ephemeral]}}, kind="strategic"
    ).accepted


def test_the_allow_list_admits_an_account_and_a_whole_namespace_and_its_absence_denies(
    bare: ControlPlane, breaker: Client, space: str
) -> None:
    pods, spec = f"/api/v1/namespaces/{space}/pods", {"hostPID": True}
    bare.admin.must_create(f"/api/v1/namespaces/{space}/serviceaccounts", {"metadata": {"name": "driver"}})
    path = "/api/v1/namespaces/nodewarden-system/configmaps/nodewarden-privileged-allow-list"
    before = bare.admin.must_get(path)

    def admitted(account: str) -> bool:
        return bare.admin.create(pods, _pod("p", serviceAccountName=account, **spec), dry_run=True).accepted

    try:
        breaker.must_patch(path, {"data": {"allow": f"nodewarden-attester/attester\n{space}/driver\n"}})
        wait_until("the entry is read", lambda: admitted("driver"), 10)
        assert not admitted("default")
        breaker.must_patch(path, {"data": {"allow": f"{space}/*"}})
        wait_until("the entry is read", lambda: admitted("default"), 10)
        breaker.delete(path)
        wait_until("its absence denies", lambda: not admitted("driver"), 10)
        # The cluster's own pods come up all the same.
        system = _pod("p", **spec)
        assert bare.admin.create("/api/v1/namespaces/kube-system/pods", system, dry_run=True).accepted
    finally:
        breaker.delete(path)
        fresh = {"metadata": {"name": before["metadata"]["name"]}, "data": before["data"]}
        breaker.must_create("/api/v1/namespaces/nodewarden-system/configmaps", fresh)


def test_a_kubelet_may_mirror_its_static_pods(bare: ControlPlane, space: str) -> None:
    mirror = _pod("static", hostNetwork=True, nodeName="fake-0", enableServiceLinks=False)
    mirror["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "x"}
    pods = f"/api/v1/namespaces/{space}/pods"
    assert denied_by(bare.admin.create(pods, mirror, dry_run=True), "nodewarden-privileged-pods")
    node = bare.admin.must_get("/api/v1/nodes/fake-0")
    owner = {"apiVersion": "v1", "kind": "Node", "name": "fake-0", "uid": node["metadata"]["uid"], "controller": True}
    mirror["metadata"]["ownerReferences"] = [owner]
    with bare.as_user("system:node:fake-0", "system:nodes") as kubelet:
        answer = kubelet.create(pods, mirror, dry_run=True)
        assert "nodewarden" not in answer.message
        assert answer.accepted, answer.message


def test_a_status_update_changes_no_label_of_a_pod(bare: ControlPlane, space: str) -> None:
    pods = f"/api/v1/namespaces/{space}/pods"
    pod = _pod("p")
    pod["metadata"]["labels"] = {"tier": "gold"}
    bare.admin.must_create(pods, pod)
    for change in ({"labels": {"tier": None}}, {"annotations": {"nodewarden.dev/min-baseline": "a@1.0.0"}}):
        assert denied_by(bare.admin.patch(f"{pods}/p/status", {"metadata": change}), "nodewarden-pod-status")
    assert bare.admin.patch(f"{pods}/p/status", {"status": {"message": "hello"}}).accepted
