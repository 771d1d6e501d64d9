"""When a sensitive pod has to wait behind our scheduling gate: pure.

The gate spares the scheduler pods that no node may take; it protects nothing, the binding check does.
"""

from __future__ import annotations

from admission.cluster_objects import Pod
from admission.cluster_view import AdmissionState
from admission.node_check import node_failures
from admission.pod_rules import Governance, govern
from admission.trust_objects import ATTESTATION_GATE


def must_wait(state: AdmissionState, pod: Pod, now: int) -> Governance | None:
    """The rules over `pod`, where a scheduling gate may be put on it; None where it may not or need not be.

    A pod that names its node cannot have a gate (core/v1, validation), and one that is gated already needs no other.
    """
    governance = govern(state, pod, now)
    if governance is None or pod.node_name or ATTESTATION_GATE in pod.gates or governance.action != "deny":
        return None
    return governance


def some_node_passes(state: AdmissionState, governance: Governance, now: int) -> bool:
    """Whether any node satisfies every denying policy now; looks at each node at most once."""
    policies = [applied.policy for applied in governance.policies if applied.action == "deny"]
    return any(
        not any(node_failures(state, name, policy, governance.raised, now) for policy in policies)
        for name in state.node_names()
    )
