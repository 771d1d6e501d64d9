"""The labels and the taint by which the scheduler knows how a node stands: pure.

`nodewarden.node-restriction.kubernetes.io/verified` says that it passes some policy, `.../<policy>` which. The taint is
for dedicated nodes, where a policy asks for it: its value names a policy that the node held and lost, and it goes when
the node holds all those again. Which were lost stands in the NodeAttestation before any label goes, so that a
controller that takes over leaves no taint out and takes none off too soon.

What is taken off is only what we put on. A taint of our key under the name of no policy came with the node (kubelets
may register with it, so that nothing runs there before it is verified), or from a policy that was deleted: it stays
until the node is labelled. One with an effect that we never write is not ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from admission.controller.observed import ObservedNode
from admission.controller.standing import NodeStanding
from admission.trust_objects import UNVERIFIED_TAINT, VERIFIED_LABEL_PREFIX

VERIFIED_LABEL = VERIFIED_LABEL_PREFIX + "verified"
_EFFECTS = frozenset({"NoSchedule", "NoExecute"})


def labels_wanted(standing: NodeStanding) -> Mapping[str, str]:
    """Our labels as they shall stand on the node."""
    wanted = {VERIFIED_LABEL_PREFIX + name: "true" for name in sorted(standing.labelled)}
    return {VERIFIED_LABEL: "true", **wanted} if wanted else {}


def our_labels(observed: ObservedNode) -> dict[str, str]:
    """The labels of our prefix that the node carries, whoever wrote them."""
    return {key: value for key, value in observed.labels.items() if key.startswith(VERIFIED_LABEL_PREFIX)}


def label_patch(observed: ObservedNode, wanted: Mapping[str, str]) -> dict[str, Any] | None:
    """A merge patch (RFC 7396) that gives just this Node object the labels `wanted` of ours; None when it has them.

    Every other label of our prefix goes, whoever wrote it. The UID makes it fail on a Node re-created meanwhile.
    """
    ours = our_labels(observed)
    if ours == dict(wanted):
        return None
    gone = dict.fromkeys(ours.keys() - wanted.keys())
    return {"metadata": {"uid": observed.node.uid, "labels": {**wanted, **gone}}}


def lost_policies(
    observed: ObservedNode, standing: NodeStanding, recorded: frozenset[str], unreadable: frozenset[str]
) -> frozenset[str]:
    """Names of the policies that ask for the taint, that the node held, and that it does not pass now.

    It held those whose label it carries, those that were `recorded` as lost, and the one that its taint names. What
    became of a policy whose object is `unreadable` is not known: it stays lost.
    """
    known = recorded | {str(taint.get("value")) for taint in observed.taints if _is_ours(taint)}
    lost = {
        part.policy.name
        for part in standing.policies
        if part.policy.on_loss.taint
        and part.failures
        and (VERIFIED_LABEL_PREFIX + part.policy.name in observed.labels or part.policy.name in known)
    }
    return frozenset(lost | (known & unreadable))


def taints_wanted(observed: ObservedNode, standing: NodeStanding, lost: frozenset[str]) -> list[dict[str, Any]]:
    """All taints that the node shall have: those of others untouched, ours where it `lost` a policy that asks for it.

    NoSchedule comes with every loss, NoExecute with a fallen verdict only: on mere silence pods run on.
    """
    if not lost:
        return [dict(taint) for taint in observed.taints if not _is_ours(taint) or _stays(taint, standing)]
    ours = [taint for taint in observed.taints if _is_ours(taint)]
    fallen = {part.policy.name for part in standing.policies if part.fallen} & lost
    effects = {str(taint.get("effect")) for taint in ours} | {"NoSchedule"} | ({"NoExecute"} if fallen else set())
    times = {str(taint.get("effect")): taint["timeAdded"] for taint in ours if "timeAdded" in taint}
    return [dict(taint) for taint in observed.taints if not _is_ours(taint)] + [
        {
            "key": UNVERIFIED_TAINT,
            "value": min(fallen or lost),
            "effect": effect,
            **({"timeAdded": times[effect]} if effect in times else {}),
        }
        for effect in sorted(effects)
    ]


def _is_ours(taint: Mapping[str, Any]) -> bool:
    return taint.get("key") == UNVERIFIED_TAINT and taint.get("effect") in _EFFECTS


def _stays(taint: Mapping[str, Any], standing: NodeStanding) -> bool:
    set_by_us = taint.get("value") in {part.policy.name for part in standing.policies}
    return not set_by_us and not standing.labelled


def taint_patch(observed: ObservedNode, wanted: list[dict[str, Any]]) -> dict[str, Any] | None:
    """A merge patch that sets the taints, on the version that was read: they are one list, which others write too."""
    if [dict(taint) for taint in observed.taints] == wanted:
        return None
    facts = {"uid": observed.node.uid, "resourceVersion": observed.resource_version}
    return {"metadata": facts, "spec": {"taints": wanted or None}}


def both(labels: dict[str, Any] | None, taints: dict[str, Any] | None) -> dict[str, Any] | None:
    """One patch for two."""
    if labels is None or taints is None:
        return labels or taints
    return {**taints, "metadata": {**labels["metadata"], **taints["metadata"]}}
