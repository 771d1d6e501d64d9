"""The chart installed by helm on a real node, with the images that its Dockerfiles make: as the guide says.

Only this differs from a cluster of several machines: no container network plugin holds to the NetworkPolicies, volumes
are made by hand, and the attester finds a software TPM and the boot log that belongs to it.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attester.keys import read_endorsement_key
from attester.rounds import using_tpm
from attester.settings import AttesterSettings
from nodewarden_demo.software_tpm import LocalCa, SoftwareTpm
from nodewarden_demo.stage import GOOD_BOOT, baseline_text, boot_log, now
from tests.e2e.control_plane import ControlPlane, Options, control_plane
from tests.e2e.governed import GROUP, POLICY, a_policy
from tests.e2e.images.archive import import_images
from tests.e2e.images.build import ROOT, Image
from tests.e2e.images.services import ServiceNetwork, name_server, service_network, unused_ranges
from tests.e2e.install import NAMESPACE
from tests.e2e.machines import ATTESTER_NAMESPACE
from tests.e2e.pods import a_pod, kubectl, pods_path
from tests.e2e.programs import HarnessError, find_program, wait_until
from tests.e2e.real_node import Network, RealNode, real_node

REFERENCE = "registry.example.org/nodewarden/nodewarden-{}:0.1.0"
TRUSTED = "node-role.kubernetes.io/control-plane"
TCTI_LIBRARY = "libtss2-tcti-swtpm.so.0"


@dataclass(frozen=True)
class Installed:
    """The product, installed on the real node of a control plane of its own."""

    plane: ControlPlane
    node: RealNode
    tpm: SoftwareTpm
    boot_log: Path
    folder: Path

    def kubectl(self, *arguments: str, typed: str = "") -> str:
        """What kubectl printed, as the administrator. Raises HarnessError with its error."""
        done = kubectl(self.plane, *arguments, typed=typed, timeout=300)
        if done.returncode != 0:
            raise HarnessError(f"kubectl {' '.join(arguments[:6])}: {done.stderr.strip()}")
        return done.stdout

    def pods(self, namespace: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.plane.admin.must_get(pods_path(namespace))["items"]
        return found

    def administer(self, *arguments: str) -> str:
        """A `nodewarden` command of the verifier's operator, in its pod."""
        state = "/var/lib/nodewarden"
        access = ("--url", "https://localhost:8443", "--ca", f"{state}/tls/ca.pem")
        role = ("--token-file", f"{state}/tokens/operator.token")
        inside = ("exec", "deploy/nodewarden-verifier", "-c", "verifier", "--", "nodewarden")
        return self.kubectl("-n", NAMESPACE, *inside, arguments[0], *access, *role, *arguments[1:])

    def boot(self, case: str) -> None:
        """The machine has rebooted, as in the recording `case`."""
        self.tpm.reset()
        log = boot_log(case)
        self.tpm.extend_boot_log(log)
        self.boot_log.write_bytes(log)


@contextmanager
def installed(folder: Path, images: list[Image], maker: LocalCa) -> Iterator[Installed]:
    """The product at work; it expects the node, which attests when its attester tries again. Raises HarnessError."""
    service_range, pod_range = unused_ranges()
    reached = Network(pod_range, (service_range,), name_server(service_range))
    securityfs = folder / "securityfs"
    (securityfs / "tpm0").mkdir(parents=True)
    with (
        control_plane(folder / "cp", Options(nodes=0, service_range=service_range)) as plane,
        service_network(plane, service_range) as network,
        real_node(plane, folder / "n", network=reached) as node,
        SoftwareTpm.manufacture(folder / "tpm", maker, node.name) as tpm,
    ):
        log = securityfs / "tpm0/binary_bios_measurements"
        made = Installed(plane, node, tpm, log, folder)
        made.boot(GOOD_BOOT)
        import_images(node, images, REFERENCE)
        made.kubectl("label", "node", node.name, f"{TRUSTED}=")
        _install(made, network)
        _tell_what_to_expect(made, maker)
        try:
            yield made
        finally:
            # Else their pods would come again while the node is drained.
            for namespace in (NAMESPACE, ATTESTER_NAMESPACE):
                made.kubectl("-n", namespace, "delete", "deployments,daemonsets", "--all", "--wait=false")


def _install(made: Installed, network: ServiceNetwork) -> None:
    helm = [str(find_program("helm")), "install", "nodewarden", "deploy/chart/nodewarden", "--namespace", "kube-system"]
    provider = f"attester.csi.enabled=true,attester.csi.providersDir={made.node.providers}"
    _checked(made, *helm, "--set", f"cluster.issuer={made.plane.server}", "--set", provider)
    network.serve()
    _require_ordinary_pods_go_on(made)
    for name in ("verifier", "broker"):
        made.plane.admin.must_create("/api/v1/persistentvolumes", _volume(made, name))
    made.kubectl(
        "-n", ATTESTER_NAMESPACE, "patch", "daemonset", "nodewarden-attester", "--type=json", "--patch-file=/dev/stdin",
        typed=json.dumps(_on_this_machine(made, network)),
    )  # fmt: skip
    _checked(made, "deploy/bootstrap.sh")


