"""Orders to revoke the leases of a fallen node: each given once, beside everything else, until it is written."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from admission.controller.revocation import RevocationOrders
from admission.controller.writer import Writer
from admission.kube import KubeUnavailable
from tests.admission.lease_objects import ORDERED, OVERWRITTEN, REVOKED, a_release
from tests.admission.test_controller_reconcile import BAD, World
from tests.admission.world import NODE, NOW
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Refusal


class Leases:
    """Some leases of the node, and one of another."""

    def __init__(self, count: int, before: Callable[[], object] = lambda: None) -> None:
        self.world = World()
        self.before = before
        plain = self.world.api.request

        def request(method: str, path: str, body: Any = None, **options: Any) -> Any:
            self.before()
            return plain(method, path, body, **options)

        self.world.api.request = request  # type: ignore[method-assign]  # - a slow or broken server
        self.numbers: dict[str, str] = {}
        for number in range(count):
            self.show(number, {})
        self.world.put_release(a_release(nodeName="another"))
        self.orders = RevocationOrders(self.world.view, Writer(self.world.view.nodes._client, lambda: True))

    def show(self, number: int, status: dict[str, Any], **spec: Any) -> None:
        name = self.world.put_release(a_release(status, **{"podUID": f"pod-{number}", **spec}))
        self.numbers[name] = str(number)

    def revoke(self) -> tuple[int, list[Refusal]]:
        refused: list[Refusal] = []
        return self.orders.revoke(NODE, NOW, refused), refused

    def written(self) -> list[str]:
        return [self.numbers[path.split("/")[-2]] for method, path in self.world.api.asked() if method == "PATCH"]


def eventually(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_thousand_leases_are_ordered_beside_the_caller_each_once() -> None:
    answers = threading.Event()
    leases = Leases(1000, lambda: answers.wait(60))
    began = time.monotonic()
    assert leases.revoke() == (1000, [])
    # Not a single one is answered: whoever waited for one would wait for a minute.
    assert time.monotonic() - began < 30
    assert leases.revoke() == (1000, [])
    answers.set()
    eventually(lambda: len(leases.written()) >= 1000)
    assert leases.revoke() == (1000, [])
    time.sleep(0.05)
    assert sorted(leases.written()) == sorted(str(number) for number in range(1000))


def test_a_server_that_does_not_answer_holds_up_nobody() -> None:
    answers = threading.Event()
    leases = Leases(20, lambda: answers.wait(10))
    began = time.monotonic()
    for _ in range(5):
        assert leases.revoke() == (20, [])
    assert time.monotonic() - began < 5
    answers.set()
    eventually(lambda: len(leases.written()) == 20)


@pytest.mark.parametrize("fault", [KubeUnavailable("x", "away"), RuntimeError("a fault of ours")], ids=str)
def test_an_order_that_fails_is_told_at_the_next_look_and_given_again(fault: Exception) -> None:
    failing = [True]

    def answer() -> None:
        if failing[0]:
            raise fault

    leases = Leases(1, answer)
    assert leases.revoke() == (1, [])
    told: list[Refusal] = []

    def look() -> bool:
        told.extend(leases.revoke()[1])
        return bool(told)

    eventually(look)
    assert told[0].code is ReasonCode.KUBERNETES_UNREACHABLE
    failing[0] = False
    eventually(lambda: leases.revoke() == (1, []) and leases.written() == ["0"])


def test_what_is_ordered_or_answered_already_is_not_ordered_again() -> None:
    leases = Leases(2)
    leases.show(0, ORDERED)
    leases.show(1, REVOKED)
    assert leases.revoke() == (1, [])
    time.sleep(0.05)
    assert leases.written() == []


def test_an_answer_of_which_a_part_was_overwritten_is_waited_for_and_not_ordered_again() -> None:
    leases = Leases(1)
    leases.show(0, OVERWRITTEN)
    assert leases.revoke() == (1, [])
    time.sleep(0.05)
    assert leases.written() == []


@pytest.mark.parametrize("gone", ["expires", "bindingKeyThumbprint", "secret", "namespace"])
def test_the_order_reaches_a_record_that_cannot_be_read(gone: str) -> None:
    leases = Leases(0)
    leases.numbers["odd"] = "odd"
    leases.world.put_release(a_release({"conditions": "none"}, name="odd", **{gone: None}))
    assert leases.revoke() == (1, [])
    eventually(lambda: leases.written() == ["odd"])
    body = leases.world.api.requests[-1][2]
    assert body["metadata"] == {"uid": "uid-of-odd"}
    assert [part["type"] for part in body["status"]["conditions"]] == ["RevocationRequested"]
    leases.world.put_release(a_release(ORDERED, name="odd", **{gone: None}))
    assert leases.revoke() == (1, [])
    leases.world.put_release(a_release(REVOKED, name="odd", **{gone: None}))
    assert leases.revoke() == (0, [])


def test_a_record_that_becomes_unreadable_stays_its_nodes() -> None:
    leases = Leases(1)
    leases.show(0, {})
    leases.show(0, {}, expires="soon")
    assert leases.revoke() == (1, [])
    eventually(lambda: leases.written() == ["0"])


def test_a_record_that_names_no_node_is_counted_and_falls_with_none() -> None:
    leases = Leases(0)
    leases.world.put_release(a_release(name="odd", nodeName=None))
    states = sorted(record.state(NOW) for record in leases.world.view.releases.values())
    assert states == ["live", "unreadable"]
    assert leases.world.view.leased_nodes() == ("another",)
    assert ("leases", "") not in leases.world.changed
    assert leases.revoke() == (0, [])


@pytest.mark.parametrize("first", ["the Node goes", "the verdict falls"])
def test_the_leases_of_a_node_that_was_deleted_are_revoked_as_well(first: str) -> None:
    leases = Leases(3)
    world = leases.world
    steps: list[Callable[[], object]] = [lambda: world.view.nodes._put(("", NODE), None), lambda: world.take(**BAD)]
    for step in steps if first == "the Node goes" else reversed(steps):
        step()
    assert world.nodes.reconcile(NODE) == 1.0
    eventually(lambda: sorted(leases.written()) == ["0", "1", "2"])
    for number in range(3):
        leases.show(number, REVOKED)
    assert world.nodes.reconcile(NODE) is None
    assert set(world.view.leased_nodes()) == {NODE, "another"}


def test_a_node_that_was_deleted_while_it_was_trusted_keeps_its_leases_to_their_end() -> None:
    leases = Leases(3)
    leases.world.view.nodes._put(("", NODE), None)
    assert leases.world.nodes.reconcile(NODE) is None
    assert leases.written() == []
