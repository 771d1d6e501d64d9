"""What admission knows of Kubernetes' own objects: the few fields that decisions read, without the rest.

Fields that Kubernetes may add are ignored; those read here must have their documented type. Nothing is believed: a
pod's text is its author's, and a node's status is its kubelet's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NewType

from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence

PodUid = NewType("PodUid", str)
NodeUid = NewType("NodeUid", str)

MAX_ENTRIES = 65_536
"""Longest list that is read. An object in etcd has at most 1.5 MiB, so that no stored pod has a longer one."""

ImageRole = Literal["container", "init", "ephemeral", "volume"]


@dataclass(frozen=True, slots=True)
class PodImage:
    """One image that a pod runs or mounts, and by what."""

    role: ImageRole
    name: str
    image: str


@dataclass(frozen=True, slots=True)
class Toleration:
    """One toleration; an empty `key` stands for every taint."""

    key: str
    operator: str
    effect: str


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod. `uid` and `node_name` are empty before the API server stores, and the scheduler places, it."""

    namespace: str
    name: str
    uid: PodUid
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    service_account: str
    node_name: str
    images: tuple[PodImage, ...]
    tolerations: tuple[Toleration, ...]
    deleting: bool
    ended: bool
    """Its containers are over (phase Succeeded or Failed)."""
    gates: tuple[str, ...] = ()
    """Its scheduling gates: while there is one, it is not scheduled."""


@dataclass(frozen=True, slots=True)
class Node:
    """A Node object; `claimed_boot_id` is what its kubelet says of /proc/sys/kernel/random/boot_id."""

    name: str
    uid: NodeUid
    claimed_boot_id: str
    deleting: bool


@dataclass(frozen=True, slots=True)
class ServiceAccount:
    """A ServiceAccount object."""

    namespace: str
    name: str
    uid: str


class Reader:
    """Reads typed fields of one object; each fault names its place and carries the caller's code."""

    def __init__(self, code: ReasonCode, where: str) -> None:
        self._code, self._where = code, where

    def fault(self, place: str, observed: str, expected: str) -> MalformedEvidence:
        return MalformedEvidence(self._code, f"{self._where}.{place}", observed, expected)

    def object(self, parent: Mapping[str, Any], name: str) -> Mapping[str, Any]:
        value = parent.get(name)
        if type(value) is dict:
            return value
        if value is None:
            return {}
        raise self.fault(name, type(value).__name__, "an object")

    def text(self, parent: Mapping[str, Any], name: str) -> str:
        """The text field, or "" where absent: Kubernetes leaves empty text out."""
        value = parent.get(name)
        if type(value) is str:
            return value
        if value is None:
            return ""
        raise self.fault(name, type(value).__name__, "text")

    def required_text(self, parent: Mapping[str, Any], name: str) -> str:
        value = parent.get(name)
        if type(value) is str and value:
            return value
        self.text(parent, name)
        raise self.fault(name, "absent or empty", "text")

    def objects(self, parent: Mapping[str, Any], name: str, limit: int) -> list[Mapping[str, Any]]:
        value = parent.get(name)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(part, dict) for part in value):
            raise self.fault(name, type(value).__name__, "a list of objects")
        if len(value) > limit:
            raise self.fault(name, f"{len(value)} entries", f"at most {limit}")
        return value

    def texts(self, parent: Mapping[str, Any], name: str) -> Mapping[str, str]:
        value = self.object(parent, name)
        for key, text in value.items():
            if type(text) is not str:
                raise self.fault(f"{name}.{key}", type(text).__name__, "text")
        return value


_CONTAINERS: tuple[tuple[str, ImageRole], ...] = (
    ("containers", "container"),
    ("initContainers", "init"),
    ("ephemeralContainers", "ephemeral"),
)


def _images(spec: Mapping[str, Any], reader: Reader) -> tuple[PodImage, ...]:
    images = [
        PodImage(role, reader.text(part, "name"), reader.text(part, "image"))
        for field, role in _CONTAINERS
        for part in reader.objects(spec, field, MAX_ENTRIES)
    ]
    for volume in reader.objects(spec, "volumes", MAX_ENTRIES):
        if "image" in volume:
            source = reader.object(volume, "image")
            images.append(PodImage("volume", reader.text(volume, "name"), reader.text(source, "reference")))
    return tuple(images)


def parse_pod(fields: Mapping[str, Any], namespace: str, reader: Reader) -> Pod:
    """The pod in `fields` (core/v1 Pod), living in `namespace`.

    A pod without ServiceAccount has `default`, as the API server would say. Raises the reader's code when a field has
    another type, there is no container, or the object names another namespace.
    """
    metadata, spec = reader.object(fields, "metadata"), reader.object(fields, "spec")
    if reader.text(metadata, "namespace") not in ("", namespace):
        raise reader.fault("metadata.namespace", reader.text(metadata, "namespace"), namespace)
    images = _images(spec, reader)
    if not any(image.role == "container" for image in images):
        raise reader.fault("spec.containers", "empty", "at least one container")
    return Pod(
        namespace=namespace,
        name=reader.text(metadata, "name") or reader.text(metadata, "generateName"),
        uid=PodUid(reader.text(metadata, "uid")),
        labels=reader.texts(metadata, "labels"),
        annotations=reader.texts(metadata, "annotations"),
        service_account=reader.text(spec, "serviceAccountName") or reader.text(spec, "serviceAccount") or "default",
        node_name=reader.text(spec, "nodeName"),
        images=images,
        tolerations=tuple(
            Toleration(reader.text(part, "key"), reader.text(part, "operator"), reader.text(part, "effect"))
            for part in reader.objects(spec, "tolerations", MAX_ENTRIES)
        ),
        deleting=bool(reader.text(metadata, "deletionTimestamp")),
        ended=reader.text(reader.object(fields, "status"), "phase") in ("Succeeded", "Failed"),
        gates=tuple(reader.text(part, "name") for part in reader.objects(spec, "schedulingGates", MAX_ENTRIES)),
    )


def parse_node(fields: Mapping[str, Any], reader: Reader) -> Node:
    """The node in `fields` (core/v1 Node). Raises the reader's code without name or UID."""
    metadata = reader.object(fields, "metadata")
    facts = reader.object(reader.object(fields, "status"), "nodeInfo")
    return Node(
        name=reader.required_text(metadata, "name"),
        uid=NodeUid(reader.required_text(metadata, "uid")),
        claimed_boot_id=reader.text(facts, "bootID"),
        deleting=bool(reader.text(metadata, "deletionTimestamp")),
    )


def parse_service_account(fields: Mapping[str, Any], reader: Reader) -> ServiceAccount:
    """The ServiceAccount in `fields`. Raises the reader's code without namespace or name.

    One that is still to be made, as in manifests under test, has no UID; no token names an account without one.
    """
    metadata = reader.object(fields, "metadata")
    return ServiceAccount(
        reader.required_text(metadata, "namespace"),
        reader.required_text(metadata, "name"),
        reader.text(metadata, "uid"),
    )
