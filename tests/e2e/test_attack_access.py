"""The ways into a pod that runs: closed where it is sensitive, open as ever where it is not. On the real node."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.authority import certificate_user, write_kubeconfig
from tests.e2e.client import Client
from tests.e2e.control_plane import ControlPlane
from tests.e2e.governed import Governed
from tests.e2e.pods import kubectl, wait_for_phase
from tests.e2e.programs import free_port, wait_until
from tests.e2e.real_node import RealNode
from verifier.wire.codes import ReasonCode

SHELL = ["/bin/sh", "-c", "echo started; nc -l -p 8080 -e /bin/echo served & exec sleep 1000"]


@pytest.fixture
def pods(governed_on_real_node: Governed, node: RealNode, tenant: Client) -> Governed:
    """Two pods that really run on the real node, which is verified: `secret` is sensitive, `plain` is not."""
    made = governed_on_real_node
    for name, account in (("secret", "llm"), ("plain", "default")):
        container = {"name": "main", "image": node.app_image, "imagePullPolicy": "Never", "command": SHELL}
        spec = {"serviceAccountName": account, "containers": [container], "nodeName": node.name}
        tenant.must_create(made.path(), made.pod(name, node.app_image, **spec))
    for name in ("secret", "plain"):
        wait_for_phase(tenant, made.namespace, name)
    return made


@pytest.fixture
def tenant_config(plane: ControlPlane, tenant: Client, namespace: str, tmp_path: Path) -> Path:
    """The tenant's own kubeconfig."""
    certificate = plane.authority.client(f"kubectl-{namespace}", f"tenant-{namespace}")
    return write_kubeconfig(tmp_path / "tenant.kubeconfig", plane.server, plane.ca, certificate_user(certificate))


def test_exec_is_denied_in_a_sensitive_pod_and_works_in_an_ordinary_one(
    plane: ControlPlane, pods: Governed, tenant_config: Path
) -> None:
    command = ("--", "/bin/echo", "inside")
    denied = kubectl(plane, "-n", pods.namespace, "exec", "secret", *command, kubeconfig=tenant_config)
    assert denied.returncode != 0
    assert ReasonCode.ACCESS_FORBIDDEN.value in denied.stderr
    allowed = kubectl(plane, "-n", pods.namespace, "exec", "plain", *command, kubeconfig=tenant_config)
    assert (allowed.returncode, allowed.stdout) == (0, "inside\n"), allowed.stderr


def test_attach_is_denied_in_a_sensitive_pod(plane: ControlPlane, pods: Governed, tenant_config: Path) -> None:
    denied = kubectl(plane, "-n", pods.namespace, "attach", "secret", kubeconfig=tenant_config)
    assert denied.returncode != 0
    assert ReasonCode.ACCESS_FORBIDDEN.value in denied.stderr


def test_port_forward_is_denied_to_a_sensitive_pod(plane: ControlPlane, pods: Governed, tenant_config: Path) -> None:
    port = f"{free_port()}:8080"
    denied = kubectl(plane, "-n", pods.namespace, "port-forward", "pod/secret", port, kubeconfig=tenant_config)
    assert denied.returncode != 0
    assert ReasonCode.ACCESS_FORBIDDEN.value in denied.stderr


@pytest.mark.parametrize("form", ["{}", "{}:8080", "http:{}:8080", "https:{}:8080"])
def test_the_proxy_is_denied_to_a_sensitive_pod(pods: Governed, tenant: Client, form: str) -> None:
    answer = tenant.get(pods.path(form.format("secret"), "proxy/"))
    assert answer.denies(ReasonCode.ACCESS_FORBIDDEN), answer.message
    # Of an ordinary pod the port is tried, and nothing there speaks HTTP.
    assert "nodewarden" not in tenant.get(pods.path(form.format("plain"), "proxy/")).message


def test_the_cluster_s_admin_is_denied_as_well(plane: ControlPlane, pods: Governed) -> None:
    denied = kubectl(plane, "-n", pods.namespace, "exec", "secret", "--", "/bin/id")
    assert ReasonCode.ACCESS_FORBIDDEN.value in denied.stderr


def test_logs_of_a_sensitive_pod_are_not_an_access_to_it(plane: ControlPlane, pods: Governed) -> None:
    wait_until(
        "the pod has logged", lambda: kubectl(plane, "-n", pods.namespace, "logs", "secret").stdout == "started\n", 10
    )
