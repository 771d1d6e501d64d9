"""What becomes of a sensitive pod on a node that does not pass: pure.

On a fallen verdict the pod is evicted at once, and deleted when the eviction took longer than the policy's grace. On
silence it runs on for the policy's `maxUnverified`, and is then evicted, one by one. Several policies govern a pod:
the soonest end holds. A policy that only warns or audits ends nothing, and neither does a node that passes for all
others and is only below the floor that a pod set for itself: it lost nothing, and the pod shows as a violation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from admission.cluster_objects import Node
from admission.cluster_view import ClusterState
from admission.controller.standing import policy_standing
from admission.pod_rules import Governance
from admission.trust_objects import OnLoss
from verifier.wire.failures import Failure
from verifier.wire.result import AttestationResult

Cause = Literal["fallen", "silent"]


@dataclass(frozen=True, slots=True)
class Ending:
    """A pod's end: from `due_at` on, for `cause`; how, is the policy's `on_loss`."""

    due_at: int
    cause: Cause
    on_loss: OnLoss
    failures: tuple[Failure, ...]


@dataclass(frozen=True, slots=True)
class Fate:
    """`failures` is empty when the pod may run where it is; `ending` is None when nothing is done about them."""

    failures: tuple[Failure, ...]
    ending: Ending | None


def fate_of(
    state: ClusterState,
    governance: Governance,
    node: Node,
    result: AttestationResult | None,
    unproven_since: int | None,
    now: int,
) -> Fate:
    """The fate of a pod under `governance` on `node`.

    `unproven_since` is when the node stopped to pass; None when it never did, as far as anyone remembers. Such a node
    lost nothing: pods from before Nodewarden came are shown and left alone, unless its verdict is a bad one.
    """
    failures: list[Failure] = list(governance.faults)
    endings: list[Ending] = []
    for applied in governance.policies:
        standing = policy_standing(state, node, applied.policy, result, now)
        failures += standing.failures
        if governance.raised is not None:
            failures += policy_standing(state, node, applied.policy, result, now, governance.raised).failures
        on_loss = applied.policy.on_loss
        if not standing.failures or applied.action != "deny" or on_loss.action == "None":
            continue
        if standing.fallen:
            endings.append(Ending(now, "fallen", on_loss, standing.failures))
        elif unproven_since is not None:
            due = unproven_since + on_loss.max_unverified_seconds
            endings.append(Ending(due, "silent", on_loss, standing.failures))
    soonest = min(endings, key=lambda ending: (ending.due_at, ending.on_loss.grace_period_seconds), default=None)
    return Fate(tuple(dict.fromkeys(failures)), soonest)


Step = Literal["evict", "delete", "leave"]


def next_step(on_loss: OnLoss, asked_seconds_ago: float | None) -> Step:
    """What to do about a pod whose end is due, where its eviction was first asked for that long ago (None: never).

    An eviction that a disruption budget refuses is asked for again until the grace is over; then the fallback, which
    no budget holds up.
    """
    if asked_seconds_ago is None or asked_seconds_ago < on_loss.grace_period_seconds:
        return "evict"
    return "delete" if on_loss.fallback == "Delete" else "leave"
