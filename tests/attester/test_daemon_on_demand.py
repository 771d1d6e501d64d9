"""When a node attests on demand, and what no verifier can make it do. Time passes at once; the network is scripted."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from typing import cast

import pytest

from attester.daemon import SPREAD_SECONDS, Service
from attester.long_poll import LONGEST_HOLD_SECONDS, LongPoll
from attester.on_demand import EARLY_SECONDS, OnDemand
from attester.pauses import Pauses
from tests.attester.timeline import SILENT, Script, Timeline, answer, challenge, highest, lowest
from verifier.wanted import HOLD_SECONDS
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Refusal, Rejection, Unavailable
from verifier.wire.signed_request import SignedRequest
from verifier.wire.verdict import EvidenceResponse

REQUEST = SignedRequest(b"body", b"signature")
DOWN = Unavailable(ReasonCode.VERIFIER_UNREACHABLE, "x")
NO_ROUTE = Rejection(ReasonCode.VERIFIER_REFUSED, "/v1/attest-now", ReasonCode.ROUTE_UNKNOWN.value)
Held = tuple[float, bool | Refusal]
"""After how many seconds a hold is answered, and how."""
FOR_EVER = (1e9, False)


class _Verifier:
    """In place of `LongPoll`: each hold goes as planned, and the last of the plan again and again."""

    def __init__(self, bell: Timeline, *holds: Held) -> None:
        self._bell = bell
        self._holds = list(holds)
        self._outcome: bool | Refusal | None = None
        self.begun: list[float] = []
        self.broken_off: list[float] = []

    def begin(self, request: SignedRequest) -> None:
        assert request is REQUEST
        self.begun.append(self._bell.now)
        seconds, outcome = self._holds.pop(0) if len(self._holds) > 1 else self._holds[0]
        self._bell.plan(seconds, lambda: self._answer(outcome))

    def break_off(self) -> None:
        self.broken_off.append(self._bell.now)
        self._answer(DOWN)

    def take(self) -> bool | Refusal | None:
        outcome, self._outcome = self._outcome, None
        return outcome

    def _answer(self, outcome: bool | Refusal) -> None:
        self._outcome = outcome


class _Node:
    """A service whose rounds and holds are planned."""

    def __init__(self, *holds: Held, ask: Callable[[], SignedRequest] = lambda: REQUEST) -> None:
        self.bell = Timeline()
        self.verifier = _Verifier(self.bell, *holds)
        poll = cast("LongPoll", self.verifier)
        self._early = OnDemand(ask, poll, Pauses(2, 60, highest), self.bell.monotonic)

    def rounds(self, *outcomes: EvidenceResponse | Refusal) -> list[float]:
        """When each round began."""
        script = Script(self.bell, *outcomes)
        service = Service(script, Pauses(2, 60, highest), highest, SILENT, self.bell, self._early, self.bell.monotonic)
        service.run()
        return script.times


def _steady(count: int, seconds: int = 60) -> list[EvidenceResponse]:
    return [answer(challenge(1, seconds))] * count


def test_evidence_that_is_wanted_comes_at_once_and_the_interval_begins_anew() -> None:
    node = _Node((7.0, True), FOR_EVER)
    assert node.rounds(*_steady(3)) == [0.0, 7.0 + SPREAD_SECONDS, 67.0 + SPREAD_SECONDS]


def test_a_fleet_is_spread_over_a_moment() -> None:
    for uniform, last in ((lowest, 7.0), (highest, 7.0 + SPREAD_SECONDS)):
        bell = Timeline()
        early = OnDemand(
            lambda: REQUEST, cast("LongPoll", _Verifier(bell, (7.0, True))), Pauses(2, 60, highest), bell.monotonic
        )
        script = Script(bell, *_steady(2))
        Service(script, Pauses(2, 60, highest), uniform, SILENT, bell, early, bell.monotonic).run()
        assert script.times == [0.0, last]


def test_holds_follow_one_another_and_disturb_no_interval() -> None:
    node = _Node((HOLD_SECONDS, False))
    assert node.rounds(*_steady(4)) == [0.0, 60.0, 120.0, 180.0]
    # A signature for each, and no more than one in all the time that it is held.
    assert node.verifier.begun == [0.0, 55.0, 110.0, 165.0]


def test_no_hold_begins_before_the_node_attested() -> None:
    node = _Node(FOR_EVER)
    node.rounds(DOWN, DOWN, *_steady(2))
    assert node.verifier.begun == [6.0]


def test_a_verifier_that_always_wants_evidence_gets_it_at_most_every_ten_seconds() -> None:
    node = _Node((0.0, True))
    times = node.rounds(*_steady(50))
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert min(gaps[1:]) >= EARLY_SECONDS
    # Each of them cost one signature more.
    assert len(node.verifier.begun) <= len(times)


def test_a_verifier_that_answers_without_holding_makes_the_tpm_sign_at_most_every_ten_seconds() -> None:
    node = _Node((0.0, False))
    assert node.rounds(*_steady(3)) == [0.0, 60.0, 120.0]
    assert node.verifier.begun == [float(second) for second in range(0, 120, int(EARLY_SECONDS))]


@pytest.mark.parametrize("failure", [DOWN, NO_ROUTE, Unavailable(ReasonCode.VERIFIER_UNREACHABLE, "x", "HTTP 504")])
def test_holds_that_fail_are_tried_with_longer_pauses_and_the_interval_goes_on(failure: Refusal) -> None:
    node = _Node((0.0, failure))
    assert node.rounds(*_steady(6)) == [0.0, 60.0, 120.0, 180.0, 240.0, 300.0]
    assert node.verifier.begun == [0.0, 10.0, 20.0, 30.0, 46.0, 78.0, 138.0, 198.0, 258.0]


def test_a_proxy_that_cuts_each_hold_costs_only_the_time_between() -> None:
    node = _Node((30.0, DOWN), (30.0, DOWN), (5.0, True), FOR_EVER)
    assert node.rounds(*_steady(3)) == [0.0, 60.0, 66.0 + 5.0 + SPREAD_SECONDS]
    assert node.verifier.begun[:3] == [0.0, 32.0, 66.0]


def test_a_hold_that_never_ends_is_broken_off() -> None:
    node = _Node(FOR_EVER)
    node.rounds(*_steady(3))
    assert LONGEST_HOLD_SECONDS > HOLD_SECONDS
    assert node.verifier.broken_off == [LONGEST_HOLD_SECONDS]
    assert node.verifier.begun == [0.0, LONGEST_HOLD_SECONDS + 2.0]


def test_a_pause_after_a_failed_round_stands_whatever_the_verifier_wants() -> None:
    node = _Node((61.0, True), FOR_EVER)
    # Wanted at 61 s, between the failures at 60 s and 62 s: the round at 62 s is late enough, and one more follows.
    assert node.rounds(*_steady(1), DOWN, DOWN, DOWN, *_steady(2)) == [0.0, 60.0, 62.0, 66.0, 74.0, 134.0]


def test_what_is_wanted_while_a_round_runs_is_not_forgotten() -> None:
    node = _Node((0.0, False))
    early = node._early
    early.tend()
    node.verifier._answer(outcome=False)
    early.round_begins()
    # The verifier may have judged this round's evidence before the change of which it tells now.
    node.verifier._answer(outcome=True)
    assert early.wanted()
    early.round_begins()
    assert not early.wanted()


def test_a_tpm_that_does_not_sign_leaves_the_rounds_alone() -> None:
    def ask() -> SignedRequest:
        raise Unavailable(ReasonCode.TPM_UNAVAILABLE, "lock")

    node = _Node(FOR_EVER, ask=ask)
    assert node.rounds(*_steady(3)) == [0.0, 60.0, 120.0]
    assert node.verifier.begun == []


def test_a_defect_in_asking_ends_the_service() -> None:
    def ask() -> SignedRequest:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        _Node(FOR_EVER, ask=ask).rounds(*_steady(2))


def test_failing_holds_are_logged_once_for_each_cause_and_once_when_they_work_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    again = (HOLD_SECONDS, False)
    plan = [(0.0, NO_ROUTE)] * 5 + [(0.0, DOWN)] * 5 + [again] * 3 + [(0.0, DOWN)] * 3 + [again]
    with caplog.at_level(logging.INFO, "nodewarden.attester"):
        _Node(*plan).rounds(*_steady(30))
    codes = [record.args for record in caplog.records if "attest_now_failed" in record.msg]
    expected = [ReasonCode.VERIFIER_REFUSED, ReasonCode.VERIFIER_UNREACHABLE, ReasonCode.VERIFIER_UNREACHABLE]
    assert [args[0] for args in codes if isinstance(args, tuple)] == [code.value for code in expected]
    assert [record.msg for record in caplog.records].count("attest_now_works_again") == 2
    assert ReasonCode.ROUTE_UNKNOWN.value in caplog.text
