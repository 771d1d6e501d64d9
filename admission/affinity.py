"""Required node affinity that steers a pod to verified nodes: computed, never guessed by patching text.

`nodeSelectorTerms` are alternatives, and the requirements inside one term all hold. So ours goes into *every* term; a
term without any requirement matches no node (core/v1 NodeSelectorTerm) and must stay empty, else it would match ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from admission.trust_objects import VERIFIED_LABEL_PREFIX

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def steered_affinity(affinity: Mapping[str, Any], policies: tuple[str, ...]) -> dict[str, Any] | None:
    """`affinity` (core/v1 Affinity) that matches just its old nodes which carry the label of every policy.

    None when it does so already. Does not check the form of `affinity`: the API server has.
    """
    wanted = [_requirement(policy) for policy in policies]
    node_affinity = dict(affinity.get("nodeAffinity") or {})
    required = node_affinity.get(_REQUIRED)
    if required is None:
        terms: list[dict[str, Any]] = [{"matchExpressions": wanted}] if wanted else []
        changed = bool(wanted)
    else:
        old = list(required.get("nodeSelectorTerms") or [])
        terms = [_steered_term(term, wanted) for term in old]
        changed = terms != old
    if not changed:
        return None
    node_affinity[_REQUIRED] = {"nodeSelectorTerms": terms}
    return {**affinity, "nodeAffinity": node_affinity}


def _requirement(policy: str) -> dict[str, Any]:
    return {"key": VERIFIED_LABEL_PREFIX + policy, "operator": "In", "values": ["true"]}


def _steered_term(term: dict[str, Any], wanted: list[dict[str, Any]]) -> dict[str, Any]:
    expressions = list(term.get("matchExpressions") or [])
    if not expressions and not term.get("matchFields"):
        return term
    missing = [requirement for requirement in wanted if requirement not in expressions]
    return {**term, "matchExpressions": [*expressions, *missing]} if missing else term
