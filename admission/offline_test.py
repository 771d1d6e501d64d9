"""`nodewarden test`: every pod of some manifests against every node of some verdicts, without a cluster, for CI.

Verdicts are unsigned on purpose: they say "suppose that this node had this result". The decision code is the cluster's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from admission.cluster_objects import Node, NodeUid, Pod, PodUid, Reader, parse_pod
from admission.cluster_view import Snapshot
from admission.decision import Allow, BindingRequest, Deny, decide_binding, decide_pod_create
from admission.manifest_objects import ManifestObjects
from admission.manifests import load_manifests, snapshot_of
from admission.pod_rules import govern
from edges.setting_files import read_document, validated
from edges.yaml_documents import MAX_FILE_BYTES
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure, MalformedEvidence
from verifier.wire.messages import NodeName
from verifier.wire.result import AttestationResult, BaselineRef, Submodule, Verdict

_SUPPOSED = "supposed"
_TEMPLATES: Mapping[str, tuple[str, ...]] = {
    "Deployment": ("spec", "template"),
    "ReplicaSet": ("spec", "template"),
    "StatefulSet": ("spec", "template"),
    "DaemonSet": ("spec", "template"),
    "Job": ("spec", "template"),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
    "ReplicationController": ("spec", "template"),
    "PodTemplate": ("template",),
}
"""Where built-in kinds keep the pods that they will make."""
_CONTAINER_FIELDS = frozenset({"containers", "initContainers", "ephemeralContainers", "container"})


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


class _Baseline(_Strict):
    name: Annotated[str, Field(min_length=1)]
    version: Annotated[str, Field(min_length=1)]


class _NodeVerdict(_Strict):
    """One supposed node. `age_seconds` since its last attestation; `remaining_seconds` until the result ends."""

    name: NodeName
    uid: Annotated[str, Field(min_length=1, max_length=128)] = _SUPPOSED
    verdict: Literal["affirming", "warning", "contraindicated", "none"]
    baseline: _Baseline | None = None
    age_seconds: Annotated[int, Field(ge=0)] = 30
    remaining_seconds: int = 240
    rebooted: bool = False
    """Whether it rebooted after it was attested."""
    reasons: list[str] = []


class _Verdicts(_Strict):
    nodes: Annotated[list[_NodeVerdict], Field(min_length=1, max_length=10_000)]


@dataclass(frozen=True, slots=True)
class PodReport:
    """What happens to one pod: denied outright, or where it may run and why not elsewhere."""

    pod: str
    sensitive: bool
    policies: tuple[str, ...]
    denied: tuple[Failure, ...]
    warnings: tuple[Failure, ...]
    nodes: tuple[str, ...]
    refused: Mapping[str, tuple[Failure, ...]]

    @property
    def ok(self) -> bool:
        return not self.denied and bool(self.nodes)

    def as_json(self) -> dict[str, Any]:
        return {
            "pod": self.pod,
            "sensitive": self.sensitive,
            "ok": self.ok,
            "policies": list(self.policies),
            "denied": [failure.as_json() for failure in self.denied],
            "warnings": [failure.as_json() for failure in self.warnings],
            "nodes": list(self.nodes),
            "refused": {node: [f.as_json() for f in failures] for node, failures in self.refused.items()},
        }


def run_offline_test(manifests: list[Path], verdicts: Path, now: int) -> tuple[PodReport, ...]:
    """A report for each pod and pod template in `manifests`, sorted as they were read.

    Raises MalformedEvidence `manifest-invalid` (also without any pod or any SensitiveWorkload: testing nothing must not
    pass; and for a kind that makes pods in a way that is not known here), Unavailable `file-unreadable`.
    """
    objects = load_manifests(manifests)
    pods = _pods_of(objects)
    if not pods:
        raise MalformedEvidence(ReasonCode.MANIFEST_INVALID, "manifests", "no pod", "at least one pod or pod template")
    if not objects.workloads:
        # Nothing is sensitive then, and each pod would pass: far more often a file that was left out.
        wanted = "at least one SensitiveWorkload: give the cluster's own with another -f"
        raise MalformedEvidence(ReasonCode.MANIFEST_INVALID, "manifests", "no SensitiveWorkload", wanted)
    objects.pods = dict(pods)
    objects.nodes, results = _supposed(verdicts, now)
    state = snapshot_of(objects, results)
    return tuple(_report(state, pod, now) for pod in pods.values())


def _report(state: Snapshot, pod: Pod, now: int) -> PodReport:
    governance = govern(state, pod, now)
    policies = () if governance is None else tuple(applied.policy.name for applied in governance.policies)
    created = decide_pod_create(state, pod, now)
    denied = created.failures if isinstance(created, Deny) else ()
    warnings = list(created.warnings) if isinstance(created, Allow) else []
    nodes: list[str] = []
    refused: dict[str, tuple[Failure, ...]] = {}
    for name in (pod.node_name,) if pod.node_name else tuple(state.nodes):
        bound = decide_binding(state, BindingRequest(pod.namespace, pod.name, pod.uid, name), now)
        if isinstance(bound, Deny):
            refused[name] = bound.failures
        else:
            nodes.append(name)
            warnings += bound.warnings
    place = f"{pod.namespace}/{pod.name}"
    return PodReport(
        place, governance is not None, policies, denied, tuple(dict.fromkeys(warnings)), tuple(nodes), refused
    )


def _pods_of(objects: ManifestObjects) -> dict[tuple[str, str], Pod]:
    pods: dict[tuple[str, str], Pod] = {}
    for key, pod in objects.pods.items():
        if isinstance(pod, Failure):
            raise MalformedEvidence(pod.code, pod.claim, pod.observed, pod.expected)
        pods[key] = pod
    for document in objects.others:
        kind = str(document.get("kind"))
        reader = Reader(ReasonCode.MANIFEST_INVALID, kind)
        metadata = reader.object(document, "metadata")
        if kind not in _TEMPLATES:
            place = _containers_in(document, f"{kind} {metadata.get('name')}")
            if place is not None:
                # What it runs may be sensitive; to leave it out would be to say that it passed.
                wanted = "pods in Kubernetes' own kinds; test what this one makes, or leave it out"
                raise MalformedEvidence(ReasonCode.MANIFEST_INVALID, place, "containers in another kind", wanted)
            continue
        template: Mapping[str, Any] = document
        for step in _TEMPLATES[kind]:
            template = reader.object(template, step)
        namespace = reader.text(metadata, "namespace") or "default"
        name = f"{kind.lower()}/{reader.required_text(metadata, 'name')}"
        if (namespace, name) in pods:
            raise reader.fault("metadata.name", f"{namespace}/{name} a second time", "each object once")
        pods[(namespace, name)] = replace(parse_pod(template, namespace, reader), name=name)
    # Pods of manifests have no UID yet; bindings are tried against the one that they would get.
    return {key: replace(pod, uid=PodUid(_SUPPOSED)) for key, pod in pods.items()}


def _containers_in(value: Any, place: str) -> str | None:
    """Where in `value` something looks like the containers of a pod; None when nothing does."""
    if isinstance(value, list):
        return next((found for n, part in enumerate(value) if (found := _containers_in(part, f"{place}[{n}]"))), None)
    if not isinstance(value, dict):
        return None
    for name, part in value.items():
        candidates = part if isinstance(part, list) else [part]
        if name in _CONTAINER_FIELDS and any(isinstance(c, dict) and "image" in c for c in candidates):
            return f"{place}.{name}"
        found = _containers_in(part, f"{place}.{name}")
        if found is not None:
            return found
    return None


def _supposed(path: Path, now: int) -> tuple[dict[str, Node], dict[str, AttestationResult | Failure]]:
    invalid = ReasonCode.MANIFEST_INVALID
    verdicts = validated(_Verdicts, read_document(path, MAX_FILE_BYTES, invalid), str(path), invalid)
    nodes: dict[str, Node] = {}
    results: dict[str, AttestationResult | Failure] = {}
    for verdict in verdicts.nodes:
        if verdict.name in nodes:
            raise MalformedEvidence(ReasonCode.MANIFEST_INVALID, str(path), f"{verdict.name} twice", "each node once")
        boot = "another" if verdict.rebooted else _SUPPOSED
        nodes[verdict.name] = Node(verdict.name, NodeUid(verdict.uid), boot, deleting=False)
        results[verdict.name] = _result_of(verdict, now)
    return nodes, results


def _result_of(verdict: _NodeVerdict, now: int) -> AttestationResult:
    tier = Verdict(verdict.verdict)
    baseline = verdict.baseline
    return AttestationResult(
        issuer=_SUPPOSED,
        audience=_SUPPOSED,
        issued_at=now - verdict.age_seconds,
        expires_at=now + verdict.remaining_seconds,
        sequence=1,
        verdict=tier,
        submodules={"boot": Submodule(tier, {"executables": 3})},
        node_id=_SUPPOSED,
        node_name=verdict.name,
        kubernetes_node_uid=verdict.uid,
        boot_id=_SUPPOSED,
        linux_boot_id=_SUPPOSED,
        cohort=_SUPPOSED,
        tenant=_SUPPOSED,
        baseline=None if baseline is None else BaselineRef(baseline.name, baseline.version, ""),
        policy_stale=False,
        evidence_sha256=None,
        binding_key=None,
        ak_public=None,
        reasons=tuple({"code": code} for code in verdict.reasons),
    )
