"""Which rules govern a pod, and what of the pod itself breaks them: pure.

Sensitivity comes from SensitiveWorkload objects by namespace and ServiceAccount. Nothing that a pod says of itself
lowers it: a label can only pick stricter policies, an annotation can only raise a floor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, assert_never

from admission.cluster_objects import Pod, PodImage, Toleration
from admission.cluster_view import ClusterState
from admission.node_check import RaisedFloor
from admission.trust_objects import (
    MIN_BASELINE_ANNOTATION,
    UNVERIFIED_TAINT,
    WORKLOAD_LABEL,
    Access,
    EnforcementAction,
    NodeTrustPolicy,
    SensitiveWorkload,
    image_reference,
)
from admission.versions import parse_version
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure

AccessWay = Literal["exec", "attach", "portforward", "proxy", "ephemeralcontainers"]
_STRENGTH: tuple[EnforcementAction, ...] = ("audit", "warn", "deny")


@dataclass(frozen=True, slots=True)
class Finding:
    """One failed claim, and what the policy that asks for it wants done about it."""

    action: EnforcementAction
    failure: Failure


@dataclass(frozen=True, slots=True)
class AppliedPolicy:
    """A policy as it applies to one pod now: `action` is `warn` while an exemption, named in `exemption`, holds."""

    policy: NodeTrustPolicy
    action: EnforcementAction
    exemption: str | None


@dataclass(frozen=True, slots=True)
class Governance:
    """The rules over one sensitive pod. `faults` forbid it whatever the policies' enforcement says."""

    workloads: tuple[SensitiveWorkload, ...]
    policies: tuple[AppliedPolicy, ...]
    raised: RaisedFloor | None
    faults: tuple[Failure, ...]

    @property
    def action(self) -> EnforcementAction:
        """What is done about a fault of the pod itself: the strictest that any policy asks for; `deny` without any."""
        return max((p.action for p in self.policies), key=_STRENGTH.index, default="deny")


MAX_REMEMBERED = 4096
_PLAIN: dict[tuple[str, str], Governance] = {}
"""By namespace and ServiceAccount, the rules that came out last where nothing of the pod and no time entered them. An
entry counts only while the state shows the very workloads and policies that it holds, none of which ever changes."""


def govern(state: ClusterState, pod: Pod, now: int) -> Governance | None:
    """The rules over `pod` at `now`; None when it is not sensitive."""
    subject = (pod.namespace, pod.service_account)
    workloads = state.workloads_of(*subject)
    if not workloads:
        return None
    plain = MIN_BASELINE_ANNOTATION not in pod.annotations
    known = _PLAIN.get(subject) if plain else None
    if known is not None and known.workloads is workloads:
        for applied in known.policies:
            if state.policy(applied.policy.name) is not applied.policy:
                break
        else:
            return known
    governance = _govern(state, workloads, pod, now)
    if plain and _is_plain(governance):
        if len(_PLAIN) >= MAX_REMEMBERED:
            _PLAIN.clear()
        _PLAIN[subject] = governance
    return governance


def _is_plain(governance: Governance) -> bool:
    # Exemptions end, stricter rules read the pod's labels, and a policy that is not there may come.
    return (
        not governance.faults
        and not any(workload.stricter for workload in governance.workloads)
        and not any(applied.policy.exemptions for applied in governance.policies)
    )


def _govern(state: ClusterState, workloads: tuple[SensitiveWorkload, ...], pod: Pod, now: int) -> Governance:
    faults: list[Failure] = []
    policies: dict[str, AppliedPolicy] = {}
    for workload in workloads:
        for name in _policy_names(workload, pod):
            policy = state.policy(name)
            if policy is None:
                faults.append(Failure(ReasonCode.POLICY_UNKNOWN, f"sensitiveworkloads.{workload.name}", name))
            elif name not in policies:
                policies[name] = _applied(policy, pod, now)
    raised: RaisedFloor | None = None
    demand = pod.annotations.get(MIN_BASELINE_ANNOTATION)
    if demand is not None:
        raised = _raised_floor(demand)
        known = raised is not None and all(raised.baseline in p.policy.baselines for p in policies.values())
        if not known:
            claim = f"metadata.annotations.{MIN_BASELINE_ANNOTATION}"
            faults.append(Failure(ReasonCode.MIN_BASELINE_INVALID, claim, demand, "a baseline of its policies"))
    return Governance(workloads, tuple(policies.values()), raised, tuple(faults))


