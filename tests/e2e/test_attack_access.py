"""The ways into a pod that runs: closed where it is sensitive, open as ever where it is not. On the real node.

Each way is tried by both protocols that kubectl speaks, and the same call gets through to an ordinary pod.
"""

from __future__ import annotations

import os
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.e2e.authority import certificate_user, write_kubeconfig
from tests.e2e.client import Client
from tests.e2e.control_plane import ControlPlane
from tests.e2e.governed import Governed
from tests.e2e.install import ROOT
from tests.e2e.pods import kubectl, kubectl_command, wait_for_phase
from tests.e2e.programs import free_port, wait_until
from tests.e2e.real_node import RealNode
from verifier.wire.codes import ReasonCode

PORT = 8080
# What is typed comes back, and a page is served.
TALKATIVE = f"echo served > /index.html; httpd -p {PORT} -h /; echo started; exec cat"
BOTH_PROTOCOLS = pytest.mark.parametrize("websockets", ["true", "false"], ids=["websocket", "spdy"])


@pytest.fixture
def pods(governed_on_real_node: Governed, node: RealNode, tenant: Client) -> Governed:
    """Two alike pods that really run on the real node, which is verified: `secret` is sensitive, `plain` is not."""
    made = governed_on_real_node
    container = {
        "name": "main",
        "image": node.app_image,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", TALKATIVE],
        "stdin": True,
        "stdinOnce": True,
    }
    for name, account in (("secret", "llm"), ("plain", "default")):
        spec = {"serviceAccountName": account, "containers": [container], "nodeName": node.name}
        tenant.must_create(made.path(), made.pod(name, node.app_image, **spec, restartPolicy="Never"))
    for name in ("secret", "plain"):
        wait_for_phase(tenant, made.namespace, name)
    return made


class Person:
    """Someone with every right in the namespace, at a terminal with kubectl."""

    def __init__(self, plane: ControlPlane, namespace: str, kubeconfig: Path) -> None:
        self.plane, self.namespace, self.kubeconfig = plane, namespace, kubeconfig

    def does(self, *arguments: str, typed: str = "", websockets: str = "true") -> subprocess.CompletedProcess[str]:
        """What kubectl did in the namespace."""
        command = ("-n", self.namespace, *arguments)
        return kubectl(self.plane, *command, kubeconfig=self.kubeconfig, typed=typed, environment=_protocol(websockets))

    @contextmanager
    def forwarded(self, pod: str, websockets: str) -> Iterator[str]:
        """The address of this machine that kubectl forwards to the pod's port while the block runs."""
        port = free_port()
        arguments = ("-n", self.namespace, "port-forward", f"pod/{pod}", f"{port}:{PORT}")
        command = kubectl_command(self.plane, *arguments, kubeconfig=self.kubeconfig)
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=_protocol(websockets))
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("Forwarding from 127.0.0.1")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.communicate(timeout=10)


