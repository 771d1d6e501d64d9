"""cert-manager in a control plane: its controller and cainjector as processes, each as its own chart's account.

Its webhook, which checks and completes what people write, does not run: the API server checks by the CRDs alone.
"""

from __future__ import annotations

import base64
import subprocess
import time
from dataclasses import dataclass
from typing import Any

import yaml
from cryptography import x509

from tests.e2e.client import Client
from tests.e2e.control_plane import ControlPlane
from tests.e2e.install import NAMESPACE, RUN_ELSEWHERE, WEBHOOKS, apply
from tests.e2e.programs import Programs, find_program, wait_until

GROUP = "/apis/cert-manager.io/v1"
SPACE = "cert-manager"
ISSUES_SECONDS = 30

_PARTS = {"controller": "cert-manager", "cainjector": "cert-manager-cainjector"}
_FIRST = ("CustomResourceDefinition", "ServiceAccount")


@dataclass(frozen=True)
class Issued:
    """A Certificate of our namespace, and the Secret in which cert-manager keeps what it issued."""

    admin: Client
    name: str
    secret: str

    def ready(self) -> bool:
        return self._condition("Ready")

    def _condition(self, kind: str) -> bool:
        found = self.admin.must_get(self._path).get("status", {}).get("conditions", [])
        return any(condition["type"] == kind and condition["status"] == "True" for condition in found)

    def files(self) -> dict[str, bytes]:
        """The files of the Secret; none while it is not there."""
        answer = self.admin.get(self.secret_path)
        data = answer.body.get("data", {}) if answer.accepted else {}
        return {name: base64.b64decode(text) for name, text in data.items()}

    def certificate(self) -> x509.Certificate:
        return x509.load_pem_x509_certificate(self.files()["tls.crt"])

    def renew(self) -> None:
        """There is another certificate, made because someone asked for it, as `cmctl renew` does."""
        before = self.certificate()
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        asked = {
            "type": "Issuing",
            "status": "True",
            "reason": "ManuallyTriggered",
            "message": "",
            "lastTransitionTime": at,
        }
        status = self.admin.must_get(self._path)["status"]
        status["conditions"].append(asked)
        self.admin.must_patch(f"{self._path}/status", {"status": status})
        self.wait_for_another(before)

    def lose(self) -> None:
        """There is another certificate, made because someone deleted the Secret."""
        before = self.certificate()
        assert self.admin.delete(self.secret_path).accepted
        self.wait_for_another(before)

    def wait_for_another(self, before: x509.Certificate) -> None:
        def another() -> bool:
            complete = {"tls.crt", "tls.key", "ca.crt"} <= self.files().keys()
            return complete and self.certificate() != before and self.ready() and not self._condition("Issuing")

        wait_until(f"another certificate of {self.name}", another, ISSUES_SECONDS)

    @property
    def _path(self) -> str:
        return f"{GROUP}/namespaces/{NAMESPACE}/certificates/{self.name}"

    @property
    def secret_path(self) -> str:
        return f"/api/v1/namespaces/{NAMESPACE}/secrets/{self.secret}"


def start_cert_manager(plane: ControlPlane, programs: Programs) -> None:
    """cert-manager is installed and at work; its processes end with `programs`. Raises HarnessError."""
    plane.admin.must_create("/api/v1/namespaces", {"metadata": {"name": SPACE}})
    for manifest in _manifests():
        apply(plane.admin, manifest)
    wait_until("cert-manager's kinds are served", lambda: _served(plane.admin), 30)
    for part, account in _PARTS.items():
        config = plane.service_account_kubeconfig(SPACE, account)
        programs.start(find_program("cert-manager"), part, str(config), name=f"cert-manager-{part}")


def _served(admin: Client) -> bool:
    answer = admin.get(GROUP)
    return answer.accepted and {"Certificate", "Issuer"} <= {found["kind"] for found in answer.body["resources"]}


def _manifests() -> list[dict[str, Any]]:
    """What cert-manager's chart installs, less its workloads and what would call its webhook."""
    command = [str(find_program("helm")), "template", SPACE, str(find_program("cert-manager-chart"))]
    command += ["--namespace", SPACE, "--set", "crds.enabled=true,startupapicheck.enabled=false"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    left_out = RUN_ELSEWHERE | WEBHOOKS
    found = [d for d in yaml.safe_load_all(done.stdout) if d and d["kind"] not in left_out]
    return sorted(found, key=lambda d: _FIRST.index(d["kind"]) if d["kind"] in _FIRST else len(_FIRST))
