"""What a workload's status says of the secrets that its pods hold: pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, assert_never

from admission.cluster_view import ClusterState
from admission.controller.conditions import condition
from admission.lease_records import Recorded, UnreadableRecord
from admission.trust_objects import SensitiveWorkload
from verifier.wire.failures import printable

MAX_SHOWN = 8


def secrets_released(
    state: ClusterState, workload: SensitiveWorkload, releases: Iterable[Recorded], before: Mapping[str, Any], now: int
) -> dict[str, Any]:
    """The condition `SecretsReleased` of `workload`: true while pods of it hold leases and none is to be taken back.

    A revocation without an answer shows for as long as it has none, also when its pod is gone. A record that cannot be
    read may be of a lease that runs, so that nobody can say what is held.
    """
    held: list[str] = []
    pending: list[str] = []
    unreadable: list[str] = []
    revoked = 0
    for record in releases:
        if not _of(state, workload, record):
            continue
        pod = f"{record.namespace}/{record.pod_name}"
        match record.state(now):
            case "ordered":
                why = "" if record.failing is None else f" ({record.failing})"
                pending.append(printable(f"{record.secret} of {pod} on {record.node_name}") + why)
            case "unreadable":
                unreadable.append(printable(record.name))
            case "live":
                held.append(pod)
            case "revoked":
                revoked += 1
            case "ended":
                pass
            case unknown:
                assert_never(unknown)
    if pending:
        text = f"leases that the broker has yet to revoke: {len(pending)}: {_some(pending, '; ')}"
        return condition(before, "SecretsReleased", "False", "RevocationPending", text, now)
    if unreadable:
        text = f"records of leases that cannot be read: {len(unreadable)}: {_some(unreadable, ', ')}"
        return condition(before, "SecretsReleased", "Unknown", "RecordsUnreadable", text, now)
    if held:
        text = f"leases that run: {len(held)}, of pods: {len(set(held))}"
        return condition(before, "SecretsReleased", "True", "LeasesHeld", text, now)
    if revoked:
        text = f"no lease runs; leases that were revoked as nodes lost trust: {revoked}"
        return condition(before, "SecretsReleased", "False", "LeasesRevoked", text, now)
    text = "no pod of it holds a secret now" if workload.secrets else "it lists no secret"
    return condition(before, "SecretsReleased", "False", "NothingReleased", text, now)


def _some(shown: list[str], between: str) -> str:
    return between.join(sorted(shown)[:MAX_SHOWN])


def _of(state: ClusterState, workload: SensitiveWorkload, record: Recorded) -> bool:
    pod = state.pod(record.namespace, record.pod_name)
    if pod is not None and pod.uid == record.pod_uid:
        return (record.namespace, pod.service_account) in workload.subjects
    # Its pod is gone, and with it who it was: by namespace and secret. What a record does not say excludes nobody.
    guessed = isinstance(record, UnreadableRecord)
    in_namespace = any(subject[0] == record.namespace for subject in workload.subjects)
    return (in_namespace or (guessed and not record.namespace)) and (
        record.secret in workload.secrets or (guessed and not record.secret)
    )