def label_failures(state: ClusterState, pod: Pod) -> tuple[Failure, ...]:
    """The workload label, where the pod has one, must name a workload that governs the pod.

    Attack: a pod that wears the label of a governed workload, to be mistaken for one by people or by tools.
    """
    label = pod.labels.get(WORKLOAD_LABEL)
    governing = state.workloads_of(pod.namespace, pod.service_account)
    if label is None or label in {workload.name for workload in governing}:
        return ()
    wanted = ", ".join(workload.name for workload in governing) or "no label"
    return (Failure(ReasonCode.WORKLOAD_LABEL_FORGED, f"metadata.labels.{WORKLOAD_LABEL}", label, wanted),)


def image_failures(governance: Governance, images: tuple[PodImage, ...]) -> tuple[Failure, ...]:
    """Every image of every container, init, ephemeral and image-volume entry must be listed by each workload."""
    failures = []
    for image in images:
        reference = image_reference(image.image)
        for workload in governance.workloads:
            if reference is None or reference not in workload.images:
                claim, wanted = (
                    f"{image.role} {image.name}",
                    f"an image of SensitiveWorkload {workload.name}, by digest",
                )
                failures.append(Failure(ReasonCode.WORKLOAD_IMAGE_NOT_ALLOWED, claim, image.image, wanted))
    return tuple(failures)


def toleration_failures(tolerations: tuple[Toleration, ...]) -> tuple[Failure, ...]:
    """No toleration covers our taint, by name or by wildcard."""
    return tuple(
        Failure(
            ReasonCode.WORKLOAD_TOLERATION_FORBIDDEN,
            "spec.tolerations",
            f"{toleration.key or 'every key'}, {toleration.effect or 'every effect'}",
        )
        for toleration in tolerations
        if _covers_our_taint(toleration)
    )


def access_failures(governance: Governance, way: AccessWay) -> tuple[Failure, ...]:
    """The way into the pod is open only where every workload over it opens it."""
    closed = [workload.name for workload in governance.workloads if not _open(workload.access, way)]
    return tuple(Failure(ReasonCode.ACCESS_FORBIDDEN, f"sensitiveworkloads.{name}.access", way) for name in closed)


def _open(access: Access, way: AccessWay) -> bool:
    match way:
        case "exec" | "attach":
            return access.exec
        case "portforward" | "proxy":
            return access.port_forward
        case "ephemeralcontainers":
            return access.ephemeral_containers
        case _:
            assert_never(way)


def _covers_our_taint(toleration: Toleration) -> bool:
    # An empty key matches all taints, whatever the operator; the API server insists on Exists there, we need not.
    return toleration.key in ("", UNVERIFIED_TAINT)


def _policy_names(workload: SensitiveWorkload, pod: Pod) -> tuple[str, ...]:
    if not workload.stricter:
        return (workload.policy,)
    # A matching selector adds a policy and leaves the workload's own in force: a label can only raise the bar.
    stricter = tuple(
        rule.policy
        for rule in workload.stricter
        if all(pod.labels.get(key) == value for key, value in rule.labels.items())
    )
    return (workload.policy, *stricter)


def _applied(policy: NodeTrustPolicy, pod: Pod, now: int) -> AppliedPolicy:
    for exemption in policy.exemptions:
        subject = (exemption.namespace, exemption.service_account)
        if subject == (pod.namespace, pod.service_account) and now < exemption.expires_at:
            action: EnforcementAction = "audit" if policy.enforcement == "audit" else "warn"
            return AppliedPolicy(policy, action, exemption.reason)
    return AppliedPolicy(policy, policy.enforcement, None)


def _raised_floor(demand: str) -> RaisedFloor | None:
    baseline, _, text = demand.partition("@")
    version = parse_version(text)
    return None if version is None or not baseline else RaisedFloor(baseline, version)
