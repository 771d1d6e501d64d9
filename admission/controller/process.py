"""Puts the controller together and runs it: informers, stream, leadership, heartbeat and workers, each in its thread.

Every replica watches and listens all the time, so that one that takes over knows what stands; only the leader works.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from uuid import uuid4

import structlog

from admission.assembly import CurrentKeys, result_keys
from admission.clock import Clock
from admission.controller.eviction import Evictions
from admission.controller.gates import Gates
from admission.controller.heartbeat import ResultsHeartbeat
from admission.controller.leadership import Leadership
from admission.controller.meter import ControllerMeter
from admission.controller.metrics import ControllerCollector, Watched
from admission.controller.node_reconciler import NodeReconciler
from admission.controller.overview import Overview
from admission.controller.policy_reports import PolicyReports
from admission.controller.results_book import ResultsBook
from admission.controller.results_stream import ALIVE_SECONDS, ResultsStream
from admission.controller.settings import ControllerSettings
from admission.controller.view import ControllerView
from admission.controller.writer import Writer
from admission.exposition import Exposition
from admission.kube import KubeClient
from admission.results import InMemorySequences, ResultVerifier
from admission.work_queue import WorkQueue
from verifier.wire.result import Verdict

Work = tuple[str, str]
"""Kind of work, and the name of what it is about."""

COALESCE_SECONDS = 0.5
"""Statuses, counts and the node set wait this long, so that a burst of changes is one write."""
LEASES_SECONDS = 0.1
"""A node with a thousand leases is not looked at for each of them; what a look finds new is ordered at once."""
BAD_NEWS_SECONDS = -60.0
"""A verdict that is not affirming goes ahead of all that waits, so that no wave of good news holds it up."""
REPORT_SECONDS = 5.0
"""So much later than statuses, since each look reads all reports."""
LOOK_SECONDS = 0.1
KEYS_SECONDS, AWAITED_KEYS_SECONDS = 5.0, 1.0
PATIENCE_SECONDS = 3.0
"""How long a new process waits for the verifier before it works with what is stored alone."""


class Controller:
    """One replica. `run` returns after `stop`."""

    def __init__(self, settings: ControllerSettings, clock: Clock) -> None:
        """Raises the refusals of its parts, but not the verifier's absence: `run` waits for its keys."""
        kubeconfig = settings.kubernetes.kubeconfig
        client = KubeClient.in_cluster() if kubeconfig is None else KubeClient.from_kubeconfig(kubeconfig)
        self._identity = settings.identity or f"{socket.gethostname()}-{uuid4().hex[:8]}"
        self._keys: CurrentKeys = result_keys(settings.results, may_come_later=True)
        verifier = ResultVerifier(self._keys, settings.results.issuer, settings.results.audience, InMemorySequences())
        self._book = ResultsBook(verifier, self._keys.refresh)
        self._queue: WorkQueue[Work] = WorkQueue(self._reconcile)
        self._view = ControllerView(client, self._book, settings.namespace, self._changed)
        stream = settings.verifier
        self._stream = ResultsStream(stream.url, stream.ca_file, stream.token_file, self._take)
        self._leadership = Leadership(client, settings.namespace, self._identity, self._stream.alive)
        writer = self._writer = Writer(client, self._leadership.holds)
        self._meter, self._clock = ControllerMeter(), clock
        evictions = Evictions(writer, settings.silent_evictions_per_minute, self._meter)
        self._nodes = NodeReconciler(self._view, self._book, writer, evictions, clock, self._meter)
        self._gates, self._overview = Gates(self._view, writer, clock), Overview(self._view, writer, clock)
        self._reports = PolicyReports(self._view, client, writer, clock) if settings.policy_reports else None
        self._heartbeat = ResultsHeartbeat(writer, settings.namespace, self._identity, self._fresh)
        self._workers = settings.workers
        self._stop = threading.Event()
        self._leads = False
        self._patience_until = 0.0
        self._threads: list[threading.Thread] = []

    def healthy(self) -> bool:
        """Whether every part's thread lives; the verifier or the API server being away is no illness of ours."""
        watching = all(informer.runs() for informer in self._view.informers())
        return not self._stop.is_set() and watching and all(thread.is_alive() for thread in self._threads)

    def figures(self, lost_lines: Callable[[], int]) -> Exposition:
        """What there is to scrape; `lost_lines` tells how many log lines were lost."""
        parts = Watched(self._view, self._leadership, self._stream, self._queue, self._nodes, self._overview)
        return Exposition(ControllerCollector(self._meter, parts, self._clock, lost_lines))

    def stop(self) -> None:
        self._stop.set()

    def run(self) -> None:
        """Waits for the verifier's keys, works until `stop`, then gives the lead back."""
        informers = self._view.informers()
        for informer in informers:
            informer.start()
        while any(informer.alive_at is None for informer in informers):
            if self._stop.wait(LOOK_SECONDS):
                return
        # Without keys nothing that is stored counts: who led now would take every label off.
        while self._keys.awaited():
            if self._stop.wait(AWAITED_KEYS_SECONDS):
                return
            self._keys.refresh()
        self._prime()
        leading = self._start(self._leadership.run, "leadership")
        self._threads = [
            leading,
            self._start(self._stream.run, "stream"),
            self._start(self._heartbeat.run, "heartbeat"),
            self._start(self._writer.write_events, "events"),
            *(self._start(self._queue.work, "worker") for _ in range(self._workers)),
        ]
        structlog.get_logger().info("controller_started", identity=self._identity)
        keys_at = time.monotonic()
        self._patience_until = keys_at + PATIENCE_SECONDS
        while not self._stop.wait(LOOK_SECONDS):
            self._follow_leadership()
            if time.monotonic() - keys_at > KEYS_SECONDS:
                keys_at = time.monotonic()
                self._keys.refresh()
        parts: tuple[Callable[[], None], ...] = (
            self._queue.stop,
            self._heartbeat.stop,
            self._writer.stop_events,
            self._stream.stop,
            *(informer.stop for informer in informers),
            self._leadership.stop,
        )
        for stop in parts:
            stop()
        leading.join(timeout=5.0)

    def _start(self, target: Callable[[], None], name: str) -> threading.Thread:
        thread = threading.Thread(target=target, name=f"controller {name}", daemon=True)
        thread.start()
        return thread

    def _prime(self) -> None:
        """What earlier replicas stored is known again, where the verifier's signature is on it."""
        for kept in self._view.attestations.values():
            token = kept.status.get("result")
            if isinstance(token, str):
                self._book.take(token)

    def _follow_leadership(self) -> None:
        holds = self._leadership.holds()
        if holds == self._leads:
            return
        if holds and not self._stream.alive() and time.monotonic() < self._patience_until:
            # What is stored may have ended while nobody wrote: hear the verifier first, and take no label in vain.
            return
        self._leads = holds
        structlog.get_logger().info("leadership_changed", identity=self._identity, leads=holds)
        self._meter.start_over()
        if holds:
            self._overview.take_over()
            if self._reports is not None:
                self._reports.take_over()
            self._everything()
        else:
            self._queue.clear()

    def _fresh(self) -> bool:
        # A fall that cannot be written is as bad as one that was not heard.
        unwritten = self._nodes.oldest_unwritten_seconds()
        return self._leadership.holds() and self._stream.alive() and unwritten < ALIVE_SECONDS

    def _take(self, token: str) -> None:
        node = self._book.take(token)
        entry = None if node is None else self._book.entry(node)
        if entry is not None and self._leads:
            bad = entry.result.verdict is not Verdict.AFFIRMING
            if bad:
                self._meter.fell(entry.result.node_name)
            self._queue.add(("node", entry.result.node_name), BAD_NEWS_SECONDS if bad else 0.0)

    def _marks_changed(self) -> None:
        for pod in self._view.gated():
            self._changed("gate", f"{pod.pod.namespace}/{pod.pod.name}")
        for name in self._view.workloads.names():
            self._changed("workload", name)
        for name in self._view.policies.names():
            self._changed("policy", name)
        self._changed("node-set", "")

    def _changed(self, kind: str, name: str) -> None:
        if not self._leads:
            return
        match kind:
            case "everything":
                self._everything()
            case "node" | "gate":
                self._queue.add((kind, name))
            case "leases":
                self._queue.add(("node", name), LEASES_SECONDS)
            case _:
                self._queue.add((kind, name), COALESCE_SECONDS)
                if kind == "workload":
                    self._report()

    def _report(self) -> None:
        if self._reports is not None:
            self._queue.add(("reports", ""), REPORT_SECONDS)

    def _everything(self) -> None:
        for name in {*self._view.nodes.names(), *self._view.attestations.names(), *self._view.leased_nodes()}:
            self._queue.add(("node", name))
        self._marks_changed()
        self._report()

    def _reconcile(self, work: Work) -> float | None:
        kind, name = work
        if not self._leads:
            return None
        match kind:
            case "node":
                return self._nodes.reconcile(name)
            case "gate":
                return self._gates.reconcile(name)
            case "marks":
                self._marks_changed()
                return None
            case "workload":
                return self._overview.workload(name)
            case "policy":
                return self._overview.policy(name)
            case "node-set":
                return self._overview.node_set(name)
            case "reports" if self._reports is not None:
                return self._reports.reconcile()
            case _:
                raise AssertionError(kind)
