"""A real control plane on loopback: etcd, kube-apiserver, kube-scheduler, kube-controller-manager, and kwok's nodes.

Authorisation is Node and RBAC, NodeRestriction is on, and every component has the identity that it has in a cluster.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from attester.collectors.host_facts import LINUX_BOOT_ID
from tests.e2e.authority import Authority, Certificate, certificate_user, write_kubeconfig
from tests.e2e.client import Client
from tests.e2e.programs import HarnessError, Programs, find_program, free_port, wait_until

REAL_NODE = "node-0"
READY_SECONDS = 120
BROKER_AUDIENCE = "nodewarden-broker"
ATTESTER_AUDIENCE = "nodewarden-attester"

_ADMIN = ("admin", ("system:masters",))
_COMPONENTS = {
    "admin": _ADMIN,
    "scheduler": ("system:kube-scheduler", ()),
    "controller-manager": ("system:kube-controller-manager", ()),
    REAL_NODE: (f"system:node:{REAL_NODE}", ("system:nodes",)),
}


@dataclass(frozen=True)
class Options:
    """What differs between control planes; the scheduler's client limit is Kubernetes' own unless it is raised."""

    nodes: int = 20
    admission_config: Path | None = None
    scheduler_qps: int | None = None
    apiserver_flags: Sequence[str] = ()
    service_range: str = "10.0.0.0/24"


@dataclass(frozen=True)
class ControlPlane:
    """A running control plane: its address, its CA, its admin, and what is needed to speak as anyone else."""

    server: str
    folder: Path
    authority: Authority
    kubeconfigs: dict[str, Path]
    admin: Client
    programs: Programs
    serving: Certificate
    apiserver_arguments: tuple[str, ...]

    @property
    def ca(self) -> Path:
        return self.authority.ca

    def as_user(self, user: str, *groups: str) -> Client:
        """A client with a certificate for `user`; a kubelet is `system:node:NAME` in `system:nodes`."""
        file = user.replace(":", "-").replace("/", "-")
        made = self.authority.client(f"user-{file}", user, *groups)
        return Client(self.server, self.ca, certificate=(made.certificate, made.key))

    def token(self, namespace: str, account: str, *, audience: str = "", bound_to: dict[str, str] | None = None) -> str:
        """A token of the ServiceAccount, from TokenRequest; for the API server unless `audience` says otherwise."""
        spec: dict[str, Any] = {"audiences": [audience] if audience else None, "expirationSeconds": 3600}
        if bound_to is not None:
            spec["boundObjectRef"] = bound_to
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        answer = self.admin.must_create(
            path, {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        )
        return str(answer["status"]["token"])

    def as_service_account(self, namespace: str, account: str) -> Client:
        return Client(self.server, self.ca, token=self.token(namespace, account))

    def service_account_kubeconfig(self, namespace: str, account: str, server: str = "") -> Path:
        """A kubeconfig with which a program acts as the ServiceAccount, at another address where `server` is one."""
        path = self.folder / f"sa-{namespace}-{account}.kubeconfig"
        return write_kubeconfig(path, server or self.server, self.ca, {"token": self.token(namespace, account)})


@contextmanager
def control_plane(folder: Path, options: Options | None = None) -> Iterator[ControlPlane]:
    """A control plane whose fake nodes are Ready; it stops when the block ends. Raises HarnessError."""
    options = options or Options()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    authority, programs = Authority(folder), Programs(folder)
    ports = {name: free_port() for name in ("etcd", "peer", "api", "scheduler", "controller-manager", "kwok")}
    server = f"https://127.0.0.1:{ports['api']}"
    kubeconfigs = {}
    for name, (user, groups) in _COMPONENTS.items():
        made = authority.client(name, user, *groups)
        kubeconfigs[name] = write_kubeconfig(
            folder / f"{name}.kubeconfig", server, authority.ca, certificate_user(made)
        )
    in_cluster = str(ip_network(options.service_range)[1])
    serving = authority.server("apiserver", "kubernetes.default.svc", in_cluster)
    arguments = _apiserver_arguments(folder, authority, serving, ports, options)
    admin = Client(server, authority.ca, certificate=(folder / "admin.crt", folder / "admin.key"))
    plane = ControlPlane(server, folder, authority, kubeconfigs, admin, programs, serving, arguments)
    try:
        _start(plane, ports, options)
        yield plane
    finally:
        admin.close()
        programs.stop()


def _start(plane: ControlPlane, ports: dict[str, int], options: Options) -> None:
    programs, folder = plane.programs, plane.folder
    client = f"http://127.0.0.1:{ports['etcd']}"
    programs.start(
        find_program("etcd"),
        f"--data-dir={folder}/etcd",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls=http://127.0.0.1:{ports['peer']}",
        "--unsafe-no-fsync",
    )
    programs.start(find_program("kube-apiserver"), *plane.apiserver_arguments)
    wait_until("kube-apiserver is ready", lambda: ready(plane), READY_SECONDS, programs.require_running)
    qps = options.scheduler_qps
    programs.start(
        find_program("kube-scheduler"),
        *_component(plane, "scheduler", ports["scheduler"]),
        *(() if qps is None else (f"--kube-api-qps={qps}", f"--kube-api-burst={2 * qps}")),
    )
    programs.start(
        find_program("kube-controller-manager"),
        *_component(plane, "controller-manager", ports["controller-manager"]),
        f"--service-account-private-key-file={folder}/sa.key",
        f"--root-ca-file={plane.ca}",
        "--use-service-account-credentials",
    )
    programs.start(
        find_program("kwok"),
        f"--kubeconfig={plane.kubeconfigs['admin']}",
        "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
        "--node-lease-duration-seconds=40",
        f"--config={find_program('kwok-stages.yaml')}",
        f"--server-address=127.0.0.1:{ports['kwok']}",
    )
    for number in range(options.nodes):
        plane.admin.must_create("/api/v1/nodes", fake_node(f"fake-{number}"))
    wait_until(
        "the fake nodes are Ready", lambda: _all_ready(plane.admin, options.nodes), 120, programs.require_running
    )


def fake_node(name: str, boot_id: str = "") -> dict[str, Any]:
    """A Node that kwok keeps Ready. By default it reports this machine's boot, as an attester that runs here does."""
    size = {"cpu": "64", "memory": "512Gi", "pods": "250"}
    about = dict.fromkeys(_NODE_INFO, "") | {"bootID": boot_id or LINUX_BOOT_ID.read_text().strip()}
    status: dict[str, Any] = {"capacity": size, "allocatable": size, "nodeInfo": about}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {"kubernetes.io/hostname": name},
        },
        "status": status,
    }


