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
from typing import NamedTuple

from admission.cluster_objects import Node
from admission.cluster_view import ClusterState
from admission.trust_objects import NodeTrustPolicy
from admission.versions import Version, format_version, parse_version
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure
from verifier.wire.result import AttestationResult

MAX_CLOCK_AHEAD_SECONDS = 30
"""How far the verifier's clock may be ahead of ours. Expiry has no leeway; this only refuses results of tomorrow."""


MAX_REMEMBERED = 16_384


@dataclass(frozen=True, slots=True)
class RaisedFloor:
    """A pod's own demand: this baseline, at this version or above."""

    baseline: str
    version: Version


class _Pass(NamedTuple):
    """The very objects that were judged, and the first and last second at which they pass."""

    node: Node
    result: AttestationResult
    policy: NodeTrustPolicy
    first: int
    last: int


_PASSES: dict[tuple[str, str], _Pass] = {}
"""By names of node and policy, what passed last. An entry counts only for the objects that it holds, none of which ever
changes: a changed node, result or policy is another object, and finds nothing remembered. Only passes are kept."""


def node_failures(
    state: ClusterState, node_name: str, policy: NodeTrustPolicy, raised: RaisedFloor | None, now: int
) -> tuple[Failure, ...]:
    """Why the node may not take a pod under `policy` at `now`; empty when it may. Every failed claim is listed."""
    node = state.node(node_name)
    if node is None or node.deleting:
        seen = "no such Node" if node is None else "the Node is being deleted"
        return (Failure(ReasonCode.NODE_UNKNOWN_TO_CLUSTER, f"nodes.{node_name}", seen),)
    result = state.result_of(node)
    if isinstance(result, Failure):
        return (result,)
    # A pod's own floor is asked anew each time.
    known = _PASSES.get((node_name, policy.name)) if raised is None else None
    if (
        known is not None
        and known.node is node
        and known.result is result
        and known.policy is policy
        and known.first <= now <= known.last
    ):
        return ()
    where = f"nodes.{node_name}"
    failures = (
        *_identity_failures(node, result, where),
        *_freshness_failures(result, policy, now, where),
        *_verdict_failures(result, policy, raised, where),
    )
    if not failures and raised is None:
        if len(_PASSES) >= MAX_REMEMBERED:
            _PASSES.clear()
        _PASSES[node_name, policy.name] = _Pass(node, result, policy, *passing_seconds(result, policy))
    return failures


def passing_seconds(result: AttestationResult, policy: NodeTrustPolicy) -> tuple[int, int]:
    """The first and the last second at which `result` is neither from the future, too old, nor too near its end."""
    last = min(
        result.issued_at + policy.max_evidence_age_seconds, result.expires_at - max(policy.min_remaining_seconds, 1)
    )
    return result.issued_at - MAX_CLOCK_AHEAD_SECONDS, last


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
