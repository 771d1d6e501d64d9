"""SecretRelease objects: what the broker writes of a lease, and what it reads back of it. Pure.

The spec is written once and never changed. Of the status, the controller owns the condition `RevocationRequested`,
which is an order, and the broker owns `revokedAt` and the condition `Revoked`, which are its answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from admission.cluster_objects import Reader
from admission.decision import Release
from admission.leases import Lease, LeaseState, end_of, key_of, lease_key
from admission.trust_objects import API_VERSION, SecretGrant
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure, MalformedEvidence, Rejection, printable

REQUESTED = "RevocationRequested"
REVOKED = "Revoked"
MAX_CONDITIONS = 16
MAX_MESSAGE_CHARACTERS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    """What every SecretRelease says: which secret, to whom, and how far its revocation is.

    `name` is the lease's key, `uid` its id; `conditions` are those of others and of ours. All parts ask here, and
    nowhere else, whether a lease was ordered revoked and whether that has its answer.
    """

    name: str
    uid: str
    secret: str
    namespace: str
    pod_name: str
    pod_uid: str
    node_name: str
    revoked: bool
    conditions: tuple[Mapping[str, Any], ...]

    @property
    def ordered(self) -> bool:
        """Whether its revocation was ordered, or was done without an order: nothing is released under it again."""
        return self.revoked or self.has(REQUESTED)

    @property
    def answered(self) -> bool:
        """Whether the broker revoked it and said so; an answer of which a part was overwritten is none."""
        return self.revoked and self.has(REVOKED)

    @property
    def open(self) -> bool:
        """Whether an order waits for its answer."""
        return self.ordered and not self.answered

    @property
    def failing(self) -> str | None:
        """For what the answer to an open order fails, in the broker's words; None where it did not say so."""
        told = [part for part in self.conditions if (part.get("type"), part.get("status")) == (REVOKED, "False")]
        return printable(str(told[0].get("message"))) if told and self.open else None

    @property
    def revocation(self) -> Literal["ordered", "revoked"] | None:
        """How far its revocation is; None where nobody asked for it."""
        if not self.ordered:
            return None
        return "revoked" if self.answered else "ordered"

    def has(self, kind: str) -> bool:
        """Whether the condition `kind` is true."""
        return any((part.get("type"), part.get("status")) == (kind, "True") for part in self.conditions)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRecord(_Record):
    """One SecretRelease, whose name is the key of what it records."""

    version: str
    key_sha256: str
    expires_at: int

    def ended(self, now: int) -> bool:
        """Whether its time is over: at its very end it counts no more."""
        return self.expires_at <= now

    def state(self, now: int) -> LeaseState:
        """How it stands at `now`."""
        return self.revocation or ("ended" if self.ended(now) else "live")

    def lease(self) -> Lease:
        return Lease(self.name, self.uid, self.secret, self.expires_at)

    def standing(self, key_sha256: str, now: int) -> Lease | None:
        """The lease for whoever holds that binding key; None once it has ended, so that another may follow it.

        A revoked one has no successor: that pod, in that boot, does not get the secret again. Raises Rejection
        `lease-revoked`, `lease-held`.
        """
        self.require_not_revoked()
        if self.ended(now):
            return None
        if self.key_sha256 != key_sha256:
            raise Rejection(ReasonCode.LEASE_HELD, f"secrets.{self.secret}", self.uid)
        return self.lease()

    def require_not_revoked(self) -> None:
        """Raises Rejection `lease-revoked`."""
        if self.ordered:
            raise Rejection(ReasonCode.LEASE_REVOKED, f"secrets.{self.secret}", self.uid)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableRecord(_Record):
    """A SecretRelease that cannot be read as a lease, for `fault`; what it does not say in plain text is empty.

    Nobody gets anything under it. Whoever takes leases back counts it as one that may run: it may be one.
    """

    fault: Failure

    def state(self, now: int) -> LeaseState:  # noqa: ARG002 - its end is not known
        """How it stands; without an order nobody knows."""
        return self.revocation or "unreadable"


Recorded = LeaseRecord | UnreadableRecord


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


def observe_record(fields: Mapping[str, Any]) -> Recorded:
    """The lease that the object in `fields` records, or, where it cannot be read, what keeps it from being overlooked.

    Raises MalformedEvidence `manifest-invalid` for an object that not even names itself.
    """
    try:
        return read_record(fields)
    except MalformedEvidence as refusal:
        # Attack, or a newer version's object: a lease of a form that we cannot read, to outlive its node's fall.
        return _unreadable(fields, refusal.failure)


def _unreadable(fields: Mapping[str, Any], fault: Failure) -> UnreadableRecord:
    reader = Reader(ReasonCode.MANIFEST_INVALID, "secretreleases")
    metadata, spec, status = (_plain_object(fields.get(name)) for name in ("metadata", "spec", "status"))
    conditions = status.get("conditions")
    return UnreadableRecord(
        name=reader.required_text(metadata, "name"),
        uid=reader.required_text(metadata, "uid"),
        secret=_plain_text(spec.get("secret")),
        namespace=_plain_text(spec.get("namespace")),
        pod_name=_plain_text(spec.get("podName")),
        pod_uid=_plain_text(spec.get("podUID")),
        node_name=_plain_text(spec.get("nodeName")),
        revoked=bool(status.get("revokedAt")),
        conditions=tuple(part for part in conditions if isinstance(part, dict))[:MAX_CONDITIONS]
        if isinstance(conditions, list)
        else (),
        fault=fault,
    )


def _plain_object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _plain_text(value: object) -> str:
    return value if isinstance(value, str) else ""


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
