"""The whole product beside the control plane: verifier, controller, webhook and broker, each a process of its own.

Each acts as the ServiceAccount that the installation makes for it, with that account's rights and no more.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml

from nodewarden_demo.software_tpm import LocalCa
from tests.e2e.authority import Authority, Certificate
from tests.e2e.control_plane import ControlPlane
from tests.e2e.install import NAMESPACE, apply, install
from tests.e2e.machines import (
    CLUSTER_ID,
    VERIFIER_ID,
    VerifierService,
    answers,
    nodewarden,
    start_nodewarden,
    verifier_service,
)
from tests.e2e.programs import Program, Programs, free_port, wait_until
from tests.e2e.relay import Relay

SECRET = "model/key"
SECRET_VALUE = b"the key that decrypts the model's weights"
STARTS_SECONDS = 60


@dataclass
class Service:
    """One of our processes, which tests may stop and start again."""

    name: str
    config: Path
    programs: Programs
    url: str
    ca: Path
    health: str = "/readyz"
    program: Program | None = None

    def start(self) -> None:
        """The process runs and says that it is ready."""
        arguments = ("admission", self.name, "--config", str(self.config))
        self.program = start_nodewarden(self.programs, self.name, *arguments)
        wait_until(f"{self.name} is ready", self._ready, STARTS_SECONDS, self.programs.require_running)

    def _ready(self) -> bool:
        if self.url.startswith("https:"):
            return answers(self.url, self.ca, self.health)
        with suppress(httpx.TransportError):
            return httpx.get(self.url + self.health, trust_env=False).is_success
        return False

    def stop(self) -> None:
        if self.program is not None:
            self.programs.running.remove(self.program)
            self.program.stop()
            self.program = None

    def log(self) -> str:
        return (self.programs.folder / f"{self.name}.log").read_text(errors="replace")

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """The process is down while the block runs, and ready again afterwards."""
        self.stop()
        try:
            yield
        finally:
            self.start()


@dataclass
class System:
    """The product at work in the control plane."""

    plane: ControlPlane
    verifier: VerifierService
    maker: LocalCa
    folder: Path
    controller: Service
    webhook: Service
    broker: Service
    webhook_link: Relay
    webhook_configurations: list[dict[str, Any]] = field(default_factory=list)

    def register_webhooks(self) -> None:
        """The API server asks our webhook, by its address on loopback."""
        for manifest in self.webhook_configurations:
            apply(self.plane.admin, manifest)

    @contextmanager
    def webhook_cut_off(self) -> Iterator[None]:
        """The webhook serves, but hears nothing of the API server while the block runs."""
        self.webhook_link.cut()
        try:
            yield
        finally:
            self.webhook_link.mend()


@contextmanager
def running_system(plane: ControlPlane, folder: Path, maker: LocalCa) -> Iterator[System]:
    """The product, installed and at work; its processes end with the block. Raises HarnessError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    webhooks = install(plane)
    with verifier_service(plane, folder / "verifier", maker) as verifier:
        programs = Programs(folder)
        serving = Authority(folder, "services-ca")
        certificate = serving.server("services")
        made = _System(plane, verifier, folder, programs, serving, certificate)
        link = Relay(plane.server)
        services = (made.controller(), made.webhook(link), made.broker())
        system = System(plane, verifier, maker, folder, *services, link)
        ca = serving.ca.read_bytes()
        system.webhook_configurations = [by_address(m, system.webhook.url, ca) for m in webhooks]
        try:
            for service in (system.controller, system.webhook, system.broker):
                service.start()
            system.register_webhooks()
            yield system
        finally:
            programs.stop()
            link.close()


@dataclass
class _System:
    plane: ControlPlane
    verifier_service: VerifierService
    folder: Path
    programs: Programs
    authority: Authority
    certificate: Certificate

    def _config(self, name: str, fields: dict[str, Any]) -> Path:
        path = self.folder / f"{name}.yaml"
        path.touch(mode=0o600)
        path.write_text(yaml.safe_dump(json.loads(json.dumps(fields))))
        return path

    def _common(self, name: str, server: str = "") -> dict[str, Any]:
        account = self.plane.service_account_kubeconfig(NAMESPACE, f"nodewarden-{name}", server)
        results = {
            "issuer": VERIFIER_ID,
            "audience": CLUSTER_ID,
            "jwks_url": f"{self.verifier_service.url}/.well-known/jwks.json",
            "jwks_ca_file": str(self.verifier_service.ca),
        }
        return {"results": results, "kubernetes": {"kubeconfig": str(account)}}

    def _served(self, port: int) -> dict[str, Any]:
        tls = {"certificate": str(self.certificate.certificate), "key": str(self.certificate.key)}
        return {"listen": {"host": "127.0.0.1", "port": port}, "tls": tls}

    def controller(self) -> Service:
        port = free_port()
        verifier = {
            "url": self.verifier_service.url,
            "ca_file": str(self.verifier_service.ca),
            "token_file": str(self.verifier_service.token_file("machine")),
        }
        fields = {**self._common("controller"), "verifier": verifier, "health": {"host": "127.0.0.1", "port": port}}
        config = self._config("controller", fields)
        return Service("controller", config, self.programs, f"http://127.0.0.1:{port}", self.authority.ca, "/healthz")

    def webhook(self, link: Relay) -> Service:
        port = free_port()
        state = {"state_file": str(self.folder / "webhook-state.db")}
        config = self._config("webhook", {**self._common("webhook", link.url), **self._served(port), **state})
        return Service("webhook", config, self.programs, f"https://127.0.0.1:{port}", self.authority.ca)

    def broker(self) -> Service:
        port, store, key = free_port(), self.folder / "secrets.sealed", self.folder / "secrets.key"
        paths = ("--store", str(store), "--key", str(key), "--from-file", "-")
        nodewarden("admission", "secrets", "put", SECRET, *paths, content=SECRET_VALUE)
        fields = {
            **self._common("broker"),
            **self._served(port),
            "state_file": str(self.folder / "broker-state.db"),
            "secrets": {"store": str(store), "key": str(key)},
        }
        config = self._config("broker", fields)
        return Service("broker", config, self.programs, f"https://127.0.0.1:{port}", self.authority.ca)


def by_address(manifest: dict[str, Any], url: str, ca: bytes) -> dict[str, Any]:
    """The webhook configuration with an address on loopback, whose certificate `ca` (PEM) signed, in place of the
    Service."""
    bundle = base64.b64encode(ca).decode()
    webhooks = []
    for webhook in manifest["webhooks"]:
        path = webhook["clientConfig"]["service"]["path"]
        webhooks.append({**webhook, "clientConfig": {"url": url + path, "caBundle": bundle}})
    return {**manifest, "webhooks": webhooks}
