"""What the controller wrote, as a test looks at it."""

from __future__ import annotations

from tests.e2e.brokers import condition_of
from tests.e2e.controllers import OURS, Controllers


def attested(cluster: Controllers, node: str, kind: str = "Verified") -> tuple[str, str] | None:
    """Status and reason of a condition of the node's NodeAttestation; None where it is not there."""
    return condition_of({"status": cluster.attestation(node)}, kind)


def node_set(cluster: Controllers) -> dict[str, str]:
    """The entries of the VerifiedNodeSet; none where there is no set."""
    answer = cluster.admin.get(f"{OURS}/verifiednodesets/verified")
    nodes: dict[str, str] = answer.body["spec"]["nodes"] if answer.accepted else {}
    return nodes


def notes(cluster: Controllers, namespace: str, reason: str) -> list[tuple[str, str]]:
    """(kind, note) of the Events with that reason."""
    items = cluster.admin.must_get(f"/apis/events.k8s.io/v1/namespaces/{namespace}/events")["items"]
    return [(item["regarding"]["kind"], item["note"]) for item in items if item["reason"] == reason]
