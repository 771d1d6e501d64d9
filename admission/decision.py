"""Whether a pod may exist, be bound, or get a secret: pure functions of a cluster state and a time.

All three ask the same `node_failures`. Whatever is unknown, absent or unreadable is a denial; only a pod that no
SensitiveWorkload governs is let through untouched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, assert_never

from admission.affinity import steered_affinity
from admission.cluster_objects import Node, Pod
from admission.cluster_view import AdmissionState, ClusterState, PodIdentity
from admission.node_check import node_failures
from admission.pod_rules import (
    AppliedPolicy,
    Finding,
    Governance,
    access_failures,
    govern,
    image_failures,
    label_failures,
    toleration_failures,
)
from admission.trust_objects import (
    ATTESTATION_GATE,
    CONTROLLER_USER,
    MIN_BASELINE_ANNOTATION,
    WORKLOAD_LABEL,
    SecretGrant,
)
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure
from verifier.wire.result import AttestationResult

_OUR_KEYS = "nodewarden."


@dataclass(frozen=True, slots=True)
class Allow:
    """The request may go on. `warnings` are shown to the user; `audited` are failures that an `audit` policy notes."""

    warnings: tuple[Failure, ...] = ()
    audited: tuple[Failure, ...] = ()
    exemptions: tuple[str, ...] = ()


ALLOW = Allow()


@dataclass(frozen=True, slots=True)
class Deny:
    """The request is refused for `failures`, at least one."""

    failures: tuple[Failure, ...]


@dataclass(frozen=True, slots=True)
class BindingRequest:
    """A Binding as it was posted; `pod_uid` is empty where the caller named none."""

    namespace: str
    pod_name: str
    pod_uid: str
    node_name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    """Kubernetes merges both onto the pod (pkg/registry/core/pod/storage, assignPod), over what is there."""


@dataclass(frozen=True, slots=True)
class Release:
    """Secrets may go to this pod on this node, encrypted to the key that this result certifies."""

    pod: Pod
    node: Node
    result: AttestationResult
    binding_key: Mapping[str, str]
    boot_id: str
    grants: tuple[SecretGrant, ...]


def decide_pod_create(state: AdmissionState, pod: Pod, now: int) -> Allow | Deny:
    """Whether `pod` may be created. Where it names its node itself, that node must pass: no binding call will ask."""
    stale = state.stale(pod.namespace)
    if stale is not None:
        return Deny((stale,))
    forged = label_failures(state, pod)
    if forged:
        return Deny(forged)
    governance = govern(state, pod, now)
    if governance is None:
        return ALLOW
    findings = [Finding("deny", fault) for fault in governance.faults]
    own = (*image_failures(governance, pod.images), *toleration_failures(pod.tolerations))
    findings += [Finding(governance.action, failure) for failure in own]
    if pod.node_name:
        findings += _node_findings(state, governance, pod.node_name, now, set_directly=True)
    return decided(findings, governance)


def decide_pod_update(state: AdmissionState, old: Pod, pod: Pod, user: str, now: int) -> Allow | Deny:
    """Whether `user` may make `pod` of `old`: no new image outside the list, no new toleration, no changed label or
    floor, no gate of ours removed, no ephemeral container where the workload keeps them out.

    Only what the update changes is judged: a pod from before its workload object must still be able to end.
    """
    stale = state.stale(pod.namespace)
    if stale is not None:
        return Deny((stale,))
    moved = _moved(old, pod)
    if moved:
        return Deny(moved)
    governance = govern(state, pod, now)
    if governance is None:
        relabelled = old.labels.get(WORKLOAD_LABEL) != pod.labels.get(WORKLOAD_LABEL)
        forged = label_failures(state, pod) if relabelled else ()
        return Deny(forged) if forged else ALLOW
    changed = tuple(
        Failure(ReasonCode.WORKLOAD_LABEL_CHANGED, f"metadata.{kind}.{key}", after.get(key), before.get(key))
        for kind, key, before, after in (
            ("labels", WORKLOAD_LABEL, old.labels, pod.labels),
            ("annotations", MIN_BASELINE_ANNOTATION, old.annotations, pod.annotations),
        )
        if before.get(key) != after.get(key)
    )
    if ATTESTATION_GATE in old.gates and ATTESTATION_GATE not in pod.gates and user != CONTROLLER_USER:
        changed += (Failure(ReasonCode.GATE_REMOVED, "spec.schedulingGates", f"removed by {user}", CONTROLLER_USER),)
    if changed:
        return Deny(changed)
    known = frozenset(old.images)
    added = tuple(image for image in pod.images if image not in known)
    own = image_failures(governance, added)
    if any(image.role == "ephemeral" for image in added):
        own += access_failures(governance, "ephemeralcontainers")
    tolerated = frozenset(old.tolerations)
    # By the whole toleration: one that only keeps a pod off the scheduler's list is none that keeps it from eviction.
    own += toleration_failures(tuple(toleration for toleration in pod.tolerations if toleration not in tolerated))
    findings = [Finding(governance.action, failure) for failure in own]
    return decided([*findings, *_stricter_lost(state, old, governance, now)], governance)


def _moved(old: Pod, pod: Pod) -> tuple[Failure, ...]:
    # Kubernetes refuses both, later than it asks us; until it does, the new ones say who governs the pod and where.
    return tuple(
        Failure(ReasonCode.POD_IDENTITY_CHANGED, f"spec.{name}", after, before)
        for name, before, after in (
            ("serviceAccountName", old.service_account, pod.service_account),
            ("nodeName", old.node_name, pod.node_name),
        )
        if before != after
    )


def _stricter_lost(state: ClusterState, old: Pod, governance: Governance, now: int) -> list[Finding]:
    # Attack: drop the label that picked a stricter policy once the pod runs, so that releases ask for less.
    before = govern(state, old, now)
    kept = {applied.policy.name for applied in governance.policies}
    lost = [] if before is None else [a.policy.name for a in before.policies if a.policy.name not in kept]
    return [Finding("deny", Failure(ReasonCode.WORKLOAD_LABEL_CHANGED, "metadata.labels", None, name)) for name in lost]


def decide_binding(state: AdmissionState, binding: BindingRequest, now: int) -> Allow | Deny:
    """Whether the pod may be bound to the node: the gate, whoever posts the Binding and whatever scheduled it."""
    stale = state.stale(binding.namespace)
    if stale is not None:
        return Deny((stale,))
    if binding.labels or binding.annotations:
        # Attack: what may not be written on a pod, written on its Binding: no pod check would see it.
        ours = sorted(key for key in {**binding.labels, **binding.annotations} if key.startswith(_OUR_KEYS))
        if ours:
            return Deny(tuple(Failure(ReasonCode.BINDING_METADATA_FORBIDDEN, "metadata", key) for key in ours))
    if not state.governs(binding.namespace):
        return ALLOW
    pod = state.pod(binding.namespace, binding.pod_name)
    if pod is None:
        return Deny((Failure(ReasonCode.POD_UNKNOWN, _place(binding)),))
    governance = govern(state, pod, now)
    stated: list[Failure] = []
    if binding.pod_uid != pod.uid or not binding.pod_uid:
        code = ReasonCode.POD_UID_MISMATCH if binding.pod_uid else ReasonCode.BINDING_UID_MISSING
        stated.append(Failure(code, _place(binding), binding.pod_uid or None, pod.uid))
    if governance is None:
        # Attack: bind a governed pod while the view still knows an ungoverned one under its name. Only the UID tells.
        return Deny(tuple(stated)) if stated else ALLOW
    if pod.deleting:
        stated.append(Failure(ReasonCode.POD_DELETING, _place(binding)))
    findings = _node_findings(state, governance, binding.node_name, now, set_directly=False)
    if stated or governance.faults:
        findings = [*(Finding("deny", failure) for failure in (*stated, *governance.faults)), *findings]
    if binding.labels or binding.annotations:
        findings += _merged_findings(state, pod, binding, now)
    return decided(findings, governance)


def _place(binding: BindingRequest) -> str:
    return f"pods.{binding.namespace}/{binding.pod_name}"


def _merged_findings(state: ClusterState, pod: Pod, binding: BindingRequest, now: int) -> list[Finding]:
    # Attack: a Binding that overwrites the label which picked a stricter policy, past the checks of pod updates.
    labels, annotations = {**pod.labels, **binding.labels}, {**pod.annotations, **binding.annotations}
    merged = govern(state, replace(pod, labels=labels, annotations=annotations), now)
    if merged is None:
        return []
    findings = [Finding("deny", fault) for fault in merged.faults]
    findings += _node_findings(state, merged, binding.node_name, now, set_directly=False)
    return [*findings, *_stricter_lost(state, pod, merged, now)]


def steer(state: ClusterState, pod: Pod, affinity: Mapping[str, Any], now: int) -> dict[str, Any] | None:
    """The pod's new affinity, which leads it to nodes labelled for each policy that denies; None to leave it alone."""
    governance = govern(state, pod, now)
    if governance is None or pod.node_name:
        return None
    names = tuple(applied.policy.name for applied in governance.policies if applied.action == "deny")
    return steered_affinity(affinity, names)


