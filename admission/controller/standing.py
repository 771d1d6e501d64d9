"""How a node stands with every NodeTrustPolicy: pure, and by the same check as the webhook's.

A node that fails a policy has either *fallen* (the verifier's newest word about it is a verdict that the policy does
not accept) or is *unproven* (no word, an old word, a word about another boot or Node object, a baseline that no longer
counts). Falling ends everything at once and no expiry heals it; being unproven ends it after a time.
"""

from __future__ import annotations

from dataclasses import dataclass

from admission.cluster_objects import Node
from admission.cluster_view import ClusterState
from admission.node_check import RaisedFloor, node_failures
from admission.trust_objects import NodeTrustPolicy
from verifier.wire.failures import Failure
from verifier.wire.result import AttestationResult


@dataclass(frozen=True, slots=True)
class PolicyStanding:
    """One policy's answer; `failures` is empty when the node passes, and `fallen` says which kind of failing it is."""

    policy: NodeTrustPolicy
    failures: tuple[Failure, ...]
    fallen: bool


@dataclass(frozen=True, slots=True)
class NodeStanding:
    """A node's answers at one moment, and the pods whose reach for the host keeps it from being labelled."""

    node: Node
    result: AttestationResult | None
    policies: tuple[PolicyStanding, ...]
    intruders: tuple[str, ...]

    @property
    def passed(self) -> frozenset[str]:
        """Names of the policies that the node passes, whatever runs on it."""
        return frozenset(standing.policy.name for standing in self.policies if not standing.failures)

    @property
    def labelled(self) -> frozenset[str]:
        """Names of the policies whose label the node gets: none while it runs intruders."""
        return frozenset() if self.intruders else self.passed

    @property
    def fallen(self) -> bool:
        """Whether any policy refuses the newest verdict."""
        return any(standing.fallen for standing in self.policies)

    def changes_at(self) -> int | None:
        """The next second at which time alone makes the node fail a policy that it passes now."""
        if self.result is None:
            return None
        return min(
            (
                min(
                    self.result.expires_at - standing.policy.min_remaining_seconds,
                    self.result.issued_at + standing.policy.max_evidence_age_seconds,
                )
                + 1
                for standing in self.policies
                if not standing.failures
            ),
            default=None,
        )


def standing_of(
    state: ClusterState, node: Node, policies: tuple[NodeTrustPolicy, ...], intruders: tuple[str, ...], now: int
) -> NodeStanding:
    """How `node` stands at `now`. Without any policy it passes nothing."""
    found = state.result_of(node)
    result = None if isinstance(found, Failure) else found
    return NodeStanding(
        node=node,
        result=result,
        policies=tuple(policy_standing(state, node, policy, result, now) for policy in policies),
        intruders=intruders,
    )


def policy_standing(
    state: ClusterState,
    node: Node,
    policy: NodeTrustPolicy,
    result: AttestationResult | None,
    now: int,
    raised: RaisedFloor | None = None,
) -> PolicyStanding:
    """How `node`, whose newest result is `result`, stands with `policy`; with a pod that asks for `raised`, for it."""
    failures = node_failures(state, node.name, policy, raised, now)
    # By name alone: a bad verdict counts also where its Node object was re-created meanwhile.
    fallen = bool(failures) and result is not None and result.verdict not in policy.accept
    return PolicyStanding(policy, failures, fallen)
