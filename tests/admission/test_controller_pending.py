"""What people are told of pods that wait at the gate: why, what to do, and once for each change."""

from __future__ import annotations

from typing import Any

import pytest

from admission.cluster_objects import PodUid
from admission.controller.gates import AGAIN_SECONDS, Gates
from admission.controller.node_marks import VERIFIED_LABEL
from admission.controller.observed import ObservedNode, ObservedPod, Owner
from admission.controller.pending import PAUSE_SECONDS, PENDING_EVENT
from admission.controller.writer import MAX_NOTE_CHARACTERS
from admission.trust_objects import ATTESTATION_GATE
from tests.admission.test_controller_reconcile import BAD, HOLDS, World
from tests.admission.world import NODE, NOW, a_node, a_pod
from verifier.wire.codes import ReasonCode

OWNER = Owner("apps/v1", "ReplicaSet", "rs", "rs-uid")


class Gated:
    """A world in which no node is labelled and pods wait; `moment` is the monotonic clock."""

    def __init__(self) -> None:
        self.world, self.moment = World(), 100.0
        self.gates = Gates(self.world.view, self.world.writer, lambda: self.world.now, lambda: self.moment)
        self.world.put_node({})
        self.world.take(**BAD)
        self.put("g")

    def put(self, name: str, **changes: Any) -> None:
        pod = a_pod(name=name, uid=PodUid(f"{name}-uid"), gates=(ATTESTATION_GATE,), **changes)
        self.world.put_pod(ObservedPod(pod, (), OWNER))

    def look(self, name: str = "g", later: float = 60.0) -> float | None:
        """Looks now, and, as it is asked to, again after the grace."""
        self.gates.reconcile(f"ml/{name}")
        self.moment += later
        self.world.now += 1
        return self.gates.reconcile(f"ml/{name}")

    def told(self) -> list[tuple[str, str, str]]:
        """(kind, name, note) of the Events since the last call."""
        found = []
        while not self.world.writer._events.empty():
            waiting = self.world.writer._events.get_nowait()
            assert waiting is not None
            _, event = waiting
            assert (event["reason"], event["type"]) == (PENDING_EVENT, "Warning")
            found.append((event["regarding"]["kind"], event["regarding"]["name"], event["note"]))
        return found


@pytest.fixture
def gated() -> Gated:
    return Gated()


def test_a_pod_and_its_owner_are_told_which_node_fails_why_and_what_to_do(gated: Gated) -> None:
    assert gated.look() == AGAIN_SECONDS
    (kind, name, note), (owner_kind, owner_name, owner_note) = gated.told()
    assert ((kind, name), (owner_kind, owner_name)) == (("Pod", "g"), ("ReplicaSet", "rs"))
    assert "waits for a node that is verified for h200-prod." in note
    assert f"{ReasonCode.NODE_NOT_VERIFIED.value} (nodes.{NODE}.verdict: contraindicated" in note
    assert ReasonCode.NODE_NOT_VERIFIED.remedy in note
    assert owner_note == f"pod g: {note}"


def test_nothing_is_told_again_until_something_changes(gated: Gated) -> None:
    gated.look()
    assert len(gated.told()) == 2
    gated.world.now += 20
    gated.look()
    assert gated.told() == []
    gated.world.take(sequence=NOW * 1000 + 2, linux_boot_id="another")
    gated.look()
    notes = [note for _, _, note in gated.told()]
    assert len(notes) == 2
    assert ReasonCode.BOOT_MISMATCH.value in notes[0]


def test_a_pod_that_waits_a_moment_only_is_no_news(gated: Gated) -> None:
    again = gated.gates.reconcile("ml/g")
    assert again is not None
    assert 0 < again < AGAIN_SECONDS
    gated.world.take(sequence=NOW * 1000 + 2)
    gated.world.put_node({VERIFIED_LABEL: "true", HOLDS: "true"})
    gated.look()
    assert gated.told() == []


def test_reasons_that_change_all_the_time_are_told_after_a_pause(gated: Gated) -> None:
    gated.look()
    gated.told()
    gated.world.take(sequence=NOW * 1000 + 2, linux_boot_id="another")
    again = gated.gates.reconcile("ml/g")
    assert again is not None
    assert 0 < again <= PAUSE_SECONDS
    assert gated.told() == []


def test_what_made_many_pods_is_told_once(gated: Gated) -> None:
    for number in range(20):
        gated.put(f"p{number}")
        gated.look(f"p{number}")
    kinds = [kind for kind, _, _ in gated.told()]
    assert (kinds.count("Pod"), kinds.count("ReplicaSet")) == (20, 1)


def test_a_pod_of_the_same_name_is_told_anew(gated: Gated) -> None:
    gated.look()
    gated.told()
    gated.world.view.pods._put(("ml", "g"), None)
    gated.gates.reconcile("ml/g")
    gated.put("g")
    gated.look()
    assert [kind for kind, _, _ in gated.told()] == ["Pod"]


def test_of_many_nodes_some_are_shown_and_the_note_is_bounded(gated: Gated) -> None:
    for number in range(500):
        name = f"cpu-{number}"
        gated.world.view.nodes._put(("", name), ObservedNode(a_node(name=name), {}, (), "7"))
    gated.look()
    note = gated.told()[0][2]
    assert f"nodes.{NODE}.verdict" in note
    assert "Nodes without any result: 500." in note
    assert ReasonCode.RESULT_MISSING.remedy in note
    assert "cpu-" not in note
    assert len(note) <= MAX_NOTE_CHARACTERS


def test_a_node_that_is_kept_from_its_label_by_other_pods_is_a_reason(gated: Gated) -> None:
    gated.world.take(sequence=NOW * 1000 + 2)
    gated.world.put_pod(ObservedPod(a_pod(name="root", node_name=NODE, service_account="x"), ("hostPID",), None))
    gated.look()
    note = gated.told()[0][2]
    assert f"{ReasonCode.NODE_RUNS_INTRUDER.value} (nodes.{NODE}.pods: ml/root (hostPID)" in note
    assert ReasonCode.NODE_RUNS_INTRUDER.remedy in note


def test_a_pod_whose_policy_does_not_exist_is_told_so(gated: Gated) -> None:
    gated.world.view.policies._put(("", "h200-prod"), None)
    gated.look()
    note = gated.told()[0][2]
    assert ReasonCode.POLICY_UNKNOWN.value in note
    assert ReasonCode.POLICY_UNKNOWN.remedy in note


def test_two_pods_of_one_owner_that_are_looked_at_at_once_tell_it_once(
    gated: Gated, monkeypatch: pytest.MonkeyPatch
) -> None:
    gated.put("h")
    for name in ("g", "h"):
        gated.gates.reconcile(f"ml/{name}")
    gated.moment, gated.world.now = gated.moment + 60, gated.world.now + 1
    writer, others = gated.world.writer, ["h"]
    tell = writer.announce_pod

    def announce(*arguments: Any, **options: Any) -> None:
        # Another worker is as far with the other pod, before the first one's Event is written.
        if others:
            gated.gates.reconcile(f"ml/{others.pop()}")
        tell(*arguments, **options)

    monkeypatch.setattr(writer, "announce_pod", announce)
    gated.gates.reconcile("ml/g")
    assert sorted(kind for kind, _, _ in gated.told()) == ["Pod", "Pod", "ReplicaSet"]
