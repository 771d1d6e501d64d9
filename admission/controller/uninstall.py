"""Takes everything off a cluster that would outlive Nodewarden or stand in the way without it.

Guards first, since they would refuse the rest; then the webhooks, so that nothing waits for a server that is gone;
then gates, node labels and taints, finalizers, reports. Deployments, kinds and their objects go by whatever installed
them. Does not evict anybody: pods run on, without anyone who looks at where.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from admission.controller.policy_reports import GROUP, PAGE_REPORTS, REPORTS
from admission.controller.policy_results import is_ours
from admission.controller.view import OURS
from admission.kube import JSON_PATCH, MERGE_PATCH, KubeClient, KubeDenied, KubeNotFound
from admission.trust_objects import (
    ATTESTATION_GATE,
    ENFORCED_NAMESPACE_LABEL,
    UNVERIFIED_TAINT,
    VERIFIED_LABEL_PREFIX,
)

REGISTRATION = "/apis/admissionregistration.k8s.io/v1"
NAME = "nodewarden"
RETRY_SECONDS = 20.0
"""A deleted guard is enforced until the API server's caches have heard of it."""
_KINDS = ("nodeattestations", "nodetrustpolicies", "secretreleases", "sensitiveworkloads", "verifiednodesets")
_REGISTERED = (
    "validatingadmissionpolicybindings",
    "validatingadmissionpolicies",
    "validatingwebhookconfigurations",
    "mutatingwebhookconfigurations",
)


@dataclass(frozen=True, slots=True)
class Removed:
    """One thing that was taken away: its kind, and where it was."""

    what: str
    where: str


def uninstall(client: KubeClient) -> Iterator[Removed]:
    """Removes, and tells what, as it goes; running it again is harmless. Raises as `KubeClient.request`."""
    for plural in _REGISTERED:
        yield from _registered(client, plural)
    yield from _gates(client)
    yield from _node_marks(client)
    yield from _namespace_labels(client)
    yield from _finalizers(client)
    yield from _policy_reports(client)


def _registered(client: KubeClient, plural: str) -> Iterator[Removed]:
    for item in _all(client, f"{REGISTRATION}/{plural}"):
        name = str(item["metadata"]["name"])
        if name == NAME or name.startswith(f"{NAME}-"):
            path = f"{REGISTRATION}/{plural}/{name}"
            _until_guards_are_gone(partial(client.request, "DELETE", path))
            yield Removed(plural, name)


def _gates(client: KubeClient) -> Iterator[Removed]:
    for item in _all(client, "/api/v1/pods"):
        metadata = item["metadata"]
        names = [gate.get("name") for gate in item["spec"].get("schedulingGates") or []]
        if ATTESTATION_GATE in names:
            where = f"/spec/schedulingGates/{names.index(ATTESTATION_GATE)}"
            operations = [
                {"op": "test", "path": f"{where}/name", "value": ATTESTATION_GATE},
                {"op": "remove", "path": where},
            ]
            path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
            _patch(client, path, operations, JSON_PATCH)
            yield Removed("gate", f"{metadata['namespace']}/{metadata['name']}")


def _node_marks(client: KubeClient) -> Iterator[Removed]:
    for item in _all(client, "/api/v1/nodes"):
        metadata = item["metadata"]
        ours = [key for key in metadata.get("labels") or {} if key.startswith(VERIFIED_LABEL_PREFIX)]
        taints = item["spec"].get("taints") or []
        others = [taint for taint in taints if taint.get("key") != UNVERIFIED_TAINT]
        patch: dict[str, Any] = {}
        if ours:
            patch["metadata"] = {"labels": dict.fromkeys(ours)}
        if others != taints:
            patch["spec"] = {"taints": others or None}
            patch.setdefault("metadata", {})["resourceVersion"] = metadata["resourceVersion"]
        if patch:
            _patch(client, f"/api/v1/nodes/{metadata['name']}", patch, MERGE_PATCH)
            what = "label and taint" if ours and "spec" in patch else "label" if ours else "taint"
            yield Removed(f"node {what}", str(metadata["name"]))


def _namespace_labels(client: KubeClient) -> Iterator[Removed]:
    for item in _all(client, "/api/v1/namespaces"):
        if ENFORCED_NAMESPACE_LABEL in (item["metadata"].get("labels") or {}):
            name = item["metadata"]["name"]
            patch = {"metadata": {"labels": {ENFORCED_NAMESPACE_LABEL: None}}}
            _patch(client, f"/api/v1/namespaces/{name}", patch, MERGE_PATCH)
            yield Removed("namespace label", str(name))


def _finalizers(client: KubeClient) -> Iterator[Removed]:
    for plural in _KINDS:
        for item in _all(client, f"{OURS}/{plural}"):
            metadata = item["metadata"]
            if metadata.get("finalizers"):
                path = f"{OURS}/{plural}/{metadata['name']}"
                _patch(client, path, {"metadata": {"finalizers": None}}, MERGE_PATCH)
                yield Removed("finalizer", f"{plural}/{metadata['name']}")


def _policy_reports(client: KubeClient) -> Iterator[Removed]:
    for item in _all(client, REPORTS, limit=PAGE_REPORTS):
        if is_ours(item):
            metadata = item["metadata"]
            path = f"{GROUP}/namespaces/{metadata['namespace']}/policyreports/{metadata['name']}"
            body = {"preconditions": {"uid": metadata["uid"]}}
            _until_guards_are_gone(partial(client.request, "DELETE", path, body))
            yield Removed("policy report", str(metadata["namespace"]))


def _all(client: KubeClient, path: str, **parameters: str) -> list[Mapping[str, Any]]:
    try:
        return [item for page in client.list_pages(path, **parameters) for item in page["items"]]
    except KubeNotFound:
        return []  # the kind is not there, or not any more


def _patch(client: KubeClient, path: str, body: object, content_type: str) -> None:
    _until_guards_are_gone(partial(client.request, "PATCH", path, body, content_type=content_type))


def _until_guards_are_gone(write: Callable[[], object]) -> None:
    until = time.monotonic() + RETRY_SECONDS
    while True:
        try:
            write()
        except KubeNotFound:
            return
        except KubeDenied:
            if time.monotonic() > until:
                raise
            time.sleep(0.5)
        else:
            return
