"""Figures for Prometheus: what was decided and how fast, and how good the view is that decides.

A review costs a few additions of plain integers; everything else is worked out when somebody asks. No figure has a name
in it that a caller chose: resources are those that the webhook knows, codes are ours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Literal

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from admission.clock import Clock
from admission.cluster_view import AdmissionState
from admission.exposition import Exposition, Timings, view_families
from admission.view_measures import ViewMeasures
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure

BOUNDS_SECONDS = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1.0)
KNOWN_TARGETS = frozenset(
    {
        "bindings",
        "namespaces",
        "pods",
        *(f"pods/{part}" for part in ("attach", "binding", "ephemeralcontainers", "exec", "portforward")),
        *(f"pods/{part}" for part in ("proxy", "resize", "status")),
    }
)
Hook = Literal["validate", "mutate"]
Outcome = Literal["allowed", "warned", "audited", "denied", "refused", "failed"]
"""`refused`: no review, or none that could be taken in (HTTP 4xx, 503). `failed`: our own fault (HTTP 500)."""


class ReviewMeter:
    """Counts reviews. Written by the thread that answers them; read by any."""

    def __init__(self) -> None:
        self._reviews: Counter[tuple[Hook, str, Outcome]] = Counter()
        self._reasons: Counter[tuple[Hook, Outcome, ReasonCode]] = Counter()
        self._seconds: Mapping[Hook, Timings] = {
            "validate": Timings(BOUNDS_SECONDS),
            "mutate": Timings(BOUNDS_SECONDS),
        }

    def count(self, hook: Hook, target: str, outcome: Outcome, failures: Collection[Failure] = ()) -> None:
        """One review of `target` (resource/subresource) came to `outcome`, for the codes of `failures`."""
        self._reviews[hook, target if target in KNOWN_TARGETS else "other", outcome] += 1
        if failures:
            for code in {failure.code for failure in failures}:
                self._reasons[hook, outcome, code] += 1

    def took(self, hook: Hook, seconds: float) -> None:
        """A review, from its bytes to the answer's, took so long."""
        self._seconds[hook].took(seconds)

    def families(self) -> Iterator[Metric]:
        """The counts as Prometheus takes them."""
        reviews = CounterMetricFamily(
            "nodewarden_admission_reviews", "Reviews answered.", labels=("hook", "resource", "decision")
        )
        # Copied at once: the thread that answers goes on meanwhile.
        for labels, count in dict(self._reviews).items():
            reviews.add_metric(labels, count)
        yield reviews
        reasons = CounterMetricFamily(
            "nodewarden_admission_review_reasons",
            "Reviews with a reason code; one review may have several.",
            labels=("hook", "decision", "code"),
        )
        for (hook, outcome, code), count in dict(self._reasons).items():
            reasons.add_metric((hook, outcome, code.value), count)
        yield reasons
        seconds = HistogramMetricFamily(
            "nodewarden_admission_review_seconds",
            "Time of the answering thread from a review's bytes to its answer's.",
            labels=("hook",),
        )
        for hook, timings in self._seconds.items():
            seconds.add_metric((hook,), *timings.samples())
        yield seconds


class ViewCollector(Collector):
    """The view's figures and the nodes' verdicts, as they are when somebody asks."""

    def __init__(self, measures: Callable[[], ViewMeasures], state: Callable[[], AdmissionState], clock: Clock) -> None:
        self._measures, self._state, self._clock = measures, state, clock

    def collect(self) -> Iterable[Metric]:
        yield from view_families("nodewarden_admission", self._measures())
        yield from self._verdicts()

    def _verdicts(self) -> Iterator[Metric]:
        state, now = self._state(), self._clock()
        standing: Counter[str] = Counter()
        ages: list[int] = []
        for name in state.node_names():
            node = state.node(name)
            result = None if node is None else state.result_of(node)
            if result is None or isinstance(result, Failure):
                standing["none" if result is None else result.code.value] += 1
                continue
            standing[result.verdict.value if now < result.expires_at else ReasonCode.RESULT_EXPIRED.value] += 1
            ages.append(now - result.issued_at)
        nodes = GaugeMetricFamily(
            "nodewarden_admission_nodes", "Nodes by verdict, or by the reason for having none.", labels=("verdict",)
        )
        for verdict, count in standing.items():
            nodes.add_metric((verdict,), count)
        yield nodes
        age = GaugeMetricFamily(
            "nodewarden_admission_verdict_age_seconds", "Age of the nodes' results.", labels=("quantile",)
        )
        ages.sort()
        for quantile in (0.5, 0.99, 1.0) if ages else ():
            age.add_metric((str(quantile),), ages[min(len(ages) - 1, int(quantile * len(ages)))])
        yield age


class _ReviewCollector(Collector):
    def __init__(self, meter: ReviewMeter, lost_lines: Callable[[], int]) -> None:
        self._meter, self._lost_lines = meter, lost_lines

    def collect(self) -> Iterable[Metric]:
        yield from self._meter.families()
        yield CounterMetricFamily(
            "nodewarden_admission_log_lines_lost", "Log lines that nobody took.", value=self._lost_lines()
        )


def webhook_figures(meter: ReviewMeter, view: ViewCollector, lost_lines: Callable[[], int]) -> Exposition:
    """All figures of one webhook."""
    return Exposition(_ReviewCollector(meter, lost_lines), view)
