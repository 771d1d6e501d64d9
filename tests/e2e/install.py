"""Installs the product's own manifests into the control plane, as `kubectl apply -f deploy/install.yaml` would.

Workloads of the installation are left out: their images cannot be pulled here, so that the same programs run as
processes under the same ServiceAccounts.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.e2e.client import Client
from tests.e2e.control_plane import ControlPlane
from tests.e2e.programs import wait_until

ROOT = Path(__file__).parent.parent.parent
CRDS = ROOT / "deploy/crds"
INSTALL = ROOT / "deploy/install.yaml"
NAMESPACE = "nodewarden-system"
RUN_ELSEWHERE = frozenset({"Deployment", "DaemonSet", "Job", "PodDisruptionBudget", "Service", "NetworkPolicy"})
WEBHOOKS = frozenset({"MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"})

_FIRST = ("Namespace", "CustomResourceDefinition", "ServiceAccount", "PriorityClass", "ClusterRole", "Role")


def documents(path: Path) -> Iterator[dict[str, Any]]:
    """The manifests in `path`, a file or a folder of YAML."""
    files = sorted(path.glob("*.yaml")) if path.is_dir() else [path]
    for file in files:
        for document in yaml.safe_load_all(file.read_text()):
            if document:
                yield document


def install_manifests(rendered: Path = INSTALL) -> list[dict[str, Any]]:
    """All of the installation, in an order in which each finds what it names; or of the chart with other values."""
    found = list(documents(CRDS))
    known = {(d["kind"], d["metadata"]["name"]) for d in found}
    found += [d for d in documents(rendered) if (d["kind"], d["metadata"]["name"]) not in known]
    return sorted(found, key=lambda d: _FIRST.index(d["kind"]) if d["kind"] in _FIRST else len(_FIRST))


def apply(client: Client, manifest: dict[str, Any]) -> dict[str, Any]:
    """The object as the API server has it after a server-side apply."""
    applied: dict[str, Any] = client.must_apply(object_path(client, manifest), manifest)
    return applied


def object_path(client: Client, manifest: dict[str, Any]) -> str:
    """Where the API server keeps the object; asks it which resource a kind is."""
    version, metadata = manifest["apiVersion"], manifest["metadata"]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    listed = client.must_get(root)["resources"]
    resource = next(r for r in listed if r["kind"] == manifest["kind"] and "/" not in r["name"])
    space = f"/namespaces/{metadata.get('namespace', 'default')}" if resource["namespaced"] else ""
    return f"{root}{space}/{resource['name']}/{metadata['name']}"


def install(plane: ControlPlane, rendered: Path = INSTALL) -> list[dict[str, Any]]:
    """Applies all but workloads and webhook configurations; returns the latter, for whoever knows their address."""
    webhooks = []
    for manifest in install_manifests(rendered):
        if manifest["kind"] in WEBHOOKS:
            webhooks.append(manifest)
        elif manifest["kind"] not in RUN_ELSEWHERE:
            if manifest["apiVersion"].startswith("nodewarden.dev/"):
                wait_until_served(plane.admin, manifest["apiVersion"])
            apply(plane.admin, manifest)
    wait_until_served(plane.admin, "nodewarden.dev/v1alpha1")
    return webhooks


def wait_until_served(client: Client, version: str) -> None:
    """Returns once the API server serves every kind of ours in `version`."""
    kinds = {d["spec"]["names"]["kind"] for d in documents(CRDS)}

    def served() -> bool:
        answer = client.get(f"/apis/{version}")
        return answer.accepted and kinds <= {r["kind"] for r in answer.body["resources"]}

    wait_until(f"{version} is served", served, 30)
