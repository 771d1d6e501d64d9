"""Machines behind the cluster's nodes: a real verifier, and software TPMs whose attesters speak for one node each.

A node's attester proves its node as in a cluster: with a token of the attester's ServiceAccount that the API server
bound to the attester's pod on that node.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from attester.enrol import enrol
from attester.keys import read_endorsement_key
from attester.rounds import attest, enrolled_node, using_tpm
from attester.settings import AttesterSettings
from nodewarden_demo.processes import https
from nodewarden_demo.software_tpm import LocalCa, SoftwareTpm
from nodewarden_demo.stage import GOOD_BOOT, baseline_text, boot_log, now, verifier_client
from tests.e2e.control_plane import ATTESTER_AUDIENCE, ControlPlane
from tests.e2e.pods import a_pod, pods_path
from tests.e2e.programs import HarnessError, Program, Programs, free_port, wait_until
from verifier.wire.verdict import EvidenceResponse

VERIFIER_ID = "https://verifier.e2e"
CLUSTER_ID = "e2e"
ATTESTER_NAMESPACE, ATTESTER_ACCOUNT = "nodewarden-attester", "attester"


def start_nodewarden(programs: Programs, name: str, *arguments: str) -> Program:
    """Starts `nodewarden ARGUMENTS`, as an operator starts it."""
    return programs.start(Path(sys.executable), "-m", "nodewarden", *arguments, name=name)


def nodewarden(*arguments: str, content: bytes = b"") -> str:
    """What a `nodewarden` command printed. Raises HarnessError with its error line where it fails."""
    command = [sys.executable, "-m", "nodewarden", *arguments]
    done = subprocess.run(command, input=content, capture_output=True, timeout=60, check=False)
    if done.returncode != 0:
        raise HarnessError(f"nodewarden {' '.join(arguments[:2])}: {done.stderr.decode().strip()}")
    return done.stdout.decode()


def answers(url: str, ca_file: Path, path: str = "/healthz") -> bool:
    """Whether the service at `url` says that it is well."""
    try:
        with https(url, ca_file) as client:
            return client.get(path).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


@dataclass(frozen=True)
class VerifierService:
    """A verifier that serves this cluster."""

    url: str
    folder: Path
    programs: Programs

    @property
    def ca(self) -> Path:
        return self.folder / "tls" / "ca.pem"

    def token_file(self, role: str) -> Path:
        return self.folder / "tokens" / f"{role}.token"

    def administer(self, group: str, *arguments: str) -> str:
        """Output of a `nodewarden` command that speaks to the verifier as its operator."""
        access = ["--url", self.url, "--ca", str(self.ca), "--token-file", str(self.token_file("operator"))]
        return nodewarden(group, *access, *arguments)

    def results(self) -> dict[str, str]:
        """The newest signed result of each node, by its name."""
        with https(self.url, self.ca, self.token_file("machine")) as client:
            found = client.get("/v1/results").raise_for_status().json()["results"]
        return {entry["node_name"]: entry["result"] for entry in found}


@contextmanager
def verifier_service(plane: ControlPlane, folder: Path, maker: LocalCa) -> Iterator[VerifierService]:
    """A verifier process that knows this cluster's node tokens and trusts TPMs of `maker`."""
    port = free_port()
    nodewarden(
        *("verifier", "init", "--dir", str(folder), "--issuer", VERIFIER_ID, "--audience", CLUSTER_ID),
        *("--port", str(port)),
    )
    (folder / "baselines/demo-node.yaml").write_text(baseline_text(now()))
    for kind, content in (("roots", maker.root_pem), ("intermediates", maker.issuer_pem)):
        (folder / "endorsements" / kind / "tpm-maker.pem").write_bytes(content)
    (folder / "cluster-jwks.json").write_text(json.dumps(plane.admin.must_get("/openid/v1/jwks")))
    served = {
        "issuer": plane.server,
        "jwks_file": "cluster-jwks.json",
        "namespace": ATTESTER_NAMESPACE,
        "service_account": ATTESTER_ACCOUNT,
        "audience": ATTESTER_AUDIENCE,
    }
    with (folder / "verifier.yaml").open("a") as settings:
        settings.write(f"cluster: {json.dumps(served)}\n")
    programs = Programs(folder)
    service = VerifierService(f"https://127.0.0.1:{port}", folder, programs)
    start_nodewarden(programs, "verifier", "verifier", "serve", "--config", str(folder / "verifier.yaml"))
    try:
        wait_until("the verifier answers", lambda: answers(service.url, service.ca), 60, programs.require_running)
        yield service
    finally:
        programs.stop()


