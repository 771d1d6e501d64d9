"""Events on a pod and its owner that say why something was denied: what `kubectl describe` shows.

Written by a thread of their own, from a queue that drops when it is full: no decision waits for them, and none depends
on them. The same words about the same pod are written once a minute at most, and of all no more than `MAX_A_MINUTE`.
Whoever reaches the webhook's port can make up reviews that are denied, so nothing in one becomes part of an address.
"""

from __future__ import annotations

import queue
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import structlog

from admission.clock import Clock
from admission.cluster_view import PodIdentity
from admission.decision import Deny
from admission.kube import KubeClient, KubeNotFound
from admission.review import Review
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure, Refusal

MAX_WAITING = 1024
MAX_MESSAGE_CHARACTERS = 1024
"""core/v1 Event: validation refuses longer notes."""
REPEAT_SECONDS = 60.0
MAX_REMEMBERED = 4096
MAX_A_MINUTE = 300
"""Attack: made-up reviews, each with other words, until the API server's store is full of Events."""
REQUEST_SECONDS = 5.0
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
"""Of pods and namespaces (RFC 1123). The API server sends no others."""

_BINDINGS = ("pods/binding", "bindings")
EventReason = Literal["BindingDenied", "PodDenied", "SecretReleaseDenied"]


@dataclass(frozen=True, slots=True)
class Notice:
    """What to tell about a pod. `owners` is None where the pod exists and names its owners itself."""

    namespace: str
    pod_name: str
    pod_uid: str
    reason: EventReason
    message: str
    owners: tuple[Mapping[str, Any], ...] | None


def notice_of(review: Review, denial: Deny) -> Notice | None:
    """What to tell of a denied review; None for a dry run, for what the caller sees himself, and for "try again"."""
    transient = {ReasonCode.POD_UNKNOWN, ReasonCode.VIEW_STALE}
    if review.dry_run or review.operation != "CREATE" or any(f.code in transient for f in denial.failures):
        return None
    message = message_of(denial.failures)
    metadata = review.object.get("metadata") or {}
    # Attack: a namespace `x/secrets/y?` in a made-up review, for which our token would ask.
    names = (review.namespace, *((str(metadata.get("name")),) if review.target in _BINDINGS else ()))
    if not all(_NAME.fullmatch(name) for name in names):
        return None
    if review.target in _BINDINGS:
        uid = str(metadata.get("uid") or "")
        return Notice(review.namespace, str(metadata.get("name")), uid, "BindingDenied", message, None)
    if review.target == "pods":
        found = metadata.get("ownerReferences")
        owners = tuple(owner for owner in found if isinstance(owner, dict)) if isinstance(found, list) else ()
        return Notice(review.namespace, "", "", "PodDenied", message, owners) if owners else None
    return None


def release_notice(identity: PodIdentity, failures: tuple[Failure, ...]) -> Notice:
    """What to tell of a release that was denied to a pod on its node."""
    message = message_of(failures)
    return Notice(identity.namespace, identity.pod_name, identity.pod_uid, "SecretReleaseDenied", message, None)


def message_of(failures: tuple[Failure, ...]) -> str:
    """Failures as one text for people, within an Event's limit."""
    text = " ".join(f"{failure.code.value} ({failure.line()}). {failure.code.remedy}" for failure in failures[:8])
    return text if len(text) <= MAX_MESSAGE_CHARACTERS else text[: MAX_MESSAGE_CHARACTERS - 3] + "..."


class EventWriter:
    """Writes notices as Events in the name of `component`; `start` once."""

    def __init__(self, client: KubeClient, component: str, clock: Clock) -> None:
        self._client, self._component, self._clock = client, component, clock
        self._waiting: queue.Queue[Notice] = queue.Queue(MAX_WAITING)
        self._told: dict[Notice, float] = {}
        self._minute, self._in_minute = float("-inf"), 0
        self._lock = threading.Lock()

    def start(self) -> None:
        threading.Thread(target=self._run, name="events", daemon=True).start()

    def tell(self, notice: Notice | None) -> None:
        """Returns at once. A notice that was told within the last minute, or finds the queue full, is dropped."""
        if notice is None or not self._is_news(notice):
            return
        try:
            self._waiting.put_nowait(notice)
        except queue.Full:
            structlog.get_logger().warning("event_dropped", reason=notice.reason, namespace=notice.namespace)

    def _is_news(self, notice: Notice) -> bool:
        now = time.monotonic()
        plain = Notice(notice.namespace, notice.pod_name, notice.pod_uid, notice.reason, notice.message, None)
        with self._lock:
            told = self._told.get(plain)
            if told is not None and now - told < REPEAT_SECONDS:
                return False
            if now - self._minute >= REPEAT_SECONDS:
                self._minute, self._in_minute = now, 0
            if self._in_minute >= MAX_A_MINUTE:
                return False
            self._in_minute += 1
            if len(self._told) >= MAX_REMEMBERED:
                self._told.clear()
            self._told[plain] = now
        return True

    def _run(self) -> None:
        while True:
            notice = self._waiting.get()
            try:
                self._write(notice)
            except Refusal as refusal:
                structlog.get_logger().info("event_not_written", namespace=notice.namespace, reason=str(refusal))
            except Exception as error:  # noqa: BLE001 - the thread must outlive whatever one pod's owners look like
                structlog.get_logger().error("event_failed", error=type(error).__name__)

    def _write(self, notice: Notice) -> None:
        owners = notice.owners
        if notice.pod_name:
            path = f"/api/v1/namespaces/{notice.namespace}/pods/{notice.pod_name}"
            try:
                pod = self._client.request("GET", path, timeout_seconds=REQUEST_SECONDS)
            except KubeNotFound:
                return
            metadata = pod.get("metadata") or {}
            if notice.pod_uid and metadata.get("uid") != notice.pod_uid:
                return
            me = {"apiVersion": "v1", "kind": "Pod", "name": notice.pod_name, "uid": metadata.get("uid")}
            self._post(notice, me)
            owners = tuple(metadata.get("ownerReferences") or ())
        # An object has one controller; a made-up one may claim thousands.
        owner = next((one for one in owners or () if one.get("controller") is True), None)
        if owner is not None:
            self._post(notice, owner)

    def _post(self, notice: Notice, about: Mapping[str, Any]) -> None:
        name, at = str(about.get("name")), datetime.fromtimestamp(self._clock(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        fields = {field: about.get(field) for field in ("apiVersion", "kind", "name", "uid")}
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{name[:200]}.", "namespace": notice.namespace},
            "involvedObject": {**fields, "namespace": notice.namespace},
            "type": "Warning",
            "reason": notice.reason,
            "message": notice.message,
            "source": {"component": self._component},
            "firstTimestamp": at,
            "lastTimestamp": at,
            "count": 1,
        }
        path = f"/api/v1/namespaces/{notice.namespace}/events"
        self._client.request("POST", path, event, timeout_seconds=REQUEST_SECONDS)
