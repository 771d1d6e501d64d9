"""Where the pods of a workload stand, and what a workload's and a policy's status say of it: pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from admission.cluster_view import ClusterState
from admission.controller.conditions import condition
from admission.controller.loss import fate_of
from admission.controller.observed import ObservedPod
from admission.controller.standing import NodeStanding
from admission.pod_rules import govern
from admission.trust_objects import ATTESTATION_GATE, NodeTrustPolicy, SensitiveWorkload
from verifier.wire.failures import Failure

MAX_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Violation:
    """A pod that runs on a node that does not pass for it, and why."""

    pod: ObservedPod
    failures: tuple[Failure, ...]


@dataclass(frozen=True, slots=True)
class WorkloadScan:
    """The pods of one workload: how many run where they may, how many wait, and those that run where they may not."""

    verified: int
    gated: int
    violations: tuple[Violation, ...]


def scan_workload(
    state: ClusterState, workload: SensitiveWorkload, pods: Iterable[ObservedPod], now: int
) -> WorkloadScan:
    """The standing of `pods` (all of the cluster) as far as `workload` governs them. Ended pods do not count."""
    verified = gated = 0
    violations: list[Violation] = []
    for observed in pods:
        pod = observed.pod
        if (pod.namespace, pod.service_account) not in workload.subjects or pod.ended:
            continue
        if not pod.node_name:
            gated += ATTESTATION_GATE in pod.gates
            continue
        governance, node = govern(state, pod, now), state.node(pod.node_name)
        if governance is None or node is None:
            continue
        found = state.result_of(node)
        result = None if isinstance(found, Failure) else found
        failures = fate_of(state, governance, node, result, None, now).failures
        if failures:
            violations.append(Violation(observed, failures))
        else:
            verified += 1
    return WorkloadScan(verified, gated, tuple(violations))


def workload_status(
    workload: SensitiveWorkload,
    scan: WorkloadScan,
    policies: Mapping[str, bool],
    before: Mapping[str, Any],
    generation: int,
    now: int,
) -> dict[str, Any]:
    """A SensitiveWorkload's status. `policies` says of each existing policy whether any node passes it."""
    wanted = {workload.policy, *(rule.policy for rule in workload.stricter)}
    unknown = sorted(wanted - policies.keys())
    if unknown:
        ready = condition(before, "Ready", "False", "PolicyUnknown", f"no NodeTrustPolicy {', '.join(unknown)}", now)
    else:
        ready = condition(before, "Ready", "True", "Governed", "its policies exist", now)
    if policies.get(workload.policy):
        nodes = condition(before, "NodesAvailable", "True", "NodesPass", f"nodes hold {workload.policy}", now)
    else:
        nodes = condition(before, "NodesAvailable", "False", "NoNodePasses", f"no node holds {workload.policy}", now)
    if scan.violations:
        shown = [
            f"{v.pod.pod.namespace}/{v.pod.pod.name} on {v.pod.pod.node_name}: {v.failures[0].code.value}"
            for v in sorted(scan.violations, key=lambda v: (v.pod.pod.namespace, v.pod.pod.name))[:MAX_SHOWN]
        ]
        admitted = condition(before, "Admitted", "False", "PodsViolate", "; ".join(shown), now)
    else:
        admitted = condition(before, "Admitted", "True", "AllPodsPass", "every pod that runs is where it may be", now)
    return {
        "observedGeneration": generation,
        "pods": {"verified": scan.verified, "gated": scan.gated, "violating": len(scan.violations)},
        "conditions": [ready, nodes, admitted],
    }


def policy_status(
    policy: NodeTrustPolicy, standings: Iterable[NodeStanding], before: Mapping[str, Any], generation: int, now: int
) -> dict[str, Any]:
    """A NodeTrustPolicy's status: of the nodes that have a result, how many hold it."""
    judged = [standing for standing in standings if standing.result is not None]
    verified = sum(policy.name in standing.passed for standing in judged)
    return {
        "observedGeneration": generation,
        "nodes": {"verified": verified, "failed": len(judged) - verified},
        "conditions": [condition(before, "Ready", "True", "Enforced", f"enforcement: {policy.enforcement}", now)],
    }