def _protocol(websockets: str) -> dict[str, str]:
    names = ("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "KUBECTL_PORT_FORWARD_WEBSOCKETS")
    return {**os.environ, **dict.fromkeys(names, websockets)}


@pytest.fixture
def person(plane: ControlPlane, tenant: Client, namespace: str, tmp_path: Path) -> Person:
    del tenant  # whose rights these are
    certificate = plane.authority.client(f"kubectl-{namespace}", f"tenant-{namespace}")
    user = certificate_user(certificate)
    return Person(plane, namespace, write_kubeconfig(tmp_path / "tenant.kubeconfig", plane.server, plane.ca, user))


def assert_forbidden(done: subprocess.CompletedProcess[str]) -> None:
    """It failed for exactly our reason, with nothing of the pod's on standard output."""
    assert done.returncode != 0
    assert ReasonCode.ACCESS_FORBIDDEN.value in done.stderr
    assert done.stdout == ""


@BOTH_PROTOCOLS
def test_exec_is_denied_in_a_sensitive_pod_and_works_in_an_ordinary_one(
    pods: Governed, person: Person, websockets: str
) -> None:
    command = ("--", "/bin/echo", "inside")
    assert_forbidden(person.does("exec", "secret", *command, websockets=websockets))
    allowed = person.does("exec", "plain", *command, websockets=websockets)
    assert (allowed.returncode, allowed.stdout) == (0, "inside\n"), allowed.stderr


@BOTH_PROTOCOLS
def test_attach_is_denied_to_a_sensitive_pod_and_works_with_an_ordinary_one(
    pods: Governed, person: Person, websockets: str
) -> None:
    assert_forbidden(person.does("attach", "-i", "secret", typed="who goes there\n", websockets=websockets))
    allowed = person.does("attach", "-i", "plain", typed="who goes there\n", websockets=websockets)
    # The container's cat ends with its input: only then does kubectl return.
    assert (allowed.returncode, allowed.stdout) == (0, "who goes there\n"), allowed.stderr


@BOTH_PROTOCOLS
def test_port_forward_is_denied_to_a_sensitive_pod_and_reaches_an_ordinary_one(
    pods: Governed, person: Person, websockets: str
) -> None:
    port = f"{free_port()}:{PORT}"
    assert_forbidden(person.does("port-forward", "pod/secret", port, websockets=websockets))
    with person.forwarded("plain", websockets) as url:
        assert httpx.get(url, trust_env=False).text == "served\n"


@pytest.mark.parametrize("form", ["{}:8080", "http:{}:8080"])
def test_the_proxy_is_denied_to_a_sensitive_pod_and_reaches_an_ordinary_one(
    pods: Governed, tenant: Client, form: str
) -> None:
    answer = tenant.get(pods.path(form.format("secret"), "proxy/"))
    assert answer.denies(ReasonCode.ACCESS_FORBIDDEN), answer.message
    served = tenant.get(pods.path(form.format("plain"), "proxy/"))
    assert (served.status, served.body) == (200, "served\n")


@pytest.mark.parametrize("form", ["{}", "https:{}:8080"])
def test_the_proxy_is_denied_to_a_sensitive_pod_in_every_form_of_its_name(
    pods: Governed, tenant: Client, form: str
) -> None:
    answer = tenant.get(pods.path(form.format("secret"), "proxy/"))
    assert answer.denies(ReasonCode.ACCESS_FORBIDDEN), answer.message
    # Of an ordinary pod the port is tried, and nothing there answers this form.
    assert "nodewarden" not in tenant.get(pods.path(form.format("plain"), "proxy/")).message


def test_the_cluster_s_admin_is_denied_as_well(plane: ControlPlane, pods: Governed) -> None:
    assert_forbidden(kubectl(plane, "-n", pods.namespace, "exec", "secret", "--", "/bin/id"))


def test_who_holds_nodes_proxy_enters_past_admission_as_the_guide_warns(
    plane: ControlPlane, pods: Governed, node: RealNode
) -> None:
    status = plane.admin.must_get(f"/api/v1/nodes/{node.name}")["status"]
    kubelet = f"https://localhost:{status['daemonEndpoints']['kubeletEndpoint']['Port']}"
    # The same admin as above, at the kubelet itself: it asks the API server for rights, and nobody for admission.
    context = ssl.create_default_context(cafile=str(plane.ca))
    context.load_cert_chain(plane.folder / "admin.crt", plane.folder / "admin.key")
    with httpx.Client(verify=context, trust_env=False) as client:
        answer = client.post(f"{kubelet}/run/{pods.namespace}/secret/main?cmd=/bin/id")
    assert (answer.status_code, answer.text[:6]) == (200, "uid=0 ")
    assert "* Who holds `nodes/proxy` enters every pod" in (ROOT / "docs/installing.md").read_text()


def test_logs_of_a_sensitive_pod_are_not_an_access_to_it(plane: ControlPlane, pods: Governed) -> None:
    wait_until(
        "the pod has logged", lambda: kubectl(plane, "-n", pods.namespace, "logs", "secret").stdout == "started\n", 10
    )
