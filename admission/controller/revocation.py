"""Starts the revocation of every lease that a fallen node holds, and asks again until the broker confirms each.

A SecretRelease whose condition `RevocationRequested` is true is the broker's order: it revokes at the backend and
answers with `status.revokedAt`. What a backend cannot revoke (a static value) must be rotated by its owner; the
condition stays as the record of that.
"""

from __future__ import annotations

from admission.controller.conditions import condition, condition_since
from admission.controller.standing import NodeStanding
from admission.controller.view import OURS, ControllerView
from admission.controller.writer import Writer
from admission.kube import KubeNotFound
from admission.lease_records import REQUESTED
from verifier.wire.failures import Refusal


def revoke_leases(
    view: ControllerView, writer: Writer, standing: NodeStanding, now: int, refused: list[Refusal]
) -> int:
    """Every lease of the node is ordered revoked, or `refused` says why not. Returns how many are not confirmed yet.

    By the node's name: leases of an earlier Node object of the same name fall with it.
    """
    open_leases = 0
    for (_, name), kept in view.releases.objects.copy().items():
        if kept.value.get("nodeName") != standing.node.name or "revokedAt" in kept.status:
            continue
        open_leases += 1
        if condition_since(kept.status, REQUESTED, "True") is not None:
            continue
        message = f"node {standing.node.name} lost its verdict"
        asked = condition(kept.status, REQUESTED, "True", "NodeFell", message, now)
        others = [part for part in kept.status.get("conditions") or [] if part.get("type") != REQUESTED]
        try:
            body = {"metadata": {"uid": kept.uid}, "status": {"conditions": [*others, asked]}}
            writer.merge(f"{OURS}/secretreleases/{name}/status", body)
        except KubeNotFound:
            open_leases -= 1
        except Refusal as refusal:
            refused.append(refusal)
    return open_leases
