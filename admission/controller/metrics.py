"""Figures of the controller: whether it hears and leads, how nodes stand, how fast a fall takes the label, what waits.

Every replica sees the whole cluster and says so; what it did is zero in those that never led. No label has a name of a
node, a pod, a workload or a secret in it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from admission.clock import Clock
from admission.controller.leadership import Leadership
from admission.controller.meter import PREFIX, ControllerMeter
from admission.controller.node_reconciler import NodeReconciler
from admission.controller.overview import Overview
from admission.controller.results_stream import ResultsStream
from admission.controller.standing import policy_standing
from admission.controller.view import ControllerView
from admission.exposition import view_families
from admission.informers import Informer
from admission.lease_records import UnreadableRecord
from admission.view_measures import ViewMeasures, measures_of
from admission.work_queue import WorkQueue
from verifier.wire.failures import Failure


@dataclass(frozen=True, slots=True)
class Watched:
    """The parts that the figures are read from, as they are when somebody asks."""

    view: ControllerView
    leadership: Leadership
    stream: ResultsStream
    queue: WorkQueue[tuple[str, str]]
    nodes: NodeReconciler
    overview: Overview


class ControllerCollector(Collector):
    """All figures of one controller."""

    def __init__(self, meter: ControllerMeter, parts: Watched, clock: Clock, lost_lines: Callable[[], int]) -> None:
        self._meter, self._parts, self._clock, self._lost_lines = meter, parts, clock, lost_lines

    def collect(self) -> Iterable[Metric]:
        parts = self._parts
        for name, what, value in (
            ("leader", "Whether this replica leads.", float(parts.leadership.holds())),
            ("stream_alive", "Whether all that the verifier said is here.", float(parts.stream.alive())),
            (
                "stream_silent_seconds",
                "How long ago the verifier's stream said anything.",
                parts.stream.silent_seconds(),
            ),
            (
                "fall_unwritten_seconds",
                "For how long a fall is known and not written.",
                parts.nodes.oldest_unwritten_seconds(),
            ),
            ("gates_waiting", "Pods that wait at the gate.", float(len(parts.view.gated()))),
        ):
            yield GaugeMetricFamily(f"{PREFIX}_{name}", what, value=value)
        load = parts.queue.load()
        work = {"ready": load.ready, "busy": load.busy, "failing": load.failing}
        yield _gauge("work", "Objects to reconcile.", ("state",), {(state,): n for state, n in work.items()})
        yield self._nodes()
        yield _gauge(
            "pods",
            "Sensitive pods by how they stand.",
            ("standing",),
            {(name,): n for name, n in parts.overview.pods().items()},
        )
        yield self._revocations()
        yield from self._meter.families()
        yield from view_families(PREFIX, self._measures())
        yield CounterMetricFamily(f"{PREFIX}_log_lines_lost", "Log lines that nobody took.", value=self._lost_lines())

    def _nodes(self) -> Metric:
        view, now = self._parts.view, self._clock()
        policies = view.all_policies()
        counts: Counter[tuple[str, ...]] = Counter(
            {
                (policy.name, standing): 0
                for policy in policies
                for standing in ("passed", "intruded", "fallen", "unproven")
            }
        )
        for observed in view.nodes.values():
            found = view.result_of(observed.node)
            result = None if isinstance(found, Failure) else found
            intruded = bool(policies) and bool(view.intruders(observed.node.name))
            for policy in policies:
                standing = policy_standing(view, observed.node, policy, result, now)
                if standing.failures:
                    counts[policy.name, "fallen" if standing.fallen else "unproven"] += 1
                else:
                    counts[policy.name, "intruded" if intruded else "passed"] += 1
        return _gauge("nodes", "Nodes by how they stand with each policy.", ("policy", "standing"), counts)

    def _revocations(self) -> Metric:
        counts: Counter[tuple[str, ...]] = Counter({("open",): 0, ("failing",): 0})
        for record in self._parts.view.releases.values():
            if record.open:
                counts[("open",) if record.failing is None else ("failing",)] += 1
        return _gauge("revocations", "Leases ordered revoked and not answered for.", ("state",), counts)

    def _measures(self) -> ViewMeasures:
        view = self._parts.view
        informers: Mapping[str, Informer[Any]] = {
            "allow-list": view.allow_list,
            "attestations": view.attestations,
            "nodes": view.nodes,
            "pods": view.pods,
            "policies": view.policies,
            "releases": view.releases,
            "workloads": view.workloads,
        }
        return measures_of(
            {kind: [map(_fault_of, informer.moment()[1].values())] for kind, informer in informers.items()},
            {kind: informer.alive_at for kind, informer in informers.items()},
            time.monotonic(),
        )


def _fault_of(kept: object) -> object:
    return kept.fault if isinstance(kept, UnreadableRecord) else kept


def _gauge(name: str, what: str, labels: tuple[str, ...], values: Mapping[tuple[str, ...], int]) -> Metric:
    family = GaugeMetricFamily(f"{PREFIX}_{name}", what, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family
