"""Runs `nodewarden admission controller` as its ServiceAccount, and asks the API server what it did."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from admission.trust_objects import VERIFIED_LABEL_PREFIX
from tests.admission.world import AUDIENCE, ISSUER
from tests.e2e.client import Client
from tests.e2e.control_plane import ControlPlane, fake_node
from tests.e2e.pods import pods_path
from tests.e2e.programs import Program, wait_until
from tests.e2e.verifier_stream import VerifierStream

OURS = "/apis/nodewarden.dev/v1alpha1"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/nodewarden-system/leases"
POLICY = "h200-prod"
VERIFIED = VERIFIED_LABEL_PREFIX + "verified"
HOLDS = VERIFIED_LABEL_PREFIX + POLICY
IMAGE = "registry.example/llm@sha256:" + "a" * 64
BOOT = "11111111-2222-4333-8444-555555555555"


@dataclass
class Controllers:
    """Controllers of one test, and the cluster that they work on."""

    plane: ControlPlane
    stream: VerifierStream
    folder: Path
    admin: Client
    """Who breaks the glass: tests write what only attackers would."""
    running: list[Program] = field(default_factory=list)

    def start(self, name: str = "controller", **settings: Any) -> Program:
        """A controller process named `name`, which may or may not lead."""
        kubeconfig = self.plane.service_account_kubeconfig("nodewarden-system", "nodewarden-controller")
        config = self.folder / f"{name}.yaml"
        content = {
            "verifier": {
                "url": self.stream.url,
                "ca_file": str(self.stream.ca),
                "token_file": str(self.stream.token_file),
            },
            "results": {
                "issuer": ISSUER,
                "audience": AUDIENCE,
                "jwks_file": str(self.stream.jwks_file(self.folder)),
            },
            "kubernetes": {"kubeconfig": str(kubeconfig)},
            "identity": name,
            **settings,
        }
        config.write_text(json.dumps(content))
        program = Path(sys.executable).with_name("nodewarden")
        started = self.plane.programs.start(
            program, "admission", "controller", "--config", str(config), name=f"{name}-{uuid4().hex[:4]}"
        )
        self.running.append(started)
        return started

    def stop_all(self) -> None:
        for program in self.running:
            program.stop()
            self.plane.programs.running.remove(program)
        self.running.clear()

    def node(self, name: str, **metadata: Any) -> dict[str, Any]:
        """A new fake Node whose kubelet states the boot that results attest."""
        made = fake_node(name, BOOT)
        made["metadata"] |= metadata
        self.admin.must_create("/api/v1/nodes", made)
        wait_until(f"{name} is Ready", lambda: _ready(self.get_node(name)), 30)
        return self.get_node(name)

    def get_node(self, name: str) -> dict[str, Any]:
        node: dict[str, Any] = self.admin.must_get(f"/api/v1/nodes/{name}")
        return node

    def labels(self, name: str) -> set[str]:
        """Our labels on the node."""
        labels = self.get_node(name)["metadata"].get("labels", {})
        return {key for key, value in labels.items() if key.startswith(VERIFIED_LABEL_PREFIX) and value == "true"}

    def attestation(self, name: str) -> dict[str, Any]:
        """The status of the NodeAttestation, empty where there is none."""
        answer = self.admin.get(f"{OURS}/nodeattestations/{name}")
        status: dict[str, Any] = answer.body.get("status", {}) if answer.accepted else {}
        return status

    def wait_labelled(self, name: str, seconds: float = 20) -> float:
        """Returns after how many seconds the node carried the policy's label."""
        return until(f"{name} is labelled", lambda: {VERIFIED, HOLDS} <= self.labels(name), seconds)

    def wait_unlabelled(self, name: str, seconds: float = 20) -> float:
        return until(f"{name} is not labelled", lambda: not self.labels(name), seconds)

    def renewed(self, lease: str = "nodewarden-results") -> str:
        """When the Lease was last renewed, as it says; empty while there is none."""
        answer = self.admin.get(f"{LEASES}/{lease}")
        return str(answer.body["spec"]["renewTime"]) if answer.accepted else ""

    def policy(self, name: str = POLICY, **spec: Any) -> None:
        content = {"baselines": [{"name": "h200-prod", "floor": "4.1.0"}], "minRemainingValidity": "1s", **spec}
        self.admin.must_apply(
            f"{OURS}/nodetrustpolicies/{name}",
            {
                "apiVersion": "nodewarden.dev/v1alpha1",
                "kind": "NodeTrustPolicy",
                "metadata": {"name": name},
                "spec": content,
            },
        )

    def workload(self, namespace: str, name: str = "llm") -> None:
        self.admin.must_apply(
            f"{OURS}/sensitiveworkloads/{name}",
            {
                "apiVersion": "nodewarden.dev/v1alpha1",
                "kind": "SensitiveWorkload",
                "metadata": {"name": name},
                "spec": {
                    "subjects": [{"namespace": namespace, "serviceAccount": "default"}],
                    "policyRef": POLICY,
                    "images": [IMAGE],
                },
            },
        )

    def pod_on(self, namespace: str, name: str, node: str, **spec: Any) -> dict[str, Any]:
        """A running pod of the sensitive image, put onto the node."""
        container = {"name": "main", "image": IMAGE}
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": {"app": name}},
            "spec": {
                "containers": [container],
                "nodeName": node,
                "terminationGracePeriodSeconds": 1,
                "tolerations": [{"key": "example.org/none", "operator": "Exists"}],
                **spec,
            },
        }
        self.admin.must_create(pods_path(namespace), body)
        path = pods_path(namespace, name)
        wait_until(f"{name} runs", lambda: self.admin.must_get(path)["status"].get("phase") == "Running", 30)
        pod: dict[str, Any] = self.admin.must_get(path)
        return pod

    def ending(self, namespace: str, name: str) -> bool:
        """Whether the pod is gone or going."""
        answer = self.admin.get(pods_path(namespace, name))
        return answer.status == 404 or "deletionTimestamp" in answer.body["metadata"]


def until(what: str, condition: Callable[[], bool], seconds: float = 20) -> float:
    """Waits as `wait_until` does, looking every 10 ms, and returns how long it took."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > seconds:
            wait_until(what, condition, 0)
        time.sleep(0.01)
    return time.monotonic() - began


def _ready(node: dict[str, Any]) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"].get("conditions", []))


@contextmanager
def controllers(plane: ControlPlane, stream: VerifierStream, folder: Path) -> Iterator[Controllers]:
    """Controllers that end with the block; the Leases go, so that the next test need not wait for them."""
    with plane.as_user("e2e-admin", "system:masters", "nodewarden:break-glass") as admin:
        made = Controllers(plane, stream, folder, admin)
        try:
            yield made
        finally:
            made.stop_all()
            for lease in ("nodewarden-controller", "nodewarden-results"):
                admin.delete(f"{LEASES}/{lease}")