def decide_release(state: AdmissionState, identity: PodIdentity, secrets: tuple[str, ...], now: int) -> Release | Deny:
    """Whether the pod that `identity` names may have `secrets` on its node now.

    Neither exemption nor `enforcementAction` matters here: those place pods, and a secret leaves only for a node that
    passes. Does not check that the caller is the node: `admission.possession`.
    """
    stale = state.stale(identity.namespace)
    if stale is not None:
        return Deny((stale,))
    where = f"pods.{identity.namespace}/{identity.pod_name}"
    pod, node = state.pod(identity.namespace, identity.pod_name), state.node(identity.node_name)
    if pod is None:
        return Deny((Failure(ReasonCode.POD_UNKNOWN, where),))
    if node is None:
        return Deny((Failure(ReasonCode.NODE_UNKNOWN_TO_CLUSTER, f"nodes.{identity.node_name}"),))
    governance = govern(state, pod, now)
    failures = [*_pod_and_node_failures(identity, pod, node, where)]
    grants: list[SecretGrant] = []
    for secret in secrets:
        grant = None if governance is None else _grant(governance, secret)
        if grant is None or grant.path in {other.path for other in grants}:
            # Two workloads may give one file name to two secrets; neither may land in the other's place.
            failures.append(Failure(ReasonCode.SECRET_NOT_ALLOWED, f"secrets.{secret}", None, "a SensitiveWorkload"))
        else:
            grants.append(grant)
    if governance is None:
        return Deny(tuple(failures))
    failures += [*governance.faults, *image_failures(governance, pod.images)]
    for applied in governance.policies:
        failures += node_failures(state, node.name, applied.policy, governance.raised, now)
    result = state.result_of(node)
    if failures or isinstance(result, Failure):
        return Deny(tuple(dict.fromkeys(failures)))
    if result.binding_key is None or result.boot_id is None:
        return Deny((Failure(ReasonCode.RESULT_WITHOUT_BINDING_KEY, f"nodes.{node.name}.cnf"),))
    return Release(pod, node, result, result.binding_key, result.boot_id, tuple(grants))


