"""Figures of the broker: what it answered and how fast, which leases run, and how its revocations go.

No label has a name in it that a caller or an author of objects chose: outcomes and codes are ours.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Literal

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from admission.clock import Clock
from admission.exposition import Timings, view_families
from admission.leases import LeaseState
from admission.view_measures import ViewMeasures
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure, Refusal

PREFIX = "nodewarden_broker"
BOUNDS_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)

Outcome = Literal["released", "denied", "refused", "unavailable", "failed"]
"""`refused`: the request has no form, or does not prove who asks. `unavailable`: asking again may help. `failed`: our
own fault."""
RevocationStep = Literal["done", "failed"]


class BrokerMeter:
    """Counts what the broker does. Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[Outcome] = Counter()
        self._reasons: Counter[tuple[Outcome, ReasonCode]] = Counter()
        self._revocations: Counter[RevocationStep] = Counter()
        self._secrets = 0
        self._seconds = Timings(BOUNDS_SECONDS)

    def answered(self, outcome: Outcome, seconds: float, failures: Iterable[Failure] = ()) -> None:
        """A request, from its first byte to its answer, came to `outcome` for the codes of `failures`."""
        self._seconds.took(seconds)
        with self._lock:
            self._requests[outcome] += 1
            for code in {failure.code for failure in failures}:
                self._reasons[outcome, code] += 1

    def released(self, secrets: int) -> None:
        """So many secrets were handed out."""
        with self._lock:
            self._secrets += secrets

    def revocation(self, step: RevocationStep) -> None:
        """A revocation is done, or an attempt at one failed and comes again."""
        with self._lock:
            self._revocations[step] += 1

    def families(self) -> Iterator[Metric]:
        """The counts as Prometheus takes them."""
        with self._lock:
            requests, reasons = dict(self._requests), dict(self._reasons)
            revocations, secrets = dict(self._revocations), self._secrets
        family = CounterMetricFamily(f"{PREFIX}_requests", "Requests for secrets answered.", labels=("outcome",))
        for outcome, count in requests.items():
            family.add_metric((outcome,), count)
        yield family
        family = CounterMetricFamily(
            f"{PREFIX}_request_reasons",
            "Requests with a reason code; one request may have several.",
            labels=("outcome", "code"),
        )
        for (outcome, code), count in reasons.items():
            family.add_metric((outcome, code.value), count)
        yield family
        yield self._seconds.family(f"{PREFIX}_request_seconds", "From a request's first byte to its answer.")
        yield CounterMetricFamily(f"{PREFIX}_secrets_released", "Secrets handed out.", value=secrets)
        family = CounterMetricFamily(f"{PREFIX}_revocations", "Revocations of leases by step.", labels=("step",))
        for step, count in revocations.items():
            family.add_metric((step,), count)
        yield family


class BrokerCollector(Collector):
    """All figures of one broker, as they are when somebody asks."""

    def __init__(
        self,
        meter: BrokerMeter,
        leases: Callable[[int], Mapping[LeaseState, int]],
        measures: Callable[[], ViewMeasures],
        clock: Clock,
        lost_lines: Callable[[], int],
    ) -> None:
        """`leases` counts the recorded leases at a time; it may raise Refusal, and then there is no such figure."""
        self._meter, self._leases, self._measures = meter, leases, measures
        self._clock, self._lost_lines = clock, lost_lines

    def collect(self) -> Iterable[Metric]:
        yield from self._meter.families()
        family = GaugeMetricFamily(f"{PREFIX}_leases", "Recorded leases by state.", labels=("state",))
        with suppress(Refusal):
            for state, count in self._leases(self._clock()).items():
                family.add_metric((state,), count)
        yield family
        yield from view_families(PREFIX, self._measures())
        yield CounterMetricFamily(f"{PREFIX}_log_lines_lost", "Log lines that nobody took.", value=self._lost_lines())
