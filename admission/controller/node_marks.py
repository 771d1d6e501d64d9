"""The labels and the taint by which the scheduler knows how a node stands: pure.

`nodewarden.node-restriction.kubernetes.io/verified` says that it passes some policy, `.../<policy>` which. The taint is
for dedicated nodes, where a policy asks for it: its value names a policy that the node held and lost, and it goes when
the node holds that one again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from admission.controller.observed import ObservedNode
from admission.controller.standing import NodeStanding, PolicyStanding
from admission.trust_objects import UNVERIFIED_TAINT, VERIFIED_LABEL_PREFIX

VERIFIED_LABEL = VERIFIED_LABEL_PREFIX + "verified"


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


def taints_wanted(observed: ObservedNode, standing: NodeStanding, held: frozenset[str]) -> list[dict[str, Any]]:
    """All taints that the node shall have: those of others untouched, ours where a policy asks for it.

    `held` are the keys of labels that the node was seen to carry. NoSchedule comes with every loss, NoExecute with a
    fallen verdict only: on mere silence pods run on.
    """
    others = [dict(taint) for taint in observed.taints if taint.get("key") != UNVERIFIED_TAINT]
    ours = [taint for taint in observed.taints if taint.get("key") == UNVERIFIED_TAINT]
    lost = _lost(standing, held, {str(taint.get("value")) for taint in ours})
    if lost is None:
        return others
    effects = {str(taint.get("effect")) for taint in ours} & {"NoSchedule", "NoExecute"} | {"NoSchedule"}
    if lost.fallen:
        effects.add("NoExecute")
    times = {str(taint.get("effect")): taint["timeAdded"] for taint in ours if "timeAdded" in taint}
    return others + [
        {
            "key": UNVERIFIED_TAINT,
            "value": lost.policy.name,
            "effect": effect,
            **({"timeAdded": times[effect]} if effect in times else {}),
        }
        for effect in sorted(effects)
    ]


def _lost(standing: NodeStanding, held: frozenset[str], named: set[str]) -> PolicyStanding | None:
    lost = [
        part
        for part in standing.policies
        if part.policy.on_loss.taint
        and part.failures
        and (VERIFIED_LABEL_PREFIX + part.policy.name in held or part.policy.name in named)
    ]
    # The worst first, so that NoExecute is not missed where several policies were lost.
    return min(lost, key=lambda part: (not part.fallen, part.policy.name), default=None)


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
