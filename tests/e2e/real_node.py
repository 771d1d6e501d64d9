"""One real node: containerd, kubelet, runc and the Secrets Store CSI Driver, as root, without a container engine.

Pods of this node use images imported here (`imagePullPolicy: Never`) and reach one another and this machine, nothing
else. The settings also suit a machine without CAP_SYS_RESOURCE and on cgroup v1.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx

from tests.e2e.control_plane import REAL_NODE, ControlPlane, is_ready
from tests.e2e.oci_image import write_image
from tests.e2e.programs import HarnessError, Programs, cache, find_program, free_port, wait_until

BUSYBOX = Path("/bin/busybox")
CNI_FOLDER = Path("/usr/lib/cni")
RUNC = Path("/usr/sbin/runc")
PROGRAMS = ("kubelet", "containerd", "containerd-shim-runc-v2", "ctr", "secrets-store-csi", "csi-crds")
DRIVER = "secrets-store.csi.k8s.io"
ROTATION_SECONDS = 2
"""How often the driver asks again for what is mounted; two minutes unless it is told otherwise."""
CLUSTER_DOMAIN = "cluster.local"
PAUSE_IMAGE = "docker.io/local/pause:1"
APP_IMAGE = "docker.io/local/app:1"
APPLETS = ("sh", "sleep", "cat", "echo", "httpd", "id", "ls")

_CONTAINERD = """version = 3
root = "{d}/root"
state = "{d}/state"
[grpc]
address = "{d}/containerd.sock"
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{pause}"
[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{cni}"]
conf_dir = "{d}/cni"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
BinaryName = "{runc}"
"""


@dataclass(frozen=True)
class Network:
    """Addresses of the node's pods, of what they reach besides, and of the name server that they ask, if any."""

    pods: str = "10.88.0.0/24"
    services: tuple[str, ...] = ()
    name_server: str = ""


@dataclass(frozen=True)
class RealNode:
    """A node that runs pods; a CSI provider listens on `providers/NAME.sock`."""

    name: str
    folder: Path
    providers: Path
    app_image: str
    """The application's image by digest: a busybox that sleeps unless it is told otherwise."""
    containerd: str


def missing_ability() -> str | None:
    """Why this machine cannot run a real node, or None."""
    if os.geteuid() != 0:
        return "a real node needs root"
    for path, package in ((RUNC, "runc"), (CNI_FOLDER, "containernetworking-plugins"), (BUSYBOX, "busybox-static")):
        if not path.exists():
            return f"{path} is missing: install {package}"
    try:
        for name in PROGRAMS:
            find_program(name)
    except HarnessError as error:
        return str(error)
    probe = subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"], capture_output=True, check=False)
    return None if probe.returncode == 0 else "this machine does not let processes have namespaces of their own"


@contextmanager
def real_node(
    plane: ControlPlane, folder: Path, name: str = REAL_NODE, network: Network | None = None
) -> Iterator[RealNode]:
    """The node, Ready; when the block ends its containers are gone and its mounts undone. Raises HarnessError."""
    for part in ("cni", "csi", "providers", "kubelet/plugins_registry"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    programs = Programs(folder)
    node = _Node(plane, folder, name, programs, network or Network())
    registrar: grpc.Server | None = None
    try:
        node.start_containerd()
        image = node.import_images()
        node.start_kubelet()
        node.introduce()
        node.start_driver()
        registrar = _register_driver(folder)
        # The kubelet's own taint ends once it is Ready.
        wait_until(f"{name} is Ready", node.ready, 90, programs.require_running)
        yield RealNode(name, folder, folder / "providers", image, node.containerd)
    finally:
        if registrar is not None:
            registrar.stop(0)
        node.stop()


class _Node:
    def __init__(self, plane: ControlPlane, folder: Path, name: str, programs: Programs, network: Network) -> None:
        self._network = network
        self._plane, self._folder, self._name, self._programs = plane, folder, name, programs
        self.containerd = f"{folder}/containerd.sock"
        self._environment = {**os.environ, "PATH": f"{cache()}:{os.environ['PATH']}"}

    def start_containerd(self) -> None:
        settings = _CONTAINERD.format(d=self._folder, pause=PAUSE_IMAGE, cni=CNI_FOLDER, runc=RUNC)
        (self._folder / "containerd.toml").write_text(settings)
        (self._folder / "cni/10.conflist").write_text(json.dumps(_plugins(self._folder, self._network)))
        config = f"{self._folder}/containerd.toml"
        self._programs.start(find_program("containerd"), "-c", config, environment=self._environment)
        wait_until("containerd answers", self._containerd_answers, 30, self._programs.require_running)

    def _containerd_answers(self) -> bool:
        command = [str(find_program("ctr")), "-a", self.containerd, "version"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def _ctr(self, *arguments: str) -> str:
        command = [str(find_program("ctr")), "-a", self.containerd, "-n", "k8s.io", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=self._environment, timeout=60, check=False)
        if done.returncode != 0:
            raise HarnessError(f"ctr {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def import_images(self) -> str:
        """The pause image and the application's; returns the latter's reference by digest."""
        pause, app = self._folder / "pause.tar", self._folder / "app.tar"
        # A static busybox acts by the name of its own file.
        write_image(pause, PAUSE_IMAGE, ["/bin/sleep", "2147483647"], {"bin/sleep": BUSYBOX})
        digest = write_image(app, APP_IMAGE, ["/bin/sleep", "2147483647"], {f"bin/{a}": BUSYBOX for a in APPLETS})
        by_digest = f"docker.io/local/app@{digest}"
        for archive in (pause, app):
            self._ctr("images", "import", str(archive))
        self._ctr("images", "tag", APP_IMAGE, by_digest)
        return by_digest

    def start_kubelet(self) -> None:
        settings = self._folder / "kubelet.json"
        settings.write_text(json.dumps(self._kubelet_settings()))
        self._programs.start(
            find_program("kubelet"),
            f"--config={settings}",
            f"--kubeconfig={self._plane.kubeconfigs[self._name]}",
            f"--hostname-override={self._name}",
            "--cloud-provider=external",
            f"--root-dir={self._folder}/kubelet",
            f"--cert-dir={self._folder}/pki",
            environment=self._environment,
        )

    def _kubelet_settings(self) -> dict[str, Any]:
        serving = self._plane.serving
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(self._plane.ca)},
            },
            "authorization": {"mode": "Webhook"},
            "containerRuntimeEndpoint": f"unix://{self.containerd}",
            "clusterDNS": [self._network.name_server] if self._network.name_server else [],
            "clusterDomain": CLUSTER_DOMAIN if self._network.name_server else "",
            "cgroupDriver": "cgroupfs",
            "failCgroupV1": False,
            "failSwapOn": False,
            "cgroupsPerQOS": False,
            "enforceNodeAllocatable": [],
            "localStorageCapacityIsolation": False,
            "evictionHard": {"memory.available": "1Mi"},
            "address": "127.0.0.1",
            "port": free_port(),
            "healthzPort": 0,
            "volumePluginDir": f"{self._folder}/volume-plugins",
            "podLogsDir": f"{self._folder}/pod-logs",
            "makeIPTablesUtilChains": False,
            "tlsCertFile": str(serving.certificate),
            "tlsPrivateKeyFile": str(serving.key),
        }

    def introduce(self) -> None:
        """Does a cloud provider's part: the node's addresses, and the end of the taint that waits for them."""
        admin, path = self._plane.admin, f"/api/v1/nodes/{self._name}"
        wait_until(f"{self._name} registers", lambda: admin.get(path).accepted, 60, self._programs.require_running)
        addresses = [{"type": "Hostname", "address": "localhost"}, {"type": "InternalIP", "address": "127.0.0.1"}]
        admin.must_patch(f"{path}/status", {"status": {"addresses": addresses}})
        waiting = "node.cloudprovider.kubernetes.io/uninitialized"
        taints = admin.must_get(path)["spec"].get("taints", [])
        admin.must_patch(path, {"spec": {"taints": [taint for taint in taints if taint["key"] != waiting]}})

    def start_driver(self) -> None:
        kubectl = [
            shutil.which("kubectl") or str(Path(".venv/bin/kubectl")),
            f"--kubeconfig={self._plane.kubeconfigs['admin']}",
        ]
        subprocess.run([*kubectl, "apply", "-f", cache() / "csi-crds"], check=True, capture_output=True, timeout=60)
        spec = {
            "podInfoOnMount": True,
            "attachRequired": False,
            "volumeLifecycleModes": ["Ephemeral"],
            "requiresRepublish": True,
            "serviceAccountTokenInSecrets": True,
            "tokenRequests": [{"audience": "nodewarden-broker"}],
        }
        driver = {"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": DRIVER}, "spec": spec}
        self._plane.admin.must_create("/apis/storage.k8s.io/v1/csidrivers", driver)
        socket = self._folder / "csi/csi.sock"
        self._programs.start(
            find_program("secrets-store-csi"),
            f"--endpoint=unix://{socket}",
            f"--nodeid={self._name}",
            f"--kubeconfig={self._plane.kubeconfigs['admin']}",
            f"--provider-volume={self._folder}/providers",
            "--metrics-addr=127.0.0.1:0",
            "--enable-secret-rotation",
            f"--rotation-poll-interval={ROTATION_SECONDS}s",
            # The rotation's own client knows no flag for it.
            environment={**self._environment, "KUBECONFIG": str(self._plane.kubeconfigs["admin"])},
        )
        wait_until("the CSI driver listens", socket.exists, 30, self._programs.require_running)

    def ready(self) -> bool:
        answer = self._plane.admin.get(f"/api/v1/nodes/{self._name}")
        return answer.accepted and is_ready(answer.body)

    def stop(self) -> None:
        """First the pods, as a drained node ends them; then what is left of them, what ran them, and the mounts."""
        if len(self._programs.running) > 1 and not any(program.ended() for program in self._programs.running):
            self._drain()
        self._programs.stop()
        for process in processes_of(self._folder):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        for attempt in range(20):
            mounts = _mounts_below(self._folder)
            if not mounts:
                return
            for mount in mounts:
                subprocess.run(
                    ["umount", *(["--lazy"] if attempt > 10 else []), mount], capture_output=True, check=False
                )
            time.sleep(0.2)

    def _drain(self) -> None:
        admin = self._plane.admin
        here = {"fieldSelector": f"spec.nodeName={self._name}"}
        try:
            for pod in admin.request("GET", "/api/v1/pods", parameters=here).body["items"]:
                metadata = pod["metadata"]
                path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
                admin.delete(path, grace_seconds=1)
            wait_until("the node's containers are gone", lambda: not self._ctr("tasks", "ls", "-q").split(), 30)
        except (HarnessError, httpx.TransportError) as error:
            # What a drain leaves, `stop` ends by force.
            print(f"{self._name} does not drain: {error}", file=sys.stderr)


