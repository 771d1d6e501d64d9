"""The VerifiedNodeSet: which nodes pass some policy, and until when. Pure.

The binding backstop, a ValidatingAdmissionPolicy, reads it and has no clock: an entry must be gone when it has ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from admission.controller.attestation_object import instant
from admission.controller.standing import NodeStanding
from admission.trust_objects import API_VERSION

NAME = "verified"
STEP_SECONDS = 60
"""Ends are rounded down to this, so that the set is not written at every attestation of every node."""


def node_set(standings: Iterable[NodeStanding], now: int) -> Mapping[str, str]:
    """The entries at `now`: node name to the end of its result."""
    entries = {}
    for standing in standings:
        ends = 0 if standing.result is None else standing.result.expires_at // STEP_SECONDS * STEP_SECONDS
        if standing.labelled and ends > now:
            entries[standing.node.name] = instant(ends)
    return entries


def node_set_object(entries: Mapping[str, str]) -> dict[str, object]:
    """The whole object."""
    return {
        "apiVersion": API_VERSION,
        "kind": "VerifiedNodeSet",
        "metadata": {"name": NAME},
        "spec": {"nodes": dict(entries)},
    }
