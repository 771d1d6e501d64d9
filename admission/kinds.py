"""Our own kinds of group `nodewarden.dev/v1alpha1`, read strictly: an unknown or empty field is a fault.

Only what this version enforces can be written: a field that is accepted and then ignored is a promise that nobody
keeps. A status is not read, except of a NodeAttestation the result that it carries, and what speaks against its node.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from admission.trust_objects import (
    HOST_ACCESS,
    LABELLED,
    UNGOVERNED_NAMESPACES,
    Access,
    EnforcementAction,
    Exemption,
    NodeAttestation,
    NodeTrustPolicy,
    OnLoss,
    SecretGrant,
    SensitiveWorkload,
    StricterRule,
    image_reference,
)
from admission.versions import parse_version
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence
from verifier.wire.messages import NodeName
from verifier.wire.release import SecretName
from verifier.wire.result import Verdict

API_VERSION = "nodewarden.dev/v1alpha1"
MAX_EVIDENCE_AGE_SECONDS = 600
"""A result lives at most ten minutes, so a longer age would promise what no result can hold."""
MAX_SHOWN_CHARACTERS = 256
MAX_SECRET_TTL_SECONDS = 24 * 3600
MAX_SILENCE_SECONDS = 24 * 3600
"""The longest `maxUnverified`: a verifier that is silent for a day is no outage, it is no verifier."""

_DURATION = re.compile(r"\A([1-9][0-9]{0,6})([smh])\Z")
_UNITS = {"s": 1, "m": 60, "h": 3600}


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", alias_generator=to_camel)


def _seconds(text: str) -> str:
    if _DURATION.match(text) is None:
        raise ValueError("a duration such as 90s, 5m or 1h")
    return text


def _version_text(text: str) -> str:
    if parse_version(text) is None:
        raise ValueError("a version MAJOR.MINOR.PATCH")
    return text


def _instant(text: str) -> str:
    # Attack: a time without zone means what the reader's machine says.
    if datetime.fromisoformat(text).tzinfo is None:
        raise ValueError("a time with zone, such as 2026-12-31T00:00:00Z")
    return text


def _pinned_image(text: str) -> str:
    if image_reference(text) != text:
        raise ValueError("an image by digest without a tag: repository@sha256:...")
    return text


_DNS_LABEL = r"\A[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\z"
DnsLabel = Annotated[str, Field(pattern=_DNS_LABEL)]
Duration = Annotated[str, AfterValidator(_seconds)]
Instant = Annotated[str, AfterValidator(_instant)]
PinnedImage = Annotated[str, Field(max_length=1024), AfterValidator(_pinned_image)]
FileName = Annotated[str, Field(pattern=r"\A[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}\z")]
"""One path component, so that no secret is written outside its directory."""


class _BaselineSpec(_Strict):
    name: DnsLabel
    floor: Annotated[str, AfterValidator(_version_text)]


class _ExemptionSpec(_Strict):
    namespace: DnsLabel
    service_account: NodeName
    reason: Annotated[str, Field(min_length=1, max_length=256)]
    expires: Instant


class _OnLossSpec(_Strict):
    action: Literal["Evict", "None"] = "Evict"
    grace_period: Duration = "30s"
    fallback: Literal["Delete", "None"] = "Delete"
    max_unverified: Duration = "30m"
    taint: bool = False


class _PolicySpec(_Strict):
    enforcement_action: EnforcementAction = "deny"
    accept: Annotated[list[Literal["affirming", "warning"]], Field(min_length=1, max_length=2)] = ["affirming"]
    baselines: Annotated[list[_BaselineSpec], Field(min_length=1, max_length=64)]
    max_evidence_age: Duration = "5m"
    min_remaining_validity: Duration = "60s"
    on_loss: _OnLossSpec = _OnLossSpec()
    exemptions: Annotated[list[_ExemptionSpec], Field(max_length=256)] = []


class _SubjectSpec(_Strict):
    namespace: DnsLabel
    service_account: NodeName


class _SelectorSpec(_Strict):
    match_labels: Annotated[dict[str, str], Field(min_length=1, max_length=32)]


class _StricterSpec(_Strict):
    selector: _SelectorSpec
    policy_ref: DnsLabel


class _SecretSpec(_Strict):
    name: SecretName
    path: FileName | None = None
    ttl: Duration = "15m"


AccessRule = Literal["Allow", "Deny"]


class _AccessSpec(_Strict):
    exec: AccessRule = "Deny"
    port_forward: AccessRule = "Deny"
    ephemeral_containers: AccessRule = "Deny"


class _WorkloadSpec(_Strict):
    subjects: Annotated[list[_SubjectSpec], Field(min_length=1, max_length=1024)]
    policy_ref: DnsLabel
    stricter: Annotated[list[_StricterSpec], Field(max_length=64)] = []
    images: Annotated[list[PinnedImage], Field(min_length=1, max_length=1024)]
    secrets: Annotated[list[_SecretSpec], Field(max_length=128)] = []
    access: _AccessSpec = _AccessSpec()


class _AttestationSpec(_Strict):
    node_name: NodeName
    node_uid: Annotated[str, Field(alias="nodeUID", min_length=1, max_length=128)]


class _Condition(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")
    type: str
    status: str
    reason: str = ""
    message: str = ""


class _AttestationStatus(BaseModel):
    # The rest of a status is for people. Only the signed result speaks for a node; one condition can speak against it.
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")
    result: Annotated[str, Field(min_length=1, max_length=64 * 1024)]
    conditions: Annotated[list[_Condition], Field(max_length=16)] = []


class _Metadata(BaseModel):
    """Kubernetes' ObjectMeta: the API server adds to it, so that only the name is ours to check."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")
    name: DnsLabel


