"""What a workload's status says of the secrets that its pods hold: pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from admission.cluster_view import ClusterState
from admission.controller.conditions import condition, condition_since
from admission.lease_records import REQUESTED, REVOKED
from admission.trust_objects import SensitiveWorkload

MAX_SHOWN = 8
Release = tuple[Mapping[str, Any], Mapping[str, Any]]
"""Spec and status of a SecretRelease."""


def secrets_released(
    state: ClusterState, workload: SensitiveWorkload, releases: Iterable[Release], before: Mapping[str, Any], now: int
) -> dict[str, Any]:
    """The condition `SecretsReleased` of `workload`: true while pods of it hold leases and none is to be taken back.

    A revocation without an answer shows for as long as it has none, also when its pod is gone.
    """
    held: list[str] = []
    pending: list[str] = []
    revoked = 0
    for spec, status in releases:
        if not _of(state, workload, spec):
            continue
        pod = f"{spec.get('namespace')}/{spec.get('podName')}"
        if "revokedAt" in status:
            revoked += 1
        elif condition_since(status, REQUESTED, "True") is not None:
            pending.append(f"{spec.get('secret')} of {pod} on {spec.get('nodeName')}{_why(status)}")
        elif _ends_at(spec) > now:
            held.append(pod)
    if pending:
        shown = "; ".join(sorted(pending)[:MAX_SHOWN])
        text = f"leases that the broker has yet to revoke: {len(pending)}: {shown}"
        return condition(before, "SecretsReleased", "False", "RevocationPending", text, now)
    if held:
        text = f"leases that run: {len(held)}, of pods: {len(set(held))}"
        return condition(before, "SecretsReleased", "True", "LeasesHeld", text, now)
    if revoked:
        text = f"no lease runs; leases that were revoked as nodes lost trust: {revoked}"
        return condition(before, "SecretsReleased", "False", "LeasesRevoked", text, now)
    text = "no pod of it holds a secret now" if workload.secrets else "it lists no secret"
    return condition(before, "SecretsReleased", "False", "NothingReleased", text, now)


def _of(state: ClusterState, workload: SensitiveWorkload, spec: Mapping[str, Any]) -> bool:
    namespace = str(spec.get("namespace"))
    pod = state.pod(namespace, str(spec.get("podName")))
    if pod is not None and pod.uid == spec.get("podUID"):
        return (namespace, pod.service_account) in workload.subjects
    # Its pod is gone, and with it who it was: by namespace and secret.
    return any(subject[0] == namespace for subject in workload.subjects) and spec.get("secret") in workload.secrets


def _ends_at(spec: Mapping[str, Any]) -> int:
    try:
        return int(datetime.fromisoformat(str(spec.get("expires"))).timestamp())
    except ValueError:
        return 0


def _why(status: Mapping[str, Any]) -> str:
    failing = [part for part in status.get("conditions") or [] if part.get("type") == REVOKED]
    return f" ({failing[0].get('message')})" if failing else ""