def _pod_and_node_failures(identity: PodIdentity, pod: Pod, node: Node, where: str) -> tuple[Failure, ...]:
    failures: list[Failure] = []
    if pod.uid != identity.pod_uid or pod.service_account != identity.service_account:
        failures.append(Failure(ReasonCode.POD_UID_MISMATCH, where, identity.pod_uid, pod.uid))
    if pod.deleting or pod.ended:
        failures.append(Failure(ReasonCode.POD_DELETING, where))
    if pod.node_name != identity.node_name or node.uid != identity.node_uid:
        seen = f"{identity.node_name} {identity.node_uid}"
        failures.append(Failure(ReasonCode.NODE_MISMATCH, where, seen, f"{pod.node_name or 'unbound'} {node.uid}"))
    return tuple(failures)


def _grant(governance: Governance, secret: str) -> SecretGrant | None:
    grants = [w.secrets[secret] for w in governance.workloads if secret in w.secrets]
    # Several workloads may govern a pod and list one secret: the shortest lease holds.
    return min(grants, key=lambda grant: grant.ttl_seconds, default=None)


def _node_findings(
    state: ClusterState, governance: Governance, node_name: str, now: int, *, set_directly: bool
) -> list[Finding]:
    findings: list[Finding] = []
    for applied in governance.policies:
        failures = node_failures(state, node_name, applied.policy, governance.raised, now)
        if failures and set_directly:
            direct = Failure(ReasonCode.NODE_NAME_SET_DIRECTLY, "spec.nodeName", node_name)
            failures = (direct, *failures)
        findings += [Finding(applied.action, failure) for failure in failures]
    return findings


def decided(findings: list[Finding], governance: Governance) -> Allow | Deny:
    """What `findings` come to: any that is to be denied denies."""
    exemptions = _exemptions(governance.policies)
    if not findings:
        return Allow(exemptions=exemptions) if exemptions else ALLOW
    denied: list[Failure] = []
    warned: list[Failure] = []
    audited: list[Failure] = []
    for finding in findings:
        match finding.action:
            case "deny":
                denied.append(finding.failure)
            case "warn":
                warned.append(finding.failure)
            case "audit":
                audited.append(finding.failure)
            case _:
                assert_never(finding.action)
    if denied:
        return Deny(tuple(dict.fromkeys(denied)))
    return Allow(tuple(dict.fromkeys(warned)), tuple(dict.fromkeys(audited)), exemptions)


def _exemptions(policies: tuple[AppliedPolicy, ...]) -> tuple[str, ...]:
    return tuple(f"{a.policy.name}: {a.exemption}" for a in policies if a.exemption is not None)
