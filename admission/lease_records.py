"""SecretRelease objects: what the broker writes of a lease, and what it reads back of it. Pure.

The spec is written once and never changed. Of the status, the controller owns the condition `RevocationRequested`,
which is an order, and the broker owns `revokedAt` and the condition `Revoked`, which are its answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from admission.cluster_objects import Reader
from admission.decision import Release
from admission.leases import Lease, end_of, key_of, lease_key
from admission.trust_objects import API_VERSION, SecretGrant
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Rejection, printable

REQUESTED = "RevocationRequested"
REVOKED = "Revoked"
MAX_CONDITIONS = 16
MAX_MESSAGE_CHARACTERS = 1024


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """One SecretRelease. `name` is the lease's key, `uid` its id; `conditions` are those of others and of ours."""

    name: str
    uid: str
    version: str
    secret: str
    namespace: str
    pod_name: str
    pod_uid: str
    node_name: str
    key_sha256: str
    expires_at: int
    revoked: bool
    conditions: tuple[Mapping[str, Any], ...]

    @property
    def ordered(self) -> bool:
        """Whether its revocation was ordered, or was done without an order: nothing is released under it again."""
        return self.revoked or self.has(REQUESTED)

    @property
    def open(self) -> bool:
        """Whether an order waits for its answer; an answer of which a part was overwritten is none."""
        return self.ordered and not (self.revoked and self.has(REVOKED))

    def has(self, kind: str) -> bool:
        """Whether the condition `kind` is true."""
        return any((part.get("type"), part.get("status")) == (kind, "True") for part in self.conditions)

    def lease(self) -> Lease:
        return Lease(self.name, self.uid, self.secret, self.expires_at)

    def standing(self, key_sha256: str, now: int) -> Lease | None:
        """The lease for whoever holds that binding key; None once it has ended, so that another may follow it.

        A revoked one has no successor: that pod, in that boot, does not get the secret again. Raises Rejection
        `lease-revoked`, `lease-held`.
        """
        self.require_not_revoked()
        if self.expires_at <= now:
            return None
        if self.key_sha256 != key_sha256:
            raise Rejection(ReasonCode.LEASE_HELD, f"secrets.{self.secret}", self.uid)
        return self.lease()

    def require_not_revoked(self) -> None:
        """Raises Rejection `lease-revoked`."""
        if self.ordered:
            raise Rejection(ReasonCode.LEASE_REVOKED, f"secrets.{self.secret}", self.uid)


def release_object(release: Release, grant: SecretGrant, key_sha256: str, now: int) -> dict[str, Any]:
    """The SecretRelease of a lease that begins now; its UID, which the API server gives, is the lease's id."""
    pod, node = release.pod, release.node
    evidence = release.result.evidence_sha256
    return {
        "apiVersion": API_VERSION,
        "kind": "SecretRelease",
        "metadata": {"name": key_of(release, grant), "labels": {"app.kubernetes.io/part-of": "nodewarden"}},
        "spec": {
            "secret": grant.name,
            "namespace": pod.namespace,
            "podName": pod.name,
            "podUID": pod.uid,
            "nodeName": node.name,
            "nodeUID": node.uid,
            "bootID": release.boot_id,
            "bindingKeyThumbprint": key_sha256,
            **({} if evidence is None else {"evidenceDigest": evidence}),
            "expires": instant(end_of(release, grant, now)),
        },
    }


def read_record(fields: Mapping[str, Any]) -> LeaseRecord:
    """The lease that the object in `fields` records.

    Raises MalformedEvidence `manifest-invalid`, also when its name is not the key of what it records: a look-up by
    the name would find the wrong lease.
    """
    metadata = fields.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    name = str(metadata.get("name") or "")
    reader = Reader(ReasonCode.MANIFEST_INVALID, f"secretreleases.{printable(name)}")
    spec, status = reader.object(fields, "spec"), reader.object(fields, "status")
    secret, pod_uid = reader.required_text(spec, "secret"), reader.required_text(spec, "podUID")
    key = lease_key(pod_uid, reader.required_text(spec, "nodeUID"), reader.required_text(spec, "bootID"), secret)
    if name != key:
        raise reader.fault("metadata.name", name, key)
    expires = reader.required_text(spec, "expires")
    return LeaseRecord(
        name=name,
        uid=reader.required_text(metadata, "uid"),
        version=reader.required_text(metadata, "resourceVersion"),
        secret=secret,
        namespace=reader.required_text(spec, "namespace"),
        pod_name=reader.required_text(spec, "podName"),
        pod_uid=pod_uid,
        node_name=reader.required_text(spec, "nodeName"),
        key_sha256=reader.required_text(spec, "bindingKeyThumbprint"),
        expires_at=_seconds(expires, reader),
        revoked=bool(reader.text(status, "revokedAt")),
        conditions=tuple(reader.objects(status, "conditions", MAX_CONDITIONS)),
    )


def revoked_status(record: LeaseRecord, message: str, now: int) -> dict[str, Any]:
    """The status that answers an order: the lease is over. `revokedAt`, once written, stays as it is."""
    answer = _condition(record, "True", "LeaseEnded", message, now)
    when = {} if record.revoked else {"revokedAt": instant(now)}
    return {**when, "observedGeneration": 1, "conditions": [*_others(record), answer]}


def failing_status(record: LeaseRecord, message: str, now: int) -> dict[str, Any] | None:
    """The status that shows a revocation that fails, and for what; None where it shows that already."""
    shown = _condition(record, "False", "RevocationFailed", message, now)
    if shown in record.conditions:
        return None
    return {"observedGeneration": 1, "conditions": [*_others(record), shown]}


def instant(seconds: int) -> str:
    """Seconds since 1970 as Kubernetes writes times."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _others(record: LeaseRecord) -> list[Mapping[str, Any]]:
    return [part for part in record.conditions if part.get("type") != REVOKED]


def _condition(record: LeaseRecord, status: str, reason: str, message: str, now: int) -> dict[str, Any]:
    since = next(
        (
            part.get("lastTransitionTime")
            for part in record.conditions
            if (part.get("type"), part.get("status")) == (REVOKED, status)
        ),
        None,
    )
    return {
        "type": REVOKED,
        "status": status,
        "reason": reason,
        "message": printable(message)[:MAX_MESSAGE_CHARACTERS],
        "lastTransitionTime": since or instant(now),
    }


def _seconds(text: str, reader: Reader) -> int:
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise reader.fault("spec.expires", text, "a time") from error
    if found.tzinfo is None:
        raise reader.fault("spec.expires", text, "a time with zone")
    return int(found.timestamp())
