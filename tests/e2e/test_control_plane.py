"""The harness itself: what every other test here takes for granted."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.e2e.client import Client
from tests.e2e.control_plane import ControlPlane, is_ready
from tests.e2e.pods import a_pod, kubectl, pods_path, wait_for_phase
from tests.e2e.real_node import RealNode, processes_of


def test_the_fake_nodes_are_ready(plane: ControlPlane) -> None:
    nodes = plane.admin.must_get("/api/v1/nodes")["items"]
    assert sum(is_ready(node) for node in nodes if node["metadata"]["name"].startswith("fake-")) >= 20


def test_the_scheduler_binds_a_pod_and_it_runs(plane: ControlPlane, namespace: str) -> None:
    plane.admin.must_create(pods_path(namespace), a_pod("p"))
    pod = wait_for_phase(plane.admin, namespace, "p")
    assert pod["spec"]["nodeName"].startswith("fake-")


def test_a_tenant_may_do_all_in_the_namespace_and_nothing_outside(
    plane: ControlPlane, namespace: str, tenant: Client
) -> None:
    assert tenant.create(pods_path(namespace), a_pod("p")).accepted
    assert tenant.create(pods_path("default"), a_pod("p")).status == 403
    assert tenant.patch("/api/v1/nodes/fake-0", {"metadata": {"labels": {"a": "b"}}}).status == 403
    assert tenant.patch(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": {"a": "b"}}}).accepted


def test_a_kubelet_may_not_set_labels_of_our_domain_on_its_own_node(plane: ControlPlane) -> None:
    label = {"metadata": {"labels": {"nodewarden.node-restriction.kubernetes.io/verified": "true"}}}
    with plane.as_user("system:node:fake-16", "system:nodes") as kubelet:
        answer = kubelet.patch("/api/v1/nodes/fake-16", label)
        assert answer.status == 403
        assert "node-restriction" in answer.message
        harmless = {"metadata": {"annotations": {"example.org/note": "x"}}}
        assert kubelet.patch("/api/v1/nodes/fake-16", harmless).accepted


def test_a_service_account_speaks_with_a_token_from_token_request(plane: ControlPlane, namespace: str) -> None:
    with plane.as_service_account(namespace, "default") as client:
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        answer = client.must_create("/apis/authentication.k8s.io/v1/selfsubjectreviews", review)
    assert answer["status"]["userInfo"]["username"] == f"system:serviceaccount:{namespace}:default"


def test_a_pod_runs_on_the_real_node_and_exec_and_logs_work(
    plane: ControlPlane, node: RealNode, namespace: str
) -> None:
    command = ["/bin/sh", "-c", "echo started; exec sleep 1000"]
    container = {"name": "main", "image": node.app_image, "imagePullPolicy": "Never", "command": command}
    pod = a_pod("real", nodeName=node.name, containers=[container])
    plane.admin.must_create(pods_path(namespace), pod)
    wait_for_phase(plane.admin, namespace, "real")

    done = kubectl(plane, "-n", namespace, "exec", "real", "--", "/bin/echo", "inside")
    assert (done.returncode, done.stdout) == (0, "inside\n"), done.stderr
    assert kubectl(plane, "-n", namespace, "logs", "real").stdout == "started\n"

    plane.admin.delete(pods_path(namespace, "real"))
    gone = kubectl(plane, "-n", namespace, "wait", "--for=delete", "pod/real", "--timeout=30s")
    assert gone.returncode == 0, gone.stderr


def test_what_is_ended_with_the_node_is_what_ran_on_it(plane: ControlPlane, node: RealNode, namespace: str) -> None:
    container = {"name": "main", "image": node.app_image, "imagePullPolicy": "Never"}
    plane.admin.must_create(pods_path(namespace), a_pod("real", nodeName=node.name, containers=[container]))
    wait_for_phase(plane.admin, namespace, "real")
    # A stranger that got a mount namespace of its own sees the node's mounts in it.
    stranger = subprocess.Popen(["unshare", "--mount", "sh", "-c", "echo; exec sleep 60"], stdout=subprocess.PIPE)
    try:
        assert stranger.stdout is not None
        stranger.stdout.readline()
        assert str(node.folder) in Path(f"/proc/{stranger.pid}/mountinfo").read_text()
        ended = processes_of(node.folder)
        assert stranger.pid not in ended
        commands = [Path(f"/proc/{pid}/cmdline").read_text() for pid in ended]
        assert any(command.startswith("/bin/sleep") for command in commands)
        assert any("containerd-shim" in command for command in commands)
    finally:
        stranger.kill()
        stranger.communicate()
        plane.admin.delete(pods_path(namespace, "real"))


def test_the_real_node_reports_this_machine_s_boot(plane: ControlPlane, node: RealNode) -> None:
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert plane.admin.must_get(f"/api/v1/nodes/{node.name}")["status"]["nodeInfo"]["bootID"] == boot_id
