"""What the controller counts as it works: how fast falls take labels, and steps to end pods."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Literal

from prometheus_client.core import CounterMetricFamily, Metric

from admission.controller.loss import Cause
from admission.exposition import Timings

PREFIX = "nodewarden_controller"
BOUNDS_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)

EndingStep = Literal["begun", "refused", "deleted"]
"""Of ending one pod: its eviction was asked for the first time; the API server refused it, as it may each second; it
was deleted, its grace being over."""


class ControllerMeter:
    """Counts what the controller does. Safe to use from any thread."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._falls: dict[str, float] = {}
        self._endings: Counter[tuple[Cause, EndingStep]] = Counter()
        self._removals = Timings(BOUNDS_SECONDS)

    def fell(self, node: str) -> None:
        """A bad verdict of the node is known, from now on unless it was before: its labels are to go."""
        with self._lock:
            self._falls.setdefault(node, self._monotonic())

    def unlabelled(self, node: str) -> None:
        """The API server took labels off the node."""
        with self._lock:
            since = self._falls.pop(node, None)
        if since is not None:
            self._removals.took(self._monotonic() - since)

    def settled(self, node: str) -> None:
        """The node has the labels that it shall have, or is gone."""
        with self._lock:
            self._falls.pop(node, None)

    def start_over(self) -> None:
        """Another replica leads, or led: what was begun is not ours to time."""
        with self._lock:
            self._falls.clear()

    def ending(self, cause: Cause, step: EndingStep) -> None:
        """A step was taken to end a pod."""
        with self._lock:
            self._endings[cause, step] += 1

    def families(self) -> Iterator[Metric]:
        """The counts as Prometheus takes them."""
        yield self._removals.family(
            f"{PREFIX}_label_removal_seconds", "From a fallen verdict's arrival until the node's label was gone."
        )
        with self._lock:
            endings = dict(self._endings)
        family = CounterMetricFamily(
            f"{PREFIX}_evictions", "Steps to end pods on nodes that lost their trust.", labels=("cause", "step")
        )
        for labels, count in endings.items():
            family.add_metric(labels, count)
        yield family
