"""Ways around placement: into a running pod, and out from under the policies. Pure, as `admission.decision`."""

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
    """What happens to the label by which the API server's own policies bind a namespace's pods to verified nodes only.

    The webhook does not go by it: it sees every namespace that is not excluded by name. After is None when the
    namespace is deleted.
    """

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
    """Whether a namespace may be changed or deleted: a governed one that is labelled enforced stays, and stays so.

    Attack: whoever has all rights in a namespace may relabel or delete the Namespace object too, and without the label
    the policies that hold while the webhook is down do not cover it. The installation asks about labelled ones only.
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
