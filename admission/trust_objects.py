"""What decisions know of trust: policies, workloads and attestations, checked and in plain values.

Read from manifests by `admission.kinds`; the names under which Kubernetes carries them stand here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from admission.versions import Version
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure, Rejection
from verifier.wire.result import Verdict

API_VERSION = "nodewarden.dev/v1alpha1"
VERIFIED_LABEL_PREFIX = "nodewarden.node-restriction.kubernetes.io/"
"""NodeRestriction keeps kubelets from writing labels of any `*.node-restriction.kubernetes.io/` prefix."""
UNVERIFIED_TAINT = "nodewarden.dev/unverified"
WORKLOAD_LABEL = "nodewarden.dev/workload"
ENFORCED_NAMESPACE_LABEL = "nodewarden.dev/enforced"
"""Namespaces with this label hold nothing but sensitive pods: policies of the API server bind them to verified nodes by
themselves. The webhook is registered for all namespaces but those of the system."""
ATTESTATION_GATE = "nodewarden.dev/attestation"
"""Scheduling gate of sensitive pods that no node may take yet; our controller alone removes it."""
SYSTEM_NAMESPACE = "nodewarden-system"
CONTROLLER_USER = "system:serviceaccount:nodewarden-system:nodewarden-controller"
UNGOVERNED_NAMESPACES = frozenset(
    {"kube-system", "kube-public", "kube-node-lease", SYSTEM_NAMESPACE, "nodewarden-attester"}
)
LABELLED, HOST_ACCESS = "Labelled", "HostAccess"
"""Type and reason of a NodeAttestation's condition: the node passes, and runs pods that could act upon it."""
MIN_BASELINE_ANNOTATION = "nodewarden.dev/min-baseline"

MAX_IMAGE_CHARACTERS = 1024

EnforcementAction = Literal["deny", "warn", "audit"]


@dataclass(frozen=True, slots=True)
class Exemption:
    """Pods of one ServiceAccount that a policy lets onto any node until `expires_at`; never any secret."""

    namespace: str
    service_account: str
    reason: str
    expires_at: int


@dataclass(frozen=True, slots=True)
class OnLoss:
    """What happens to pods whose node lost its verdict: after `grace_period_seconds` of eviction, the fallback.

    `max_unverified_seconds` is how long they may run on when results merely ended (no verifier, no link); `taint` asks
    for the NoSchedule/NoExecute taint on nodes that are not verified under this policy.
    """

    action: Literal["Evict", "None"] = "Evict"
    grace_period_seconds: int = 30
    fallback: Literal["Delete", "None"] = "Delete"
    max_unverified_seconds: int = 1800
    taint: bool = False


@dataclass(frozen=True, slots=True)
class NodeTrustPolicy:
    """What a node must have proved: one of `baselines` (name to lowest version), a verdict, young evidence."""

    name: str
    enforcement: EnforcementAction
    accept: frozenset[Verdict]
    baselines: Mapping[str, Version]
    max_evidence_age_seconds: int
    min_remaining_seconds: int
    exemptions: tuple[Exemption, ...]
    on_loss: OnLoss = OnLoss()


@dataclass(frozen=True, slots=True)
class StricterRule:
    """Pods with all these labels must satisfy `policy` as well."""

    labels: Mapping[str, str]
    policy: str


@dataclass(frozen=True, slots=True)
class SecretGrant:
    """A secret that the workload's pods may have, the file name under which they see it, and its longest lease."""

    name: str
    path: str
    ttl_seconds: int


@dataclass(frozen=True, slots=True)
class Access:
    """Which ways into a running pod are open to whoever RBAC lets through; all are closed unless said otherwise.

    `exec` is attach as well, and `port_forward` is proxy as well: they open the same door.
    """

    exec: bool = False
    port_forward: bool = False
    ephemeral_containers: bool = False


@dataclass(frozen=True, slots=True)
class SensitiveWorkload:
    """Which ServiceAccounts' pods are sensitive, which images they may run, and which secrets they may have."""

    name: str
    subjects: frozenset[tuple[str, str]]
    policy: str
    stricter: tuple[StricterRule, ...]
    images: frozenset[str]
    secrets: Mapping[str, SecretGrant]
    access: Access = Access()


@dataclass(frozen=True, slots=True)
class NodeAttestation:
    """The verifier's signed result for one Node object, as the controller stores it; `claimed_result` is a JWT."""

    node_name: str
    node_uid: str
    claimed_result: str
    host_access: str | None = None
    """Why the controller does not label the node although it passes. It can only deny: a controller that lies about it
    takes a node away, and gives none."""

    def require_no_host_access(self) -> None:
        """No pod runs there that could act upon the node. Raises Rejection `node-runs-intruder`."""
        if self.host_access is not None:
            failure = host_access_failure(self.node_name, self.host_access)
            raise Rejection(failure.code, failure.claim, failure.observed, failure.expected)


def host_access_failure(node_name: str, pods: str) -> Failure:
    """Why a node that passes is denied all the same: it runs `pods`, which could act upon it."""
    return Failure(ReasonCode.NODE_RUNS_INTRUDER, f"nodes.{node_name}.pods", pods, "no pod with host access")


def image_reference(image: str) -> str | None:
    """`image` as repository@sha256:digest with any tag left out; None when it names no digest or is malformed.

    A tag can be moved; beside a digest it is ignored by every container runtime, so it is ignored here too.
    """
    match = _IMAGE.match(image) if len(image) <= MAX_IMAGE_CHARACTERS else None
    return None if match is None else f"{match[1]}@{match[2]}"


_IMAGE = re.compile(
    r"\A((?:[a-zA-Z0-9.-]+(?::[0-9]{1,5})?/)?[a-z0-9]+(?:[._/-]+[a-z0-9]+)*)(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?@(sha256:[0-9a-f]{64})\Z"
)
