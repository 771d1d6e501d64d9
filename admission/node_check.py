"""The one check of a node that pods, bindings and secret releases share: pure, and nothing passes by absence.

When `node_failures` returns nothing, all of these hold at `now`:
1. the Node object exists and is not being deleted;
2. a result signed by the configured verifier is there, of this node's name and UID;
3. it has not expired, is not from the future, is young enough for the policy and lasts long enough;
4. the node still runs in the boot that was attested;
5. the verdict is one that the policy accepts;
6. the baseline that judged is one that the policy lists, at or above its floor and above the pod's own.
"""

from __future__ import annotations

from dataclasses import dataclass

from admission.cluster_objects import Node
from admission.cluster_view import ClusterState
from admission.trust_objects import NodeTrustPolicy
from admission.versions import Version, format_version, parse_version
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure
from verifier.wire.result import AttestationResult

MAX_CLOCK_AHEAD_SECONDS = 30
"""How far the verifier's clock may be ahead of ours. Expiry has no leeway; this only refuses results of tomorrow."""


@dataclass(frozen=True, slots=True)
class RaisedFloor:
    """A pod's own demand: this baseline, at this version or above."""

    baseline: str
    version: Version


def node_failures(
    state: ClusterState, node_name: str, policy: NodeTrustPolicy, raised: RaisedFloor | None, now: int
) -> tuple[Failure, ...]:
    """Why the node may not take a pod under `policy` at `now`; empty when it may. Every failed claim is listed."""
    where = f"nodes.{node_name}"
    node = state.node(node_name)
    if node is None:
        return (Failure(ReasonCode.NODE_UNKNOWN_TO_CLUSTER, where, "no such Node"),)
    if node.deleting:
        return (Failure(ReasonCode.NODE_UNKNOWN_TO_CLUSTER, where, "the Node is being deleted"),)
    result = state.result_of(node)
    if isinstance(result, Failure):
        return (result,)
    return (
        *_identity_failures(node, result, where),
        *_freshness_failures(result, policy, now, where),
        *_verdict_failures(result, policy, raised, where),
    )


def _identity_failures(node: Node, result: AttestationResult, where: str) -> tuple[Failure, ...]:
    if result.node_name != node.name or result.kubernetes_node_uid != node.uid:
        seen = f"{result.node_name} {result.kubernetes_node_uid}"
        return (Failure(ReasonCode.RESULT_NODE_MISMATCH, f"{where}.uid", seen, f"{node.name} {node.uid}"),)
    # A result without a boot, or a node that states none, proves nothing about the boot that runs now.
    if not result.linux_boot_id or result.linux_boot_id != node.claimed_boot_id:
        seen = node.claimed_boot_id or "none"
        return (Failure(ReasonCode.BOOT_MISMATCH, f"{where}.bootID", seen, result.linux_boot_id or "an attested boot"),)
    return ()


def _freshness_failures(
    result: AttestationResult, policy: NodeTrustPolicy, now: int, where: str
) -> tuple[Failure, ...]:
    age, remaining = now - result.issued_at, result.expires_at - now
    if remaining <= 0:
        return (Failure(ReasonCode.RESULT_EXPIRED, f"{where}.result", f"{-remaining} s ago"),)
    if age < -MAX_CLOCK_AHEAD_SECONDS:
        return (Failure(ReasonCode.RESULT_FROM_FUTURE, f"{where}.result", f"issued in {-age} s"),)
    if age > policy.max_evidence_age_seconds:
        limit = f"at most {policy.max_evidence_age_seconds} s"
        return (Failure(ReasonCode.RESULT_TOO_OLD, f"{where}.result", f"{age} s old", limit),)
    if remaining < policy.min_remaining_seconds:
        limit = f"at least {policy.min_remaining_seconds} s"
        return (Failure(ReasonCode.RESULT_VALIDITY_TOO_SHORT, f"{where}.result", f"{remaining} s left", limit),)
    return ()


def _verdict_failures(
    result: AttestationResult, policy: NodeTrustPolicy, raised: RaisedFloor | None, where: str
) -> tuple[Failure, ...]:
    failures: list[Failure] = []
    if result.verdict not in policy.accept:
        reasons = ", ".join(str(reason.get("code")) for reason in result.reasons[:4])
        seen = f"{result.verdict.value} ({reasons})" if reasons else result.verdict.value
        wanted = " or ".join(sorted(verdict.value for verdict in policy.accept))
        failures.append(Failure(ReasonCode.NODE_NOT_VERIFIED, f"{where}.verdict", seen, wanted))
        if result.baseline is None:
            # No baseline accepted the evidence: that is what the verdict says, and no second fault with its own remedy.
            return tuple(failures)
    claim, baseline = f"{where}.baseline", result.baseline
    floor = None if baseline is None else policy.baselines.get(baseline.name)
    if baseline is None or floor is None:
        wanted = ", ".join(sorted(policy.baselines))
        seen = "none" if baseline is None else baseline.name
        failures.append(Failure(ReasonCode.BASELINE_NOT_ACCEPTED, claim, seen, wanted))
        return tuple(failures)
    if raised is not None and raised.baseline != baseline.name:
        failures.append(Failure(ReasonCode.BASELINE_NOT_ACCEPTED, claim, baseline.name, raised.baseline))
        return tuple(failures)
    if raised is not None and raised.version > floor:
        floor = raised.version
    version = parse_version(baseline.version)
    if version is None or version < floor:
        seen = f"{baseline.name} {baseline.version}"
        failures.append(Failure(ReasonCode.BASELINE_BELOW_FLOOR, claim, seen, f"at least {format_version(floor)}"))
    return tuple(failures)
