"""Ends pods on nodes that lost their trust: eviction, then the policy's fallback; slowly where it was only silence."""

from __future__ import annotations

import threading
import time

import structlog

from admission.controller.loss import Ending, next_step
from admission.controller.meter import ControllerMeter
from admission.controller.observed import ObservedPod
from admission.controller.writer import Writer
from admission.kube import KubeConflict, KubeDenied, KubeNotFound, KubeUnavailable

AGAIN_SECONDS = 1.0
LOST_EVENT = "NodeVerificationLost"


class Evictions:
    """What was asked of which pod, and the pace of endings for silence. Safe to use from any thread."""

    def __init__(self, writer: Writer, silent_per_minute: int, meter: ControllerMeter | None = None) -> None:
        self._writer = writer
        self._meter = ControllerMeter() if meter is None else meter
        self._pause_seconds = 60.0 / silent_per_minute
        self._lock = threading.Lock()
        self._asked: dict[str, float] = {}
        self._deleted: set[str] = set()
        self._next_silent = 0.0

    def forget(self, pod_uid: str) -> None:
        """The pod is gone, or its node passes again."""
        with self._lock:
            self._asked.pop(pod_uid, None)
            self._deleted.discard(pod_uid)

    def end(self, pod: ObservedPod, ending: Ending) -> float | None:
        """Takes the next step towards the pod's end. Returns when to look again, in seconds; None when all is done."""
        uid, now = str(pod.pod.uid), time.monotonic()
        with self._lock:
            asked = self._asked.get(uid)
            if uid in self._deleted:
                return None
            if asked is None and ending.cause == "silent":
                # Attack on availability: an outage of the verifier must not end a whole fleet in one stroke.
                wait = self._next_silent - now
                if wait > 0:
                    return wait
                self._next_silent = now + self._pause_seconds
            first = asked is None
            if first:
                self._asked[uid] = now
        if first:
            self._meter.ending(ending.cause, "begun")
            note = " ".join(f"{failure.code.value} ({failure.line()})." for failure in ending.failures[:4])
            structlog.get_logger().warning(
                "pod_ending", namespace=pod.pod.namespace, name=pod.pod.name, cause=ending.cause, note=note
            )
            self._writer.announce_pod(pod, LOST_EVENT, f"node {pod.pod.node_name} is not verified any more: {note}")
        step = next_step(ending.on_loss, None if asked is None else now - asked)
        match step:
            case "evict" if pod.pod.deleting:
                return self._hurry(pod, ending, first=first)
            case "evict":
                self._evict(pod, ending)
                return AGAIN_SECONDS
            case "delete":
                self._writer.delete(_path(pod), uid, ending.on_loss.grace_period_seconds)
                self._meter.ending(ending.cause, "deleted")
                with self._lock:
                    self._deleted.add(uid)
                return None
            case "leave":
                return None

    def _hurry(self, pod: ObservedPod, ending: Ending, *, first: bool) -> float:
        # Attack: a pod that is being deleted already, with a grace of a year, would outlive its node's trust.
        if first:
            self._writer.delete(_path(pod), str(pod.pod.uid), ending.on_loss.grace_period_seconds)
        return AGAIN_SECONDS

    def _evict(self, pod: ObservedPod, ending: Ending) -> None:
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.pod.name, "namespace": pod.pod.namespace},
            "deleteOptions": {
                "gracePeriodSeconds": ending.on_loss.grace_period_seconds,
                "preconditions": {"uid": pod.pod.uid},
            },
        }
        try:
            self._writer.create(f"{_path(pod)}/eviction", body)
        except (KubeNotFound, KubeConflict):
            return
        except (KubeUnavailable, KubeDenied) as refusal:
            # 429: a disruption budget. Asked again until the grace is over, and then nobody is asked.
            self._meter.ending(ending.cause, "refused")
            structlog.get_logger().info("eviction_refused", name=pod.pod.name, reason=str(refusal))


def _path(pod: ObservedPod) -> str:
    return f"/api/v1/namespaces/{pod.pod.namespace}/pods/{pod.pod.name}"