def _require_ordinary_pods_go_on(made: Installed) -> None:
    # The verifier still waits for its volume, whose driver may have to start first.
    made.kubectl("-n", NAMESPACE, "rollout", "status", "deploy/nodewarden-webhook", "--timeout=2m")
    path = pods_path("default")

    def accepted() -> bool:
        return made.plane.admin.create(path, a_pod("ordinary"), dry_run=True).accepted

    wait_until("an ordinary pod may be created", accepted, 30)


def _tell_what_to_expect(made: Installed, maker: LocalCa) -> None:
    files = {"baselines": baseline_text(now()), "endorsement-roots": maker.root_pem.decode()}
    files |= {"endorsement-intermediates": maker.issuer_pem.decode()}
    for name, text in files.items():
        file = "demo-node.yaml" if name == "baselines" else "maker.pem"
        made.kubectl(
            "-n", NAMESPACE, "create", "configmap", f"nodewarden-{name}", f"--from-file={file}=/dev/stdin", typed=text
        )
    made.plane.admin.must_create(f"{GROUP}/nodetrustpolicies", a_policy(POLICY))
    # It reads them when it starts.
    made.kubectl("-n", NAMESPACE, "rollout", "restart", "deploy/nodewarden-verifier")
    made.kubectl("-n", NAMESPACE, "rollout", "status", "deploy/nodewarden-verifier", "--timeout=2m")
    listed = ("--tenant", "ml", "--cohort", "demo", "--certificate-sha256", _certificate_sha256(made))
    made.administer("inventory", "add", made.node.name, *listed)


def _certificate_sha256(made: Installed) -> str:
    # As from the machine's delivery note.
    settings = AttesterSettings(
        verifier_url="https://unused", verifier_id="unused", ca_file=made.folder, node_name="unused", tcti=made.tpm.tcti
    )
    with using_tpm(settings) as connection:
        certificate = read_endorsement_key(connection, settings.ek_type).certificates[0]
    return hashlib.sha256(certificate).hexdigest()


def _volume(made: Installed, name: str) -> dict[str, Any]:
    """A volume on the node for the claim, as an administrator makes one where no driver does."""
    place = made.folder / f"volume-{name}"
    place.mkdir()
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [made.node.name]}]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "2Gi"},
            "accessModes": ["ReadWriteOncePod"],
            "claimRef": {"namespace": NAMESPACE, "name": f"nodewarden-{name}"},
            "local": {"path": str(place)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
        },
    }


def _on_this_machine(made: Installed, network: ServiceNetwork) -> list[dict[str, Any]]:
    """Changes to the attester's DaemonSet: its host is a folder here, its TPM a software one that it reaches by TCP."""
    template = made.plane.admin.must_get(
        f"/apis/apps/v1/namespaces/{ATTESTER_NAMESPACE}/daemonsets/nodewarden-attester"
    )["spec"]["template"]["spec"]
    library = next(Path("/usr/lib").glob(f"*/{TCTI_LIBRARY}"))
    hosts = {
        "tpm": {"path": str(library.resolve()), "type": "File"},
        "securityfs": {"path": str(made.folder / "securityfs"), "type": "Directory"},
        "state": {"path": str(made.folder / "attester-state"), "type": "DirectoryOrCreate"},
        "runtime": {"path": str(made.folder / "attester-run"), "type": "DirectoryOrCreate"},
    }
    changes = [
        {"op": "replace", "path": f"/spec/template/spec/volumes/{number}/hostPath", "value": hosts[volume["name"]]}
        for number, volume in enumerate(template["volumes"])
        if volume["name"] in hosts
    ]
    address = network.address_of(11)
    port = int(made.tpm.tcti.rpartition("=")[2])
    for each in (port, port + 1):
        network.listen(address, each, lambda each=each: ("127.0.0.1", each))  # type: ignore[misc]  # mypy#15459
    tcti = {"name": "NODEWARDEN_ATTESTER_TCTI", "value": f"swtpm:host={address},port={port}"}
    for kind, index in (("initContainers", 0), ("containers", 0), ("containers", 1)):
        container = f"/spec/template/spec/{kind}/{index}"
        (tpm,) = (n for n, m in enumerate(template[kind][index]["volumeMounts"]) if m["name"] == "tpm")
        mounted = str(library)
        changes += [
            {"op": "add", "path": f"{container}/env/-", "value": tcti},
            {"op": "replace", "path": f"{container}/volumeMounts/{tpm}/mountPath", "value": mounted},
        ]
    return changes


def _checked(made: Installed, *command: str) -> None:
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "KUBECONFIG": str(made.plane.kubeconfigs["admin"]), "PATH": programs}
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False, cwd=ROOT, env=environment)
    if done.returncode != 0:
        raise HarnessError(f"{Path(command[0]).name}: {done.stdout[-1000:]}{done.stderr[-1500:]}")
