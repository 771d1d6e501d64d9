"""The stage: two machines with real software TPMs, a verifier, a webhook and a broker, all on loopback."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import yaml

from admission.kinds import attestation_manifest
from attester.client import Client, open_client
from attester.collectors.host_facts import LINUX_BOOT_ID
from attester.enrol import enrol
from attester.keys import read_endorsement_key
from attester.rounds import Node, enrolled_node, using_tpm
from attester.settings import AttesterSettings
from nodewarden_demo.cluster import ATTESTER_ACCOUNT, ATTESTER_NAMESPACE, ISSUER, SECRET, DemoCluster, DemoNode
from nodewarden_demo.processes import Services, answer_json, free_port, https, nodewarden
from nodewarden_demo.software_tpm import LocalCa, SoftwareTpm
from verifier.tls import ensure_tls

VERIFIER_ID = "https://verifier.demo"
CLUSTER_ID = "demo-cluster"
SECRET_VALUE = b"the key that decrypts the model's weights"
GOOD_BOOT, OTHER_CMDLINE, SECURE_BOOT_OFF = "sb-on-good", "sb-on-cmdline", "sb-off"


def now() -> int:
    """Seconds since 1970: the demo is a composition root."""
    return int(time.time())  # noqa: TID251 - as said


def boot_log(case: str) -> bytes:
    """The boot log recorded on a machine that really booted (`evidence/README.md`)."""
    return files("nodewarden_demo").joinpath(f"evidence/{case}/eventlog.bin").read_bytes()


def baseline_text(moment: int) -> str:
    """The reviewed baseline, valid from yesterday for ninety days."""
    template = Template(files("nodewarden_demo").joinpath("evidence/baseline.yaml.template").read_text())
    start = datetime.fromtimestamp(moment, UTC) - timedelta(days=1)
    form = "%Y-%m-%dT%H:%M:%SZ"
    return template.substitute(not_before=start.strftime(form), expires=(start + timedelta(days=90)).strftime(form))


@dataclass(slots=True)
class Machine:
    """A node: its TPM, its files, its settings, and its Node object in the cluster."""

    name: str
    directory: Path
    tpm: SoftwareTpm
    settings: AttesterSettings
    object: DemoNode

    def boot(self, case: str, *, power_cycle: bool = True) -> None:
        """The machine has booted as in the recording: its PCRs and its boot log are those of that boot."""
        if power_cycle:
            self.tpm.reset()
        log = boot_log(case)
        self.tpm.extend_boot_log(log)
        self.settings.boot_log_path.write_bytes(log)

    @property
    def node(self) -> Node:
        """The machine as enrolled."""
        return enrolled_node(self.settings)


@dataclass(slots=True)
class Stage:
    """Everything that the story acts with."""

    directory: Path
    cluster: DemoCluster
    good: Machine
    bad: Machine
    verifier_directory: Path
    verifier_url: str
    verifier_ca: Path
    webhook_url: str
    service_ca: Path

    def administer(self, *arguments: str) -> str:
        """Output of a `nodewarden` command that speaks to the verifier as its operator."""
        group, *rest = arguments
        token = self.verifier_directory / "tokens" / "operator.token"
        access = ["--url", self.verifier_url, "--ca", str(self.verifier_ca), "--token-file", str(token)]
        return nodewarden(group, *access, *rest)

    def publish_results(self) -> None:
        """The NodeAttestations in the cluster hold the verifier's newest results: the controller's work, once."""
        token = self.verifier_directory / "tokens" / "machine.token"
        with https(self.verifier_url, self.verifier_ca, token) as client:
            found = answer_json(client.get("/v1/results"))["results"]
        for machine in (self.good, self.bad):
            for entry in found:
                if entry["node_name"] == machine.name:
                    self.cluster.put_attestation(
                        attestation_manifest(machine.name, machine.object.uid, entry["result"])
                    )

    def review(self, path: str, review: dict[str, Any]) -> dict[str, Any]:
        """The webhook's answer to an AdmissionReview, as the API server would get it."""
        with https(self.webhook_url, self.service_ca) as client:
            response: dict[str, Any] = answer_json(client.post(path, json=review))["response"]
        return response


@contextmanager
def open_stage(directory: Path) -> Iterator[Stage]:
    """The stage in `directory` (private, empty); everything that was started is stopped afterwards.

    Raises RuntimeError or FileNotFoundError, saying which program does not start.
    """
    ca = LocalCa.create(directory / "tpm-maker")
    cluster = DemoCluster(directory / "cluster")
    ports = {name: free_port() for name in ("verifier", "webhook", "broker")}
    verifier_directory = _prepare_verifier(directory, ports["verifier"], cluster)
    service_ca = directory / "tls" / "ca.pem"
    ensure_tls(directory / "tls", ("localhost", "127.0.0.1"), now())
    verifier_ca = verifier_directory / "tls" / "ca.pem"
    trusted = directory / "attester-ca.pem"
    trusted.write_bytes(verifier_ca.read_bytes() + service_ca.read_bytes())
    urls = {name: f"https://127.0.0.1:{port}" for name, port in ports.items()}
    good_tpm = SoftwareTpm.manufacture(directory / "tpm-good", ca, "gpu-node-1")
    bad_tpm = SoftwareTpm.manufacture(directory / "tpm-bad", ca, "gpu-node-2")
    for kind, content in (("roots", ca.root_pem), ("intermediates", ca.issuer_pem)):
        (verifier_directory / "endorsements" / kind / "tpm-maker.pem").write_bytes(content)
    with good_tpm, bad_tpm, Services(directory) as services:
        good, bad = (
            _machine(directory, name, tpm, urls, trusted, cluster)
            for name, tpm in (("gpu-node-1", good_tpm), ("gpu-node-2", bad_tpm))
        )
        config = verifier_directory / "verifier.yaml"
        services.start("verifier", ("verifier", "serve", "--config", str(config)), urls["verifier"], verifier_ca)
        for name in ("webhook", "broker"):
            path = _admission_settings(directory, name, ports[name], urls["verifier"], verifier_ca, cluster)
            services.start(name, ("admission", name, "--config", str(path)), urls[name], service_ca)
        yield Stage(
            directory,
            cluster,
            good,
            bad,
            verifier_directory,
            urls["verifier"],
            verifier_ca,
            urls["webhook"],
            service_ca,
        )


