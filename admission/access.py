"""Ways around placement: into a running pod, and out of the webhook's sight. Pure, as `admission.decision`."""

from __future__ import annotations

from dataclasses import dataclass

from admission.cluster_view import AdmissionState
from admission.decision import Allow, Deny, decided
from admission.pod_rules import AccessWay, Finding, access_failures, govern
from admission.trust_objects import ENFORCED_NAMESPACE_LABEL
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure


@dataclass(frozen=True, slots=True)
class AccessRequest:
    """Someone wants into a running pod by `way`."""

    namespace: str
    pod_name: str
    way: AccessWay


@dataclass(frozen=True, slots=True)
class NamespaceChange:
    """What happens to the label that puts a namespace in the webhook's sight; after is None when it is deleted."""

    name: str
    enforced_before: bool
    enforced_after: bool | None


def decide_access(state: AdmissionState, access: AccessRequest, now: int) -> Allow | Deny:
    """Whether someone may get into the running pod. RBAC decides who; this, whether it is a pod that is open at all."""
    stale = state.stale(access.namespace)
    if stale is not None:
        return Deny((stale,))
    if not state.governs(access.namespace):
        return Allow()
    pod = state.pod(access.namespace, access.pod_name)
    if pod is None:
        return Deny((Failure(ReasonCode.POD_UNKNOWN, f"pods.{access.namespace}/{access.pod_name}"),))
    governance = govern(state, pod, now)
    if governance is None:
        return Allow()
    failures = access_failures(governance, access.way)
    return decided([Finding(governance.action, failure) for failure in failures], governance)


def decide_namespace(state: AdmissionState, change: NamespaceChange) -> Allow | Deny:
    """Whether a namespace may be changed or deleted: one that is governed must stay in the webhook's sight.

    Attack: whoever has all rights in a namespace may relabel or delete the Namespace object too.
    """
    stale = state.stale(change.name)
    if stale is not None:
        return Deny((stale,))
    if not state.governs(change.name):
        return Allow()
    where = f"namespaces.{change.name}"
    if change.enforced_after is None:
        return Deny((Failure(ReasonCode.NAMESPACE_GOVERNED, where, "deleted"),))
    if change.enforced_before and not change.enforced_after:
        claim = f"{where}.labels.{ENFORCED_NAMESPACE_LABEL}"
        return Deny((Failure(ReasonCode.NAMESPACE_LABEL_REMOVED, claim, "removed", "true"),))
    return Allow()
