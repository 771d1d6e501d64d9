"""Figures as Prometheus reads them: one text of all collectors of a process, made when somebody asks."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from admission.view_measures import ViewMeasures

KEPT_SECONDS = 1.0
"""Attack: somebody who asks all the time, while each answer looks at every node."""


class Exposition:
    """All figures of one process as text; made at most once in `KEPT_SECONDS`."""

    def __init__(self, *collectors: Collector) -> None:
        self._registry = CollectorRegistry()
        for collector in collectors:
            self._registry.register(collector)
        ProcessCollector(registry=self._registry)
        self._made_at, self._text = float("-inf"), b""

    def __call__(self) -> bytes:
        """The text in Prometheus' format 0.0.4."""
        now = time.monotonic()
        if now - self._made_at >= KEPT_SECONDS:
            self._text = generate_latest(self._registry)
            self._made_at = now
        return self._text


class Timings:
    """A histogram of times. Safe to use from any thread."""

    def __init__(self, bounds_seconds: tuple[float, ...]) -> None:
        """`bounds_seconds` rise; a time lies in the first bucket whose bound it does not exceed."""
        self._bounds = bounds_seconds
        self._lock = threading.Lock()
        self._buckets = [0] * (len(bounds_seconds) + 1)
        self._sum = 0.0

    def took(self, seconds: float) -> None:
        with self._lock:
            self._buckets[bisect_left(self._bounds, seconds)] += 1
            self._sum += seconds

    def samples(self) -> tuple[list[tuple[str, float]], float]:
        """The buckets, each with its bound and all that lie below it, and the sum of the times."""
        with self._lock:
            buckets, total = list(self._buckets), self._sum
        bounds = [*map(str, self._bounds), "+Inf"]
        return list(zip(bounds, accumulate(buckets), strict=True)), total

    def family(self, name: str, what: str) -> Metric:
        """The histogram as Prometheus takes it."""
        return HistogramMetricFamily(name, what, *self.samples())


def view_families(prefix: str, measures: ViewMeasures) -> Iterator[Metric]:
    """The size of a view and how long its sources are silent, under names that begin with `prefix`."""
    for name, what, label, values in (
        ("objects", "Objects in memory.", "kind", measures.objects),
        ("unreadable", "Objects that could not be read: they deny.", "kind", measures.unreadable),
        ("silent_seconds", "How long ago each source was last heard of.", "source", measures.silent_seconds),
    ):
        family = GaugeMetricFamily(f"{prefix}_view_{name}", what, labels=(label,))
        for key, value in values.items():
            family.add_metric((key,), value)
        yield family