@dataclass
class Machine:
    """A node's machine: its TPM, its files, and the attester's settings."""

    node_name: str
    folder: Path
    tpm: SoftwareTpm
    settings: AttesterSettings
    programs: Programs

    def boot(self, case: str = GOOD_BOOT, *, power_cycle: bool = True) -> None:
        """The machine has booted as in the recording `case`: its PCRs and its boot log are those of that boot."""
        if power_cycle:
            self.tpm.reset()
        log = boot_log(case)
        self.tpm.extend_boot_log(log)
        self.settings.boot_log_path.write_bytes(log)

    def attest(self) -> EvidenceResponse:
        """One round with the verifier, whose answer it is."""
        with verifier_client(self.settings) as client:
            return attest(enrolled_node(self.settings), client, None, now)

    def keep_attesting(self) -> None:
        """Starts the attester's daemon, as a node runs it."""
        arguments = ("attester", "run", "--config", str(self.config))
        start_nodewarden(self.programs, f"attester-{self.node_name}", *arguments)

    @property
    def config(self) -> Path:
        """The attester's settings as a file, for the command line."""
        path = self.folder / "attester.yaml"
        path.touch(mode=0o600)
        path.write_text(yaml.safe_dump(self.settings.model_dump(mode="json", exclude_none=True)))
        return path

    def certificate_sha256(self) -> str:
        """What an operator lists the machine's TPM by, as from a delivery note."""
        with using_tpm(self.settings) as connection:
            certificate = read_endorsement_key(connection, self.settings.ek_type).certificates[0]
        return hashlib.sha256(certificate).hexdigest()

    def enrol(self, verifier: VerifierService) -> None:
        """The inventory lists the machine, and it enrols."""
        listed = ("--tenant", "ml", "--cohort", "demo", "--certificate-sha256", self.certificate_sha256())
        verifier.administer("inventory", "add", self.node_name, *listed)
        with using_tpm(self.settings) as connection, verifier_client(self.settings) as client:
            enrol(connection, client, self.settings)


@contextmanager
def booted_machine(
    plane: ControlPlane,
    verifier: VerifierService,
    maker: LocalCa,
    folder: Path,
    node_name: str,
    *,
    broker_url: str | None = None,
    broker_ca: Path | None = None,
    pod_spec: dict[str, Any] | None = None,
) -> Iterator[Machine]:
    """The machine of the node `node_name`: booted well, and unknown to the verifier."""
    folder.mkdir(mode=0o700, parents=True)
    for part in ("state", "run"):
        (folder / part).mkdir(mode=0o700)
    trusted = folder / "ca.pem"
    trusted.write_bytes(verifier.ca.read_bytes() + (b"" if broker_ca is None else broker_ca.read_bytes()))
    trusted.chmod(0o600)
    (folder / "node-token").write_text(node_token(plane, node_name, pod_spec))
    programs = Programs(folder)
    with SoftwareTpm.manufacture(folder / "tpm", maker, node_name) as tpm:
        settings = AttesterSettings(
            verifier_url=verifier.url,
            verifier_id=VERIFIER_ID,
            ca_file=trusted,
            broker_url=broker_url,
            node_name=node_name,
            tcti=tpm.tcti,
            state_dir=folder / "state",
            runtime_dir=folder / "run",
            boot_log_path=folder / "boot.log",
            node_token_path=folder / "node-token",
        )
        made = Machine(node_name, folder, tpm, settings, programs)
        made.boot(power_cycle=False)
        try:
            yield made
        finally:
            programs.stop()


@contextmanager
def machine(
    plane: ControlPlane, verifier: VerifierService, maker: LocalCa, folder: Path, node_name: str, **options: Any
) -> Iterator[Machine]:
    """The machine, as `booted_machine` makes it, listed in the inventory and enrolled; it has not attested yet."""
    with booted_machine(plane, verifier, maker, folder, node_name, **options) as made:
        made.enrol(verifier)
        yield made


def node_token(plane: ControlPlane, node_name: str, pod_spec: dict[str, Any] | None = None) -> str:
    """The token that the kubelet of `node_name` would mount into the attester's pod, which is made where needed."""
    pod = f"attester-{node_name}"
    spec = {"nodeName": node_name, "serviceAccountName": ATTESTER_ACCOUNT, **(pod_spec or {})}
    made = plane.admin.create(pods_path(ATTESTER_NAMESPACE), a_pod(pod, **spec))
    if made.status not in {201, 409}:
        raise HarnessError(f"the attester's pod on {node_name}: {made.message}")
    uid = plane.admin.must_get(pods_path(ATTESTER_NAMESPACE, pod))["metadata"]["uid"]
    bound = {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid}
    return plane.token(ATTESTER_NAMESPACE, ATTESTER_ACCOUNT, audience=ATTESTER_AUDIENCE, bound_to=bound)
