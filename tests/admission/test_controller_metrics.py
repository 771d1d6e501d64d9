"""The controller's figures: how fast a fall takes the label, what was done to pods, how nodes stand, what waits."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from admission.controller.eviction import Evictions
from admission.controller.leadership import Leadership
from admission.controller.meter import ControllerMeter
from admission.controller.metrics import ControllerCollector, Watched
from admission.controller.node_marks import VERIFIED_LABEL
from admission.controller.node_reconciler import NodeReconciler
from admission.controller.observed import ObservedNode, ObservedPod
from admission.controller.overview import Overview
from admission.controller.results_stream import ResultsStream
from admission.controller.settings import ControllerSettings
from admission.controller.view import Kept
from admission.exposition import Exposition
from admission.kube import KubeDenied, KubeUnavailable
from admission.settings import read_settings
from admission.trust_objects import ATTESTATION_GATE
from admission.work_queue import QueueLoad, WorkQueue
from tests.admission.figures import explained, figures, served
from tests.admission.lease_objects import FAILED, ORDERED, OVERWRITTEN, REVOKED, a_release
from tests.admission.test_controller_reconcile import ATTESTATION, BAD, HOLDS, World
from tests.admission.test_controller_work import eventually
from tests.admission.world import NODE, NODE_UID, a_node, a_pod, a_policy, a_result
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure, Refusal

LABELLED = {VERIFIED_LABEL: "true", HOLDS: "true"}


class Metered(World):
    """A world with a meter, and the figures of a replica over it."""

    def __init__(self, leads: bool = True, **on_loss: Any) -> None:
        super().__init__(leads, **on_loss)
        self.seconds, self.meter = [100.0], ControllerMeter(lambda: self.seconds[0])
        evictions = Evictions(self.writer, 60, self.meter)
        self.nodes = NodeReconciler(self.view, self.book, self.writer, evictions, lambda: self.now, self.meter)
        self.overview = Overview(self.view, self.writer, lambda: self.now)
        self.queue: WorkQueue[tuple[str, str]] = WorkQueue(lambda _: None)
        client = self.view.nodes._client
        self.stream = ResultsStream("https://verifier", Path("ca"), Path("token"), lambda _: None)
        self.leadership = Leadership(client, "nodewarden-system", "me", self.stream.alive)

    def text(self) -> bytes:
        parts = Watched(self.view, self.leadership, self.stream, self.queue, self.nodes, self.overview)
        return Exposition(ControllerCollector(self.meter, parts, lambda: self.now, lambda: 3))()

    def figure(self, name: str, **labels: str) -> float:
        inside = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
        return figures(self.text())[f"nodewarden_controller_{name}" + (f"{{{inside}}}" if inside else "")]

    def removals(self) -> tuple[int, float]:
        """How many there were, and their seconds together."""
        count, seconds = (self.figure(f"label_removal_seconds_{part}") for part in ("count", "sum"))
        return int(count), round(seconds, 6)

    def at(self, seconds: float) -> None:
        self.seconds[0] = 100.0 + seconds


@pytest.fixture
def world() -> Metered:
    return Metered()


# --- from a fall to the label ---


def test_a_fall_is_timed_from_its_arrival_until_the_label_is_gone(world: Metered) -> None:
    world.meter.fell(NODE)
    world.at(0.4)
    world.take(**BAD)
    world.reconcile()
    assert world.removals() == (1, 0.4)
    assert world.figure("label_removal_seconds_bucket", le="0.25") == 0
    assert world.figure("label_removal_seconds_bucket", le="0.5") == 1


def test_a_fall_whose_label_cannot_be_taken_is_timed_until_it_is(world: Metered) -> None:
    world.take(**BAD)
    world.api.refuses["/api/v1/nodes/"] = KubeDenied(403, "Forbidden", "nodes", "no")
    with pytest.raises(Refusal):
        world.nodes.reconcile(NODE)
    assert world.removals()[0] == 0
    world.at(7)
    world.api.refuses.clear()
    world.reconcile()
    assert world.removals() == (1, 7)


def test_a_label_that_is_forged_onto_a_node_that_fell_long_ago_is_no_slow_removal(world: Metered) -> None:
    world.take(**BAD)
    world.reconcile()
    world.put_node({})
    world.meter.fell(NODE)
    world.reconcile()
    world.at(1000)
    world.put_node(LABELLED)
    world.reconcile()
    assert world.removals() == (1, 0)


def test_a_bad_word_that_no_policy_minds_times_nothing(world: Metered) -> None:
    world.meter.fell(NODE)
    world.reconcile()
    world.at(500)
    world.take(**BAD)
    world.reconcile()
    assert world.removals() == (1, 0)


@pytest.mark.parametrize("end", [ControllerMeter.start_over, lambda meter: meter.settled(NODE)])
def test_what_another_replica_began_or_has_ended_is_not_timed(
    world: Metered, end: Callable[[ControllerMeter], None]
) -> None:
    world.meter.fell(NODE)
    end(world.meter)
    world.meter.unlabelled(NODE)
    assert world.removals()[0] == 0


def test_a_fall_that_cannot_be_written_shows(world: Metered) -> None:
    world.take(**BAD)
    world.api.refuses[ATTESTATION] = KubeUnavailable("x", "away")
    with pytest.raises(Refusal):
        world.nodes.reconcile(NODE)
    eventually("it grows", lambda: world.figure("fall_unwritten_seconds") > 0)


# --- pods ---


def test_evictions_are_counted_by_cause_and_step() -> None:
    world = Metered(grace_period_seconds=0)
    world.take(**BAD)
    world.reconcile()
    world.put_node({})
    world.reconcile()
    text = figures(world.text())
    begun = 'nodewarden_controller_evictions_total{cause="fallen",step="begun"}'
    assert text[begun] == 1
    assert world.figure("evictions_total", cause="fallen", step="deleted") == 1


def test_an_eviction_that_is_refused_counts_at_each_try(world: Metered) -> None:
    world.take(**BAD)
    world.api.refuses["eviction"] = KubeUnavailable("x", "429 TooManyRequests")
    world.reconcile()
    world.put_node({})
    world.reconcile()
    world.reconcile()
    assert world.figure("evictions_total", cause="fallen", step="begun") == 1
    assert world.figure("evictions_total", cause="fallen", step="refused") >= 2


def test_sensitive_pods_are_counted_by_how_they_stand(world: Metered) -> None:
    assert world.figure("pods", standing="violating") == 0
    world.put_pod(ObservedPod(a_pod(name="waits", uid="w", gates=(ATTESTATION_GATE,)), (), None))
    world.overview.workload("llm")
    stands = {name: world.figure("pods", standing=name) for name in ("verified", "gated", "violating")}
    assert stands == {"verified": 1, "gated": 1, "violating": 0}
    assert world.figure("gates_waiting") == 1
    world.take(**BAD)
    world.overview.workload("llm")
    assert world.figure("pods", standing="violating") == 1
    world.view.workloads._put(("", "llm"), None)
    world.overview.workload("llm")
    assert world.figure("pods", standing="violating") == 0


# --- nodes and leases ---


def test_nodes_are_counted_by_policy_and_standing(world: Metered) -> None:
    for name, result in (("bad", a_result(**{**BAD, "node_name": "bad", "node_id": "aa" * 32})), ("silent", None)):
        world.view.nodes._put(("", name), ObservedNode(a_node(name=name), {}, (), "7"))
        if result is not None:
            assert world.book.take(world.signer.result(result)) == name
    world.view.policies._put(
        ("", "audited"), Kept(a_policy(name="audited", baselines={"other": (1, 0, 0)}), "u", 1, {})
    )

    def counts(policy: str) -> dict[str, float]:
        standings = ("passed", "intruded", "fallen", "unproven")
        return {name: world.figure("nodes", policy=policy, standing=name) for name in standings}

    assert counts("h200-prod") == {"passed": 1, "intruded": 0, "fallen": 1, "unproven": 1}
    assert counts("audited") == {"passed": 0, "intruded": 0, "fallen": 1, "unproven": 2}
    world.put_pod(ObservedPod(a_pod(name="root", namespace="x", node_name=NODE), ("hostPID",), None))
    assert counts("h200-prod")["intruded"] == 1


def test_revocations_are_open_until_they_fail_or_are_answered(world: Metered) -> None:
    for number, status in enumerate(({}, ORDERED, OVERWRITTEN, FAILED, REVOKED)):
        world.put_release(a_release(status, podUID=f"pod-{number}"))
    assert {state: world.figure("revocations", state=state) for state in ("open", "failing")} == {
        "open": 2,
        "failing": 1,
    }


def test_a_record_that_cannot_be_read_counts_as_such_and_its_order_as_any_other(world: Metered) -> None:
    world.put_release(a_release(podUID="readable"))
    assert world.figure("view_unreadable", kind="releases") == 0
    world.put_release(a_release(ORDERED, expires="soon"))
    assert world.figure("view_objects", kind="releases") == 2
    assert world.figure("view_unreadable", kind="releases") == 1
    assert world.figure("revocations", state="open") == 1


# --- the process ---


def test_work_is_counted_by_whether_it_waits_runs_or_fails() -> None:
    hold, failing = threading.Event(), KubeUnavailable("x", "away")

    def reconcile(key: str) -> None:
        if key == "fails":
            raise failing
        hold.wait(10)

    queue: WorkQueue[str] = WorkQueue(reconcile)
    queue.add("later", 60)
    queue.add("fails")
    worker = threading.Thread(target=queue.work)
    worker.start()
    eventually("it failed", lambda: queue.load().failing == 1)
    queue.add("held", -60)
    eventually("one is in hand", lambda: queue.load().busy == 1)
    queue.add("next")
    load = queue.load()
    assert (load.busy, load.failing) == (1, 1)
    assert load.ready in (1, 2)  # "fails" may be due again
    hold.set()
    queue.stop()
    worker.join(5)
    assert WorkQueue(print).load() == QueueLoad(0, 0, 0)


def test_a_replica_that_never_heard_the_verifier_and_does_not_lead_says_so(world: Metered) -> None:
    assert (world.figure("leader"), world.figure("stream_alive")) == (0, 0)
    assert world.figure("stream_silent_seconds") == math.inf
    assert world.figure("view_silent_seconds", source="nodes") == math.inf
    assert world.figure("view_objects", kind="pods") == 1
    assert world.figure("work", state="ready") == 0
    assert world.figure("log_lines_lost_total") == 3


def test_an_object_that_cannot_be_read_shows(world: Metered) -> None:
    world.view.workloads._put(("", "other"), Failure(ReasonCode.MANIFEST_INVALID, "x"))
    assert world.figure("view_unreadable", kind="workloads") == 1


def test_every_figure_is_explained_and_none_else(world: Metered) -> None:
    assert served(world.text()) == explained("nodewarden_controller")


def test_no_figure_names_a_node_a_pod_or_a_workload(world: Metered) -> None:
    for fields in (a_release(ORDERED), a_release(ORDERED, name="lease-of-llm")):
        world.put_release(fields)
    world.take(**BAD)
    world.reconcile()
    world.overview.workload("llm")
    text = world.text().decode()
    assert not [name for name in (NODE, NODE_UID, "llm", "llm-0", "lease-of-llm") if name in text]


def test_figures_and_policy_reports_are_off_unless_they_are_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "controller.yaml"
    content: dict[str, Any] = {
        "verifier": {"url": "https://v", "ca_file": "ca", "token_file": "token"},
        "results": {"issuer": "i", "audience": "a", "jwks_file": "jwks"},
    }
    file.write_text(json.dumps(content))
    plain = read_settings(ControllerSettings, file)
    assert (plain.metrics, plain.policy_reports) == (None, False)
    file.write_text(json.dumps({**content, "metrics": {}, "policy_reports": True}))
    given = read_settings(ControllerSettings, file)
    assert given.policy_reports
    assert given.metrics is not None
    assert (given.metrics.host, given.metrics.port) == ("127.0.0.1", 9445)
