"""A Kubernetes cluster on paper: the manifests and pod tokens that the admission parts read in the demo.

The tokens have the claims of an API server's projected tokens and are signed by an issuer of our own, whose public
keys the broker gets as the cluster's JWKS. They stand in for the kubelet's; everything that judges them is the
product.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jwt
import yaml
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

ISSUER = "https://kubernetes.demo"
ATTESTER_NAMESPACE, ATTESTER_ACCOUNT = "nodewarden-attester", "attester"
NAMESPACE = "ml"
SERVICE_ACCOUNT = "llm"
SERVICE_ACCOUNT_UID = "5a000000-0000-4000-8000-000000000001"
POLICY = "demo"
WORKLOAD = "llm"
SECRET = "model-key"  # noqa: S105 - the secret's name
IMAGE = "registry.example/llm@sha256:" + "ab" * 32


@dataclass(frozen=True, slots=True)
class DemoNode:
    """A Node object: the boot id is what the kubelet reports of the machine's kernel."""

    name: str
    uid: str
    linux_boot_id: str


@dataclass(frozen=True, slots=True)
class DemoPod:
    """A Pod of the sensitive workload; `node` is empty until it is bound."""

    name: str
    uid: str
    node: str = ""

    def manifest(self) -> dict[str, Any]:
        """The Pod object as the API server would send it."""
        spec: dict[str, Any] = {
            "serviceAccountName": SERVICE_ACCOUNT,
            "containers": [{"name": "server", "image": IMAGE}],
        }
        if self.node:
            spec["nodeName"] = self.node
        metadata = {"name": self.name, "namespace": NAMESPACE, "uid": self.uid, "labels": {}}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}


class DemoCluster:
    """The cluster's state as a directory of manifests, rewritten atomically as it changes."""

    def __init__(self, directory: Path) -> None:
        self.manifests = directory / "manifests"
        self.manifests.mkdir(parents=True)
        self.jwks_file = directory / "cluster-jwks.json"
        self._key = ec.generate_private_key(ec.SECP256R1())
        public: dict[str, Any] = json.loads(ECAlgorithm.to_jwk(self._key.public_key()))
        self.jwks_file.write_text(json.dumps({"keys": [public | {"kid": "demo", "alg": "ES256", "use": "sig"}]}))
        self.jwks_file.chmod(0o600)
        self._write("policy", [_policy(), _workload(), *_namespace()])

    def put_node(self, node: DemoNode) -> None:
        """The Node exists with this boot id."""
        info = {"bootID": node.linux_boot_id}
        metadata = {"name": node.name, "uid": node.uid, "labels": {}}
        self._write(f"node-{node.name}", [
            {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {}, "status": {"nodeInfo": info}}
        ])  # fmt: skip

    def put_pod(self, pod: DemoPod) -> None:
        """The Pod exists, bound where it says."""
        self._write(f"pod-{pod.name}", [pod.manifest()])

    def put_attestation(self, manifest: Mapping[str, Any]) -> None:
        """The NodeAttestation, as the controller would write it from the verifier's results."""
        self._write(f"attestation-{manifest['metadata']['name']}", [dict(manifest)])

    def pod_token(self, pod: DemoPod, node: DemoNode, now: int) -> str:
        """A projected token of the sensitive pod `pod` on `node` for the broker."""
        return self._token("nodewarden-broker", NAMESPACE, SERVICE_ACCOUNT, (pod.name, pod.uid), node, now)

    def attester_token(self, node: DemoNode, now: int) -> str:
        """A projected token of the attester's own pod on `node` for the verifier."""
        pod = (f"attester-{node.name}", node.uid[::-1])
        return self._token("nodewarden-attester", ATTESTER_NAMESPACE, ATTESTER_ACCOUNT, pod, node, now)

    def _token(
        self, audience: str, namespace: str, account: str, pod: tuple[str, str], node: DemoNode, now: int
    ) -> str:
        kubernetes = {
            "namespace": namespace,
            "serviceaccount": {"name": account, "uid": SERVICE_ACCOUNT_UID},
            "pod": {"name": pod[0], "uid": pod[1]},
            "node": {"name": node.name, "uid": node.uid},
        }
        claims = {
            "iss": ISSUER,
            "sub": f"system:serviceaccount:{namespace}:{account}",
            "aud": [audience],
            "iat": now,
            "nbf": now,
            "exp": now + 600,
            "jti": secrets.token_hex(16),
            "kubernetes.io": kubernetes,
        }
        return jwt.encode(claims, self._key, algorithm="ES256", headers={"kid": "demo"})

    def _write(self, name: str, objects: list[dict[str, Any]]) -> None:
        partial = self.manifests / f".{name}.partial"
        partial.write_text(yaml.safe_dump_all(objects, sort_keys=False))
        partial.replace(self.manifests / f"{name}.yaml")


def _policy() -> dict[str, Any]:
    spec = {
        "enforcementAction": "deny",
        "accept": ["affirming"],
        "baselines": [{"name": "demo-node", "floor": "1.0.0"}],
        "maxEvidenceAge": "5m",
        "minRemainingValidity": "60s",
    }
    return _ours("NodeTrustPolicy", POLICY, spec)


def _workload() -> dict[str, Any]:
    spec = {
        "subjects": [{"namespace": NAMESPACE, "serviceAccount": SERVICE_ACCOUNT}],
        "policyRef": POLICY,
        "images": [IMAGE],
        "secrets": [{"name": SECRET, "path": "model.key", "ttl": "2m"}],
    }
    return _ours("SensitiveWorkload", WORKLOAD, spec)


def _namespace() -> tuple[dict[str, Any], ...]:
    account = {"name": SERVICE_ACCOUNT, "namespace": NAMESPACE, "uid": SERVICE_ACCOUNT_UID}
    return (
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": {}}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account},
    )


def _ours(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "nodewarden.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}