def processes_of(folder: Path) -> list[int]:
    """Shims, which outlive the containerd that started them, and containers, by where their root comes from."""
    place, found = f"{folder}/".encode(), []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            shim = place + b"containerd.sock" in (entry / "cmdline").read_bytes()
            if shim or _is_rooted_in(place, (entry / "mountinfo").read_bytes()):
                found.append(int(entry.name))
    return found


def _is_rooted_in(place: bytes, mountinfo: bytes) -> bool:
    # Only the root itself tells: whoever made a mount namespace while the node ran sees the node's mounts in it too.
    return any(line.split()[4] == b"/" and place in line for line in mountinfo.splitlines())


def _mounts_below(folder: Path) -> list[str]:
    points = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    return sorted((point for point in points if point.startswith(f"{folder}/")), reverse=True)


def _plugins(folder: Path, network: Network) -> dict[str, Any]:
    addresses: dict[str, Any] = {"type": "host-local", "ranges": [[{"subnet": network.pods}]]}
    addresses |= {"dataDir": f"{folder}/addresses", "routes": [{"dst": each} for each in network.services]}
    return {"cniVersion": "1.0.0", "name": "nodewarden-e2e", "plugins": [{"type": "ptp", "ipam": addresses}]}


def _field(number: int, content: str) -> bytes:
    # One length-delimited protobuf field, shorter than 128 bytes.
    encoded = content.encode()
    if len(encoded) > 127:
        raise HarnessError(f"too long a path for the registration: {content}")
    return bytes([number << 3 | 2, len(encoded)]) + encoded


def _register_driver(folder: Path) -> grpc.Server:
    """The part of node-driver-registrar: tells the kubelet's plugin watcher of the driver's socket."""
    fields = ((1, "CSIPlugin"), (2, DRIVER), (3, f"{folder}/csi/csi.sock"), (4, "1.0.0"))
    about = b"".join(_field(number, content) for number, content in fields)

    def answering(reply: bytes) -> grpc.RpcMethodHandler:
        return grpc.unary_unary_rpc_method_handler(
            lambda _request, _context: reply, request_deserializer=bytes, response_serializer=bytes
        )

    methods = {"GetInfo": answering(about), "NotifyRegistrationStatus": answering(b"")}
    server = grpc.server(futures.ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("pluginregistration.Registration", methods)])
    server.add_insecure_port(f"unix://{folder}/kubelet/plugins_registry/{DRIVER}-reg.sock")
    server.start()
    return server
