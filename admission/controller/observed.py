"""Nodes and pods as the controller needs them: what decisions read, and the marks and rights that it acts upon.

Nothing is believed: a pod's text is its author's, and a node's status is its kubelet's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from admission.cluster_objects import MAX_ENTRIES, Node, Pod, PodUid, Reader, parse_node, parse_pod
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence

HARMLESS_CAPABILITIES = frozenset({"NET_BIND_SERVICE"})
"""Pod Security `restricted` lets a pod add this one; every other added capability counts as reach for the host."""

_CONTAINER_FIELDS = ("containers", "initContainers", "ephemeralContainers")
_HOST_NAMESPACES = ("hostNetwork", "hostPID", "hostIPC")


@dataclass(frozen=True, slots=True)
class ObservedNode:
    """A Node with its labels, its taints (core/v1 Taint, all of them, as read) and the version they were read at."""

    node: Node
    labels: Mapping[str, str]
    taints: tuple[Mapping[str, Any], ...]
    resource_version: str


@dataclass(frozen=True, slots=True)
class Owner:
    """The object that made a pod, where it says so: Events for people go to it as well."""

    api_version: str
    kind: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class ObservedPod:
    """A pod with its reach for the host.

    `host_reach` names every way in which it could act upon its node beyond its containers; empty for ordinary pods.
    """

    pod: Pod
    host_reach: tuple[str, ...]
    owner: Owner | None


def observe_node(fields: Mapping[str, Any]) -> ObservedNode:
    """The node in `fields` (core/v1 Node). Raises MalformedEvidence `manifest-invalid`."""
    metadata = fields.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    reader = Reader(ReasonCode.MANIFEST_INVALID, f"nodes.{name}")
    facts = reader.object(fields, "metadata")
    return ObservedNode(
        node=parse_node(fields, reader),
        labels=reader.texts(facts, "labels"),
        taints=tuple(reader.objects(reader.object(fields, "spec"), "taints", MAX_ENTRIES)),
        resource_version=reader.text(facts, "resourceVersion"),
    )


def observe_pod(fields: Mapping[str, Any]) -> ObservedPod:
    """The pod in `fields` (core/v1 Pod), or, where it cannot be read, what of it keeps it from being overlooked.

    Raises MalformedEvidence `manifest-invalid` for an object that not even names itself.
    """
    try:
        return _read_pod(fields)
    except MalformedEvidence:
        # Attack: a pod of a form that we cannot read, to be no intruder and never to be ended.
        return _unreadable_pod(fields)


def _unreadable_pod(fields: Mapping[str, Any]) -> ObservedPod:
    reader = Reader(ReasonCode.MANIFEST_INVALID, "pods")
    metadata, spec = reader.object(fields, "metadata"), reader.object(fields, "spec")
    status = reader.object(fields, "status")
    account = spec.get("serviceAccountName")
    pod = Pod(
        namespace=reader.required_text(metadata, "namespace"),
        name=reader.required_text(metadata, "name"),
        uid=PodUid(reader.text(metadata, "uid")),
        labels={},
        annotations={},
        service_account=account if isinstance(account, str) and account else "default",
        node_name=reader.text(spec, "nodeName"),
        images=(),
        tolerations=(),
        deleting=bool(metadata.get("deletionTimestamp")),
        ended=status.get("phase") in ("Succeeded", "Failed"),
    )
    return ObservedPod(pod, ("of unreadable form",), owner=None)


def _read_pod(fields: Mapping[str, Any]) -> ObservedPod:
    metadata = fields.get("metadata")
    facts = metadata if isinstance(metadata, dict) else {}
    reader = Reader(ReasonCode.MANIFEST_INVALID, f"pods.{facts.get('namespace')}/{facts.get('name')}")
    spec = reader.object(fields, "spec")
    pod = parse_pod(fields, reader.required_text(facts, "namespace"), reader)
    owners = reader.objects(facts, "ownerReferences", MAX_ENTRIES)
    return ObservedPod(
        pod=pod,
        host_reach=host_reach(spec, reader),
        owner=next((_owner(owner, reader) for owner in owners if owner.get("controller") is True), None),
    )


def _owner(fields: Mapping[str, Any], reader: Reader) -> Owner:
    return Owner(
        reader.text(fields, "apiVersion"),
        reader.text(fields, "kind"),
        reader.text(fields, "name"),
        reader.text(fields, "uid"),
    )


def host_reach(spec: Mapping[str, Any], reader: Reader) -> tuple[str, ...]:
    """How a pod of this PodSpec could act upon its node: host namespaces, hostPath, privileged, capabilities.

    Root on a verified node must not be one such pod away. Whatever cannot be read as harmless counts as reach.
    """
    found = [name for name in _HOST_NAMESPACES if spec.get(name) not in (None, False)]
    found += [
        f"hostPath {reader.text(volume, 'name')}"
        for volume in reader.objects(spec, "volumes", MAX_ENTRIES)
        if volume.get("hostPath") is not None
    ]
    for field in _CONTAINER_FIELDS:
        for container in reader.objects(spec, field, MAX_ENTRIES):
            found += _container_reach(container, reader)
    return tuple(found)


def _container_reach(container: Mapping[str, Any], reader: Reader) -> list[str]:
    context, name = reader.object(container, "securityContext"), reader.text(container, "name")
    found = [] if context.get("privileged") in (None, False) else [f"privileged {name}"]
    if context.get("procMount") not in (None, "Default"):
        found.append(f"procMount {name}")
    added = reader.object(context, "capabilities").get("add") or []
    if not isinstance(added, list):
        raise reader.fault("capabilities.add", type(added).__name__, "a list")
    return found + [f"capability {added_one} {name}" for added_one in added if added_one not in HARMLESS_CAPABILITIES]
