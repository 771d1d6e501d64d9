"""Writes to the API server, by the leading replica only, and Events about what it did."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from uuid import uuid4

import structlog

from admission.cluster_objects import Node
from admission.controller.lease_object import lease_times
from admission.controller.observed import ObservedPod
from admission.kube import JSON_PATCH, MERGE_PATCH, KubeClient, KubeConflict, KubeNotFound, KubeUnavailable
from verifier.wire.failures import MAX_TEXT_CHARACTERS, Refusal, printable

MAX_NOTE_CHARACTERS = 1000
MAX_WAITING_EVENTS = 1000
EVENT_PAUSE_SECONDS = 0.05
"""Between two Events: when many nodes fall at once, the API server's time goes to labels and taints first."""
COMPONENT = "nodewarden-controller"


class Writer:
    """Every write of the controller goes through here. Methods raise as `KubeClient.request`."""

    def __init__(self, client: KubeClient, leads: Callable[[], bool]) -> None:
        self._client, self._leads = client, leads
        self._events: queue.Queue[tuple[str, dict[str, Any]] | None] = queue.Queue(MAX_WAITING_EVENTS)
        self._no_more_events = threading.Event()

    def create(self, path: str, body: object) -> Any:
        return self._write("POST", path, body, "application/json")

    def merge(self, path: str, body: object) -> Any:
        """Applies a merge patch (RFC 7396)."""
        return self._write("PATCH", path, body, MERGE_PATCH)

    def patch(self, path: str, operations: list[dict[str, Any]]) -> Any:
        """Applies a JSON patch (RFC 6902)."""
        return self._write("PATCH", path, operations, JSON_PATCH)

    def delete(self, path: str, uid: str, grace_seconds: int | None = None) -> None:
        """The object with this UID is being deleted, or gone."""
        grace = {} if grace_seconds is None else {"gracePeriodSeconds": grace_seconds}
        try:
            self._write("DELETE", path, {"preconditions": {"uid": uid}, **grace}, "application/json")
        except (KubeNotFound, KubeConflict):
            return

    def _write(self, method: str, path: str, body: object, content_type: str) -> Any:
        # Asked before each write: a replica that lost the lead in the middle of a round must not go on with it.
        if not self._leads():
            raise KubeUnavailable(path, "this replica does not lead")
        return self._client.request(method, path, body, content_type=content_type)

    def announce_pod(self, pod: ObservedPod, reason: str, note: str, *, and_owner: bool = True) -> None:
        """An Event on the pod, and on what made it, soon. Never raises: an Event that is lost changes nothing."""
        namespace = pod.pod.namespace
        self._announce(namespace, "v1", "Pod", pod.pod.name, str(pod.pod.uid), reason, note)
        if pod.owner is not None and and_owner:
            owner = pod.owner
            note = f"pod {pod.pod.name}: {note}"
            self._announce(namespace, owner.api_version, owner.kind, owner.name, owner.uid, reason, note)

    def announce_node(self, node: Node, reason: str, note: str) -> None:
        """An Event on the node, soon. Never raises."""
        self._announce("default", "v1", "Node", node.name, str(node.uid), reason, note)

    def _announce(
        self, namespace: str, api_version: str, kind: str, name: str, uid: str, reason: str, note: str
    ) -> None:
        about: dict[str, str] = {"apiVersion": api_version, "kind": kind, "name": name, "uid": uid}
        if kind != "Node":
            about["namespace"] = namespace
        event = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": f"{name[:200]}.{uuid4().hex[:16]}", "namespace": namespace},
            "eventTime": lease_times(),
            "type": "Warning",
            "reason": reason,
            "action": reason,
            "note": _bounded(note),
            "regarding": about,
            "reportingController": f"nodewarden.dev/{COMPONENT}",
            "reportingInstance": COMPONENT,
        }
        try:
            self._events.put_nowait((namespace, event))
        except queue.Full:
            structlog.get_logger().warning("event_not_written", about=f"{kind} {name}", reason="too many")

    def write_events(self) -> None:
        """Writes Events, one after the other, with pauses and beside all other work, until `stop_events`."""
        while (waiting := self._events.get()) is not None and not self._no_more_events.is_set():
            namespace, event = waiting
            try:
                self.create(f"/apis/events.k8s.io/v1/namespaces/{namespace}/events", event)
            except Refusal as refusal:
                structlog.get_logger().warning("event_not_written", reason=str(refusal))
            self._no_more_events.wait(EVENT_PAUSE_SECONDS)

    def stop_events(self) -> None:
        """Events that still wait are not written: whoever takes over sees for itself what there is to tell."""
        self._no_more_events.set()
        with suppress(queue.Full):
            self._events.put_nowait(None)


def _bounded(note: str) -> str:
    step = MAX_TEXT_CHARACTERS
    clean = "".join(printable(note[at : at + step]) for at in range(0, len(note), step))
    return clean if len(clean) <= MAX_NOTE_CHARACTERS else clean[: MAX_NOTE_CHARACTERS - 3] + "..."
