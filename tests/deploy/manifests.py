"""Manifests of our kinds that are right, and the same with one thing wrong: for kinds.py here, for CEL in tests/e2e."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from admission.trust_objects import API_VERSION

DIGEST = "sha256:" + "a" * 64

POLICY: dict[str, Any] = {
    "apiVersion": API_VERSION,
    "kind": "NodeTrustPolicy",
    "metadata": {"name": "h200-prod"},
    "spec": {
        "enforcementAction": "deny",
        "accept": ["affirming"],
        "baselines": [{"name": "h200-prod", "floor": "4.1.0"}],
        "maxEvidenceAge": "5m",
        "minRemainingValidity": "60s",
        "onLoss": {
            "action": "Evict",
            "gracePeriod": "30s",
            "fallback": "Delete",
            "maxUnverified": "30m",
            "taint": False,
        },
        "exemptions": [
            {"namespace": "ml", "serviceAccount": "debug", "reason": "INC-1", "expires": "2026-12-31T00:00:00Z"}
        ],
    },
}
WORKLOAD: dict[str, Any] = {
    "apiVersion": API_VERSION,
    "kind": "SensitiveWorkload",
    "metadata": {"name": "llm"},
    "spec": {
        "subjects": [{"namespace": "ml", "serviceAccount": "llm"}],
        "policyRef": "h200-prod",
        "stricter": [{"selector": {"matchLabels": {"tier": "gold"}}, "policyRef": "h200-gold"}],
        "images": [f"registry.example.org:5000/llm/server@{DIGEST}"],
        "secrets": [{"name": "models/key", "path": "key.bin", "ttl": "15m"}, {"name": "other"}],
        "access": {"exec": "Deny", "portForward": "Deny", "ephemeralContainers": "Deny"},
    },
}
ATTESTATION: dict[str, Any] = {
    "apiVersion": API_VERSION,
    "kind": "NodeAttestation",
    "metadata": {"name": "gpu-1.example.org"},
    "spec": {"nodeName": "gpu-1.example.org", "nodeUID": "0f9e"},
}

PLURALS = {
    "NodeTrustPolicy": "nodetrustpolicies",
    "SensitiveWorkload": "sensitiveworkloads",
    "NodeAttestation": "nodeattestations",
    "VerifiedNodeSet": "verifiednodesets",
    "SecretRelease": "secretreleases",
}
"""The kinds and the names of their resources."""

_ABSENT = object()


@dataclass(frozen=True, slots=True)
class Case:
    """A manifest and whether it is right."""

    name: str
    manifest: dict[str, Any]
    right: bool


_RIGHT: tuple[tuple[dict[str, Any], str, object], ...] = (
    (POLICY, "spec.enforcementAction", _ABSENT),
    (POLICY, "spec.enforcementAction", "audit"),
    (POLICY, "spec.accept", ["affirming", "warning"]),
    (POLICY, "spec.accept", _ABSENT),
    (POLICY, "spec.maxEvidenceAge", _ABSENT),
    (POLICY, "spec.maxEvidenceAge", "600s"),
    (POLICY, "spec.minRemainingValidity", "299s"),
    (POLICY, "spec.onLoss", _ABSENT),
    (POLICY, "spec.onLoss.taint", True),
    (POLICY, "spec.onLoss.action", "None"),
    (POLICY, "spec.onLoss.maxUnverified", "24h"),
    (POLICY, "spec.exemptions", _ABSENT),
    (POLICY, "spec.exemptions.0.expires", "2026-12-31T00:00:00+02:00"),
    (WORKLOAD, "spec.secrets", _ABSENT),
    (WORKLOAD, "spec.stricter", _ABSENT),
    (WORKLOAD, "spec.access", _ABSENT),
    (WORKLOAD, "spec.access.exec", "Allow"),
    (WORKLOAD, "spec.images.0", f"llm@{DIGEST}"),
    (WORKLOAD, "spec.secrets.0.path", _ABSENT),
    (WORKLOAD, "spec.secrets.0.ttl", "24h"),
)
_WRONG: tuple[tuple[dict[str, Any], str, object], ...] = (
    (POLICY, "metadata.name", "verified"),
    (POLICY, "metadata.name", "a" * 64),
    (POLICY, "metadata.name", "two.labels"),
    (POLICY, "spec", _ABSENT),
    (POLICY, "spec.enforcementAction", "off"),
    (POLICY, "spec.accept", []),
    (POLICY, "spec.accept", ["none"]),
    (POLICY, "spec.accept", ["contraindicated"]),
    (POLICY, "spec.baselines", []),
    (POLICY, "spec.baselines", _ABSENT),
    (POLICY, "spec.baselines", [{"name": "a", "floor": "1.0.0"}, {"name": "a", "floor": "2.0.0"}]),
    (POLICY, "spec.baselines.0.floor", "4.1"),
    (POLICY, "spec.baselines.0.floor", "04.1.0"),
    (POLICY, "spec.baselines.0.floor", _ABSENT),
    (POLICY, "spec.baselines.0.name", "Upper"),
    (POLICY, "spec.maxEvidenceAge", "601s"),
    (POLICY, "spec.maxEvidenceAge", "11m"),
    (POLICY, "spec.maxEvidenceAge", "0s"),
    (POLICY, "spec.maxEvidenceAge", "5"),
    (POLICY, "spec.maxEvidenceAge", "-5m"),
    (POLICY, "spec.maxEvidenceAge", "1d"),
    (POLICY, "spec.maxEvidenceAge", "5m\n"),
    (POLICY, "spec.maxEvidenceAge", 300),
    (POLICY, "spec.minRemainingValidity", "5m"),
    (POLICY, "spec.minRemainingValidity", "1h"),
    (POLICY, "spec.onLoss.action", "Ignore"),
    (POLICY, "spec.onLoss.fallback", "Evict"),
    (POLICY, "spec.onLoss.maxUnverified", "25h"),
    (POLICY, "spec.onLoss.gracePeriod", "soon"),
    (POLICY, "spec.onLoss.taint", "yes"),
    (POLICY, "spec.exemptions.0.expires", "2026-12-31T00:00:00"),
    (POLICY, "spec.exemptions.0.expires", "never"),
    (POLICY, "spec.exemptions.0.expires", _ABSENT),
    (POLICY, "spec.exemptions.0.reason", ""),
    (POLICY, "spec.exemptions.0.serviceAccount", "*"),
    (WORKLOAD, "metadata.name", "two.labels"),
    (WORKLOAD, "spec.subjects", []),
    (WORKLOAD, "spec.subjects", _ABSENT),
    (WORKLOAD, "spec.subjects.0.namespace", "kube-system"),
    (WORKLOAD, "spec.subjects.0.namespace", "nodewarden-system"),
    (WORKLOAD, "spec.subjects.0.namespace", "*"),
    (WORKLOAD, "spec.subjects.0.serviceAccount", _ABSENT),
    (WORKLOAD, "spec.policyRef", _ABSENT),
    (WORKLOAD, "spec.policyRef", ""),
    (WORKLOAD, "spec.stricter.0.selector.matchLabels", {}),
    (WORKLOAD, "spec.stricter.0.selector", {}),
    (WORKLOAD, "spec.stricter.0.policyRef", _ABSENT),
    (WORKLOAD, "spec.images", []),
    (WORKLOAD, "spec.images", _ABSENT),
    (WORKLOAD, "spec.images.0", "llm:latest"),
    (WORKLOAD, "spec.images.0", f"llm:v1@{DIGEST}"),
    (WORKLOAD, "spec.images.0", f"llm@{DIGEST}0"),
    (WORKLOAD, "spec.images.0", f"LLM@{DIGEST}"),
    (WORKLOAD, "spec.images.0", f"llm@{DIGEST}\n"),
    (WORKLOAD, "spec.secrets", [{"name": "a/key"}, {"name": "b/key"}]),
    (WORKLOAD, "spec.secrets", [{"name": "a"}, {"name": "a", "path": "b"}]),
    (WORKLOAD, "spec.secrets", [{"name": "a"}, {"name": "b", "path": "a"}]),
    (WORKLOAD, "spec.secrets.0.path", "../key"),
    (WORKLOAD, "spec.secrets.0.path", ".hidden"),
    (WORKLOAD, "spec.secrets.0.path", "a/b"),
    (WORKLOAD, "spec.secrets.0.name", "/key"),
    (WORKLOAD, "spec.secrets.0.ttl", "25h"),
    (WORKLOAD, "spec.secrets.0.ttl", "0m"),
    (WORKLOAD, "spec.access.exec", "Maybe"),
    (WORKLOAD, "spec.access.portForward", True),
    (ATTESTATION, "spec.nodeName", "gpu-2"),
    (ATTESTATION, "spec.nodeName", "GPU-1"),
    (ATTESTATION, "spec.nodeUID", ""),
    (ATTESTATION, "spec.nodeUID", _ABSENT),
)
UNKNOWN_FIELDS: tuple[tuple[dict[str, Any], str, object], ...] = (
    (POLICY, "spec.enforcment", "deny"),
    (POLICY, "spec.onLoss.evict", True),
    (WORKLOAD, "spec.secret", []),
    (WORKLOAD, "spec.access.attach", "Allow"),
)
"""The API server refuses these only where the client asks for strict field validation, as kubectl does."""


def right_cases() -> Iterator[Case]:
    """Every manifest that both must take."""
    for manifest in (POLICY, WORKLOAD, ATTESTATION):
        yield Case(f"{manifest['kind']} whole", copy.deepcopy(manifest), right=True)
    yield from (_changed(*change, right=True) for change in _RIGHT)


def wrong_cases() -> Iterator[Case]:
    """Every manifest that both must refuse."""
    yield from (_changed(*change, right=False) for change in _WRONG)


def unknown_field_cases() -> Iterator[Case]:
    """Manifests with a field that no one knows."""
    yield from (_changed(*change, right=False) for change in UNKNOWN_FIELDS)


def _changed(manifest: dict[str, Any], place: str, value: object, *, right: bool) -> Case:
    changed = copy.deepcopy(manifest)
    *parents, last = [int(part) if part.isdigit() else part for part in place.split(".")]
    at: Any = changed
    for part in parents:
        at = at[part]
    if value is _ABSENT:
        del at[last]
    else:
        at[last] = value
    shown = "absent" if value is _ABSENT else repr(value)[:40]
    return Case(f"{manifest['kind']} {place} {shown}", changed, right=right)