def register(stage: Stage, machine: Machine) -> str:
    """The machine's TPM is in the inventory and enrolled; its node id.

    The inventory entry comes first and names the TPM by its certificate, as an operator writes it from a delivery note.
    """
    with using_tpm(machine.settings) as tpm:
        certificate = read_endorsement_key(tpm, machine.settings.ek_type).certificates[0]
    digest = hashlib.sha256(certificate).hexdigest()
    stage.administer(
        "inventory", "add", machine.name, "--tenant", "ml", "--cohort", "demo", "--certificate-sha256", digest
    )
    with using_tpm(machine.settings) as tpm, verifier_client(machine.settings) as client:
        return enrol(tpm, client, machine.settings).enrolment.node_id


@contextmanager
def verifier_client(settings: AttesterSettings) -> Iterator[Client]:
    """The attester's own client of the verifier."""
    timeouts = settings.connect_timeout_seconds, settings.request_timeout_seconds
    with open_client(settings.verifier_url, settings.ca_file, *timeouts) as client:
        yield client


def _prepare_verifier(directory: Path, port: int, cluster: DemoCluster) -> Path:
    target = directory / "verifier"
    nodewarden(
        "verifier", "init", "--dir", str(target), "--issuer", VERIFIER_ID, "--audience", CLUSTER_ID, "--port", str(port)
    )
    baseline = target / "baselines" / "demo-node.yaml"
    baseline.write_text(baseline_text(now()))
    baseline.chmod(0o600)
    nodewarden("policy", "lint", str(baseline))
    served = {
        "issuer": ISSUER,
        "jwks_file": str(cluster.jwks_file),
        "namespace": ATTESTER_NAMESPACE,
        "service_account": ATTESTER_ACCOUNT,
    }
    with (target / "verifier.yaml").open("a") as settings:
        settings.write(f"cluster: {json.dumps(served)}\n")
    return target


def _machine(
    directory: Path, name: str, tpm: SoftwareTpm, urls: dict[str, str], trusted: Path, cluster: DemoCluster
) -> Machine:
    home = directory / name
    for part in ("state", "run"):
        (home / part).mkdir(mode=0o700, parents=True)
    settings = AttesterSettings(
        verifier_url=urls["verifier"],
        verifier_id=VERIFIER_ID,
        ca_file=trusted,
        broker_url=urls["broker"],
        node_name=name,
        tcti=tpm.tcti,
        state_dir=home / "state",
        runtime_dir=home / "run",
        boot_log_path=home / "boot.log",
        node_token_path=home / "node-token",
    )
    uid = hashlib.sha256(name.encode()).hexdigest()[:32]
    machine = Machine(name, home, tpm, settings, DemoNode(name, uid, LINUX_BOOT_ID.read_text().strip()))
    cluster.put_node(machine.object)
    (home / "node-token").write_text(cluster.attester_token(machine.object, now()))
    machine.boot(GOOD_BOOT, power_cycle=False)
    return machine


def _admission_settings(
    directory: Path, name: str, port: int, verifier_url: str, verifier_ca: Path, cluster: DemoCluster
) -> Path:
    fields: dict[str, Any] = {
        "listen": {"host": "127.0.0.1", "port": port},
        "tls": {"certificate": "tls/server.pem", "key": "tls/server.key"},
        "manifests": [str(cluster.manifests)],
        "results": {
            "issuer": VERIFIER_ID,
            "audience": CLUSTER_ID,
            "jwks_url": f"{verifier_url}/.well-known/jwks.json",
            "jwks_ca_file": str(verifier_ca),
        },
        "reload_seconds": 1,
        "state_file": f"{name}-state.db",
    }
    if name == "broker":
        store = {"store": "secrets.sealed", "key": "secrets.key"}
        fields |= {"tokens": {"issuer": ISSUER, "jwks_file": str(cluster.jwks_file)}, "secrets": store}
        paths = ["--store", str(directory / store["store"]), "--key", str(directory / store["key"])]
        nodewarden("admission", "secrets", "put", SECRET, *paths, "--from-file", "-", standard_input=SECRET_VALUE)
    path = directory / f"{name}.yaml"
    path.write_text(yaml.safe_dump(json.loads(json.dumps(fields)), sort_keys=False))
    path.chmod(0o600)
    return path
