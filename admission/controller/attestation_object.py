"""The NodeAttestation of a node: what is in it, and when it is written again. Pure.

Webhook and broker take the signed result from it, and that the node runs pods with host access, which can only deny.
The rest is for people, and two facts are for us, which a controller that takes over must know: since when the node does
not pass, and which policies it lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from admission.controller.conditions import condition, condition_reason, condition_since
from admission.controller.results_book import Entry
from admission.controller.standing import NodeStanding
from admission.trust_objects import API_VERSION, HOST_ACCESS, LABELLED
from verifier.wire.failures import Failure
from verifier.wire.result import AttestationResult

VERIFIED = "Verified"
LOST = "PoliciesLost"
"""Its message is the names of the policies, with commas between them, and nothing else."""
MAX_SHOWN = 8


def instant(seconds: int) -> str:
    """`YYYY-MM-DDTHH:MM:SSZ`."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def attestation_object(standing: NodeStanding) -> dict[str, Any]:
    """The object without its status. Its owner is the Node, so that it goes with it even while we are away."""
    node = standing.node
    owner = {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid}
    return {
        "apiVersion": API_VERSION,
        "kind": "NodeAttestation",
        "metadata": {"name": node.name, "ownerReferences": [owner]},
        "spec": {"nodeName": node.name, "nodeUID": node.uid},
    }


def attestation_status(
    standing: NodeStanding, entry: Entry, before: Mapping[str, Any], lost: frozenset[str], now: int
) -> dict[str, Any]:
    """The status that tells how the node stands at `now`; `before` is the object's status until now.

    `lost` are the policies for whose loss the node is to carry the taint.
    """
    result = entry.result
    status: dict[str, Any] = {
        "result": entry.token,
        "notAfter": instant(result.expires_at),
        "policies": [
            {"name": part.policy.name, "result": "Fail" if part.failures else "Pass"} for part in standing.policies
        ],
        "conditions": _conditions(standing, before, lost, now),
    }
    if result.linux_boot_id is not None:
        status["bootID"] = result.linux_boot_id
    if result.evidence_sha256 is not None:
        status["evidenceDigest"] = result.evidence_sha256
    if result.baseline is not None:
        status["baseline"] = {"name": result.baseline.name, "version": result.baseline.version}
    return status


def _conditions(
    standing: NodeStanding, before: Mapping[str, Any], lost: frozenset[str], now: int
) -> list[dict[str, Any]]:
    conditions = [_verified(standing, before, now), _labelled(standing, before, now)]
    if lost:
        conditions.append(condition(before, LOST, "True", "Tainted", ",".join(sorted(lost)), now))
    return conditions


def _verified(standing: NodeStanding, before: Mapping[str, Any], now: int) -> dict[str, Any]:
    if standing.passed:
        names = ", ".join(sorted(standing.passed))
        return condition(before, VERIFIED, "True", "Attested", f"holds {names}", now)
    failures = tuple(dict.fromkeys(failure for part in standing.policies for failure in part.failures))
    if not failures:
        return condition(before, VERIFIED, "False", "NoPolicy", "no NodeTrustPolicy exists", now)
    return condition(before, VERIFIED, "False", condition_reason(failures[0].code.value), _sentences(failures), now)


def _labelled(standing: NodeStanding, before: Mapping[str, Any], now: int) -> dict[str, Any]:
    if standing.labelled:
        return condition(before, LABELLED, "True", "Attested", "the node's labels say so", now)
    if standing.passed:
        pods = ", ".join(standing.intruders[:MAX_SHOWN])
        return condition(before, LABELLED, "False", HOST_ACCESS, f"runs pods that could act upon it: {pods}", now)
    return condition(before, LABELLED, "False", "NotVerified", "holds no policy", now)


def _sentences(failures: tuple[Failure, ...]) -> str:
    return " ".join(f"{failure.code.value} ({failure.line()})." for failure in failures[:MAX_SHOWN])


def recorded_losses(status: Mapping[str, Any]) -> frozenset[str]:
    """The policies that the node lost and did not hold again, as far as `status` tells."""
    names = [part.get("message") for part in status.get("conditions") or [] if part.get("type") == LOST]
    return frozenset(str(names[0]).split(",")) if names else frozenset()


def unproven_since(standing: NodeStanding, before: Mapping[str, Any], now: int) -> int | None:
    """When the node stopped to pass; None while it passes, and where no result of it was ever taken."""
    if standing.passed or standing.result is None:
        return None
    known = condition_since(before, VERIFIED, "False")
    return now if known is None else known


def write_due(before: Mapping[str, Any], wanted: Mapping[str, Any], standing: NodeStanding, now: int) -> bool:
    """Whether the status must be written: something changed for those who read it, or its result is half spent.

    A newer result of the same meaning waits until then, so that a fleet's attestations do not become API writes.
    """
    if _meaning(before) != _meaning(wanted):
        return True
    if before.get("result") == wanted.get("result") or standing.result is None:
        return False
    if standing.fallen:
        return True  # bad news does not wait
    return now >= _refresh_at(before, standing.result, standing)


def refresh_at(before: Mapping[str, Any], standing: NodeStanding) -> int | None:
    """When the stored result will be half spent, for the next look; None without a result."""
    return None if standing.result is None else _refresh_at(before, standing.result, standing)


def _refresh_at(before: Mapping[str, Any], result: AttestationResult, standing: NodeStanding) -> int:
    # The stored result's own end; its length is taken as that of the newest, which has the same baseline.
    try:
        ends = int(datetime.fromisoformat(str(before.get("notAfter"))).timestamp())
    except ValueError:
        return 0
    length = result.expires_at - result.issued_at
    issued = ends - length
    due = issued + length // 2
    for part in standing.policies:
        # A strict policy may make the stored result useless long before its own half.
        due = min(due, issued + part.policy.max_evidence_age_seconds // 2)
        due = min(due, ends - 2 * part.policy.min_remaining_seconds)
    return due


def _meaning(status: Mapping[str, Any]) -> tuple[object, ...]:
    conditions = status.get("conditions") or []
    return (
        status.get("bootID"),
        status.get("baseline"),
        status.get("policies"),
        [(part.get("type"), part.get("status"), part.get("reason")) for part in conditions],
        recorded_losses(status),
        "result" in status,
    )