class _AttestationMetadata(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")
    name: NodeName


class _Policy(_Strict):
    api_version: Literal["nodewarden.dev/v1alpha1"]
    kind: Literal["NodeTrustPolicy"]
    metadata: _Metadata
    spec: _PolicySpec
    status: dict[str, Any] | None = None


class _Workload(_Strict):
    api_version: Literal["nodewarden.dev/v1alpha1"]
    kind: Literal["SensitiveWorkload"]
    metadata: _Metadata
    spec: _WorkloadSpec
    status: dict[str, Any] | None = None


class _Attestation(_Strict):
    api_version: Literal["nodewarden.dev/v1alpha1"]
    kind: Literal["NodeAttestation"]
    metadata: _AttestationMetadata
    spec: _AttestationSpec
    status: _AttestationStatus


def duration_seconds(text: str) -> int:
    """Seconds of a checked duration (`90s`, `5m`, `1h`)."""
    return int(text[:-1]) * _UNITS[text[-1]]


def _invalid(where: str, place: str, observed: str, expected: str | None = None) -> MalformedEvidence:
    return MalformedEvidence(ReasonCode.MANIFEST_INVALID, f"{where}.{place}", observed, expected)


ModelT = TypeVar("ModelT", bound=BaseModel)


def _validated(kind: type[ModelT], fields: Mapping[str, Any], where: str) -> ModelT:
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise _invalid(where, ".".join(str(part) for part in first["loc"]), first["type"], first["msg"]) from error


def parse_policy(fields: Mapping[str, Any], where: str) -> NodeTrustPolicy:
    """The policy in a NodeTrustPolicy manifest. Raises MalformedEvidence `manifest-invalid`."""
    manifest = _validated(_Policy, fields, where)
    name, spec = manifest.metadata.name, manifest.spec
    if name == "verified":
        # The label of that name says that a node is verified at all; a policy must not be able to write it.
        raise _invalid(where, "metadata.name", name, "another name: this one is reserved")
    age, remaining = duration_seconds(spec.max_evidence_age), duration_seconds(spec.min_remaining_validity)
    if age > MAX_EVIDENCE_AGE_SECONDS or remaining >= age:
        raise _invalid(
            where,
            "spec",
            f"maxEvidenceAge {age} s, minRemainingValidity {remaining} s",
            "at most 600 s; less than that",
        )
    floors: dict[str, tuple[int, int, int]] = {}
    for baseline in spec.baselines:
        floor = parse_version(baseline.floor)
        if floor is None or baseline.name in floors:
            raise _invalid(where, "spec.baselines", baseline.name, "each name once, with a floor")
        floors[baseline.name] = floor
    return NodeTrustPolicy(
        name=name,
        enforcement=spec.enforcement_action,
        accept=frozenset(Verdict(verdict) for verdict in spec.accept),
        baselines=floors,
        max_evidence_age_seconds=age,
        min_remaining_seconds=remaining,
        exemptions=tuple(
            Exemption(e.namespace, e.service_account, e.reason, int(datetime.fromisoformat(e.expires).timestamp()))
            for e in spec.exemptions
        ),
        on_loss=_on_loss(spec.on_loss, where),
    )


def _on_loss(spec: _OnLossSpec, where: str) -> OnLoss:
    silence = duration_seconds(spec.max_unverified)
    if silence > MAX_SILENCE_SECONDS:
        raise _invalid(where, "spec.onLoss.maxUnverified", spec.max_unverified, "at most 24h")
    grace = duration_seconds(spec.grace_period)
    return OnLoss(spec.action, grace, spec.fallback, silence, spec.taint)


def parse_workload(fields: Mapping[str, Any], where: str) -> SensitiveWorkload:
    """The workload in a SensitiveWorkload manifest. Raises MalformedEvidence `manifest-invalid`."""
    manifest = _validated(_Workload, fields, where)
    spec = manifest.spec
    for subject in spec.subjects:
        if subject.namespace in UNGOVERNED_NAMESPACES:
            # The webhook does not see these: the cluster, and we ourselves, must come up without it.
            raise _invalid(where, "spec.subjects", subject.namespace, "a namespace other than the system's and our own")
    grants: dict[str, SecretGrant] = {}
    for secret in spec.secrets:
        ttl = duration_seconds(secret.ttl)
        path = secret.path or secret.name.rpartition("/")[2]
        taken = path in {grant.path for grant in grants.values()}
        if secret.name in grants or taken or ttl > MAX_SECRET_TTL_SECONDS:
            raise _invalid(where, f"spec.secrets.{secret.name}", f"path {path}, ttl {ttl} s", "each once; ttl to 24 h")
        grants[secret.name] = SecretGrant(secret.name, path, ttl)
    return SensitiveWorkload(
        name=manifest.metadata.name,
        subjects=frozenset((subject.namespace, subject.service_account) for subject in spec.subjects),
        policy=spec.policy_ref,
        stricter=tuple(StricterRule(rule.selector.match_labels, rule.policy_ref) for rule in spec.stricter),
        images=frozenset(spec.images),
        secrets=grants,
        access=Access(
            exec=spec.access.exec == "Allow",
            port_forward=spec.access.port_forward == "Allow",
            ephemeral_containers=spec.access.ephemeral_containers == "Allow",
        ),
    )


def parse_attestation(fields: Mapping[str, Any], where: str) -> NodeAttestation:
    """The attestation in a NodeAttestation manifest, its result unverified. Raises `manifest-invalid`."""
    manifest = _validated(_Attestation, fields, where)
    if manifest.metadata.name != manifest.spec.node_name:
        raise _invalid(where, "metadata.name", manifest.metadata.name, f"the node's name {manifest.spec.node_name}")
    against = [
        each.message for each in manifest.status.conditions if (each.type, each.reason) == (LABELLED, HOST_ACCESS)
    ]
    host_access = against[0][:MAX_SHOWN_CHARACTERS] if against else None
    return NodeAttestation(manifest.spec.node_name, manifest.spec.node_uid, manifest.status.result, host_access)


def attestation_manifest(node_name: str, node_uid: str, result: str) -> dict[str, Any]:
    """The NodeAttestation object that carries the signed `result` of a node, as `parse_attestation` reads it."""
    return {
        "apiVersion": API_VERSION,
        "kind": "NodeAttestation",
        "metadata": {"name": node_name},
        "spec": {"nodeName": node_name, "nodeUID": node_uid},
        "status": {"result": result},
    }