_NODE_INFO = (
    "architecture",
    "containerRuntimeVersion",
    "kernelVersion",
    "kubeProxyVersion",
    "kubeletVersion",
    "machineID",
    "operatingSystem",
    "osImage",
    "systemUUID",
)


def is_ready(node: dict[str, Any]) -> bool:
    """Whether the Node says that it is Ready and nothing keeps ordinary pods off."""
    conditions = node["status"].get("conditions", [])
    untainted = not node["spec"].get("taints")
    return untainted and any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def _all_ready(admin: Client, count: int) -> bool:
    return sum(is_ready(node) for node in admin.must_get("/api/v1/nodes")["items"]) >= count


def ready(plane: ControlPlane) -> bool:
    """Whether the API server answers that it is ready."""
    try:
        return plane.admin.get("/readyz").accepted
    except httpx.TransportError:
        return False


def _component(plane: ControlPlane, name: str, port: int) -> tuple[str, ...]:
    config = plane.kubeconfigs[name]
    return (
        f"--kubeconfig={config}",
        f"--authentication-kubeconfig={config}",
        f"--authorization-kubeconfig={config}",
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
    )


def _apiserver_arguments(
    folder: Path, authority: Authority, serving: Certificate, ports: dict[str, int], options: Options
) -> tuple[str, ...]:
    _write_token_keys(folder)
    server = f"https://127.0.0.1:{ports['api']}"
    kubelet_client = authority.client("kubelet-client", "kube-apiserver-kubelet-client", "system:masters")
    flags = [
        f"--etcd-servers=http://127.0.0.1:{ports['etcd']}",
        "--bind-address=127.0.0.1",
        f"--secure-port={ports['api']}",
        f"--tls-cert-file={serving.certificate}",
        f"--tls-private-key-file={serving.key}",
        f"--client-ca-file={authority.ca}",
        f"--service-account-issuer={server}",
        f"--service-account-key-file={folder}/sa.pub",
        f"--service-account-signing-key-file={folder}/sa.key",
        f"--api-audiences={server}",
        f"--service-cluster-ip-range={options.service_range}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        f"--kubelet-client-certificate={kubelet_client.certificate}",
        f"--kubelet-client-key={kubelet_client.key}",
        "--kubelet-preferred-address-types=InternalIP",
        "--allow-privileged=true",
        "--endpoint-reconciler-type=none",
        *options.apiserver_flags,
    ]
    if options.admission_config is not None:
        flags.append(f"--admission-control-config-file={options.admission_config}")
    return tuple(flags)


def _write_token_keys(folder: Path) -> None:
    key = rsa.generate_private_key(65537, 2048)
    pem, pkcs8, plain = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "sa.key").touch(mode=0o600)
    (folder / "sa.key").write_bytes(key.private_bytes(pem, pkcs8, plain))
    public = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    (folder / "sa.pub").write_bytes(public)


def require_programs() -> None:
    """Raises HarnessError where a program of the control plane is not built."""
    for name in ("etcd", "kube-apiserver", "kube-scheduler", "kube-controller-manager", "kwok", "kwok-stages.yaml"):
        find_program(name)


__all__ = ["ControlPlane", "HarnessError", "Options", "control_plane", "fake_node", "is_ready", "require_programs"]
