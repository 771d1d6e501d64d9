"""The service: its rounds, its pauses, its stop, and what it tells systemd."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from attester.daemon import Pauses, run
from attester.notify import Notifier
from verifier.wire.challenge import ChallengeResponse, Collect
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Refusal, Rejection, Unavailable
from verifier.wire.messages import text_of
from verifier.wire.result import Verdict
from verifier.wire.verdict import EvidenceResponse, Reason

SILENT = Notifier({})


def challenge(number: int, seconds: int = 60) -> ChallengeResponse:
    wanted = Collect(pcr_bank="sha256", pcrs=[0], boot_log_known_sha256=None, node_token=False)
    nonce = text_of(bytes([number]) * 32)
    return ChallengeResponse(nonce=nonce, expires_at=1, collect=wanted, next_in_seconds=seconds)


def answer(following: ChallengeResponse | None) -> EvidenceResponse:
    reason = Reason(
        code="secure-boot-off", claim="c", observed=None, expected=None, pcr=7, event_index=None, remedy="Turn it on."
    )
    return EvidenceResponse(verdict=Verdict.CONTRAINDICATED, reasons=[reason], result="j", next_challenge=following)


class Script:
    """What the rounds give, one after another; the last one stops the service."""

    def __init__(self, stop: StopAt, *outcomes: EvidenceResponse | Refusal) -> None:
        self._outcomes = list(outcomes)
        self._stop = stop
        self.challenges: list[ChallengeResponse | None] = []

    def __call__(self, given: ChallengeResponse | None) -> EvidenceResponse:
        self.challenges.append(given)
        outcome = self._outcomes.pop(0)
        if not self._outcomes:
            self._stop.set()
        if isinstance(outcome, Refusal):
            raise outcome
        return outcome


class StopAt(threading.Event):
    """An event that remembers how long it was waited for, and waits no longer than a moment."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waits.append(timeout)
        return True


def lowest(low: float, _: float) -> float:
    return low


def highest(_: float, high: float) -> float:
    return high


def played(
    *outcomes: EvidenceResponse | Refusal, uniform: Callable[[float, float], float] = highest
) -> tuple[Script, StopAt]:
    stop = StopAt()
    script = Script(stop, *outcomes)
    run(script, Pauses(2, 60, uniform), uniform, SILENT, stop)
    return script, stop


def test_the_next_challenge_comes_from_the_answer_so_that_a_round_is_one_request() -> None:
    first, second = challenge(1), challenge(2)
    script, _ = played(answer(first), answer(second), answer(None))
    assert script.challenges == [None, first, second]


def test_a_challenge_is_dropped_after_any_failure() -> None:
    for failure in (
        Unavailable(ReasonCode.VERIFIER_UNREACHABLE, "x"),
        Rejection(ReasonCode.VERIFIER_REFUSED, "x", "nonce-expired"),
        Unavailable(ReasonCode.LOG_UNREADABLE, "x"),
    ):
        script, _ = played(answer(challenge(1)), failure, answer(None))
        assert script.challenges == [None, challenge(1), None]


def test_the_interval_is_the_verifiers_and_jitter_only_shortens_it() -> None:
    for uniform, seconds in ((highest, 60.0), (lowest, 54.0)):
        _, stop = played(answer(challenge(1, 60)), answer(None), uniform=uniform)
        assert stop.waits[0] == pytest.approx(seconds, abs=0.5)


def test_pauses_double_to_the_longest_and_begin_anew_after_a_success() -> None:
    down = Unavailable(ReasonCode.VERIFIER_UNREACHABLE, "x")
    _, stop = played(*[down] * 7, answer(challenge(1, 60)), down, down)
    rounded = [round(wait) for wait in stop.waits]
    assert rounded == [2, 4, 8, 16, 32, 60, 60, 60, 2, 4]


def test_pauses_have_jitter_of_a_half_and_never_overflow() -> None:
    pauses = Pauses(2, 60, lowest)
    assert [pauses.after_failure() for _ in range(6)] == [1, 2, 4, 8, 16, 30]
    for _ in range(5000):
        assert pauses.after_failure() == 30


def test_a_stop_before_the_first_round_makes_no_round() -> None:
    stop = threading.Event()
    stop.set()

    def never(_: ChallengeResponse | None) -> EvidenceResponse:
        raise AssertionError

    run(never, Pauses(2, 60, highest), highest, SILENT, stop)


def test_a_stop_ends_a_long_wait_at_once() -> None:
    stop = threading.Event()
    thread = threading.Thread(
        target=run, args=(lambda _: answer(challenge(1, 3600)), Pauses(2, 60, highest), highest, SILENT, stop)
    )
    thread.start()
    time.sleep(0.05)
    stop.set()
    thread.join(2)
    assert not thread.is_alive()


def test_failures_are_logged_with_code_and_without_nonces(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "nodewarden.attester"):
        played(answer(challenge(1)), Unavailable(ReasonCode.LOG_UNREADABLE, "/sys/log\n2026 forged"), answer(None))
    assert "verdict=contraindicated reasons=secure-boot-off" in caplog.text
    assert ReasonCode.LOG_UNREADABLE.value in caplog.text
    assert challenge(1).nonce not in caplog.text
    # A line feed in a path must not begin a log line of its own.
    assert "\n2026 forged" not in caplog.text


def test_a_defect_is_not_swallowed() -> None:
    def broken(_: ChallengeResponse | None) -> EvidenceResponse:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(broken, Pauses(2, 60, highest), highest, SILENT, threading.Event())


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_hears_ready_alive_and_stopping(tmp_path: Path, abstract: bool) -> None:
    name = f"nodewarden-test-{tmp_path.name}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0{name}" if abstract else str(tmp_path / "notify"))
        manager.settimeout(2)
        address = f"@{name}" if abstract else str(tmp_path / "notify")
        notifier = Notifier({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "20000000"})
        assert notifier.watchdog_seconds == 10.0
        stop = StopAt()
        run(Script(stop, answer(challenge(1))), Pauses(2, 60, highest), highest, notifier, stop)
        heard = [manager.recv(100).decode() for _ in range(3)]
    assert heard == ["READY=1", "WATCHDOG=1", "STOPPING=1"]
    assert stop.waits == [10.0]


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"NOTIFY_SOCKET": ""},
        {"NOTIFY_SOCKET": "/absent/socket"},
        {"NOTIFY_SOCKET": "vsock:1"},
        {"WATCHDOG_USEC": "x"},
    ],
)
def test_no_service_manager_is_no_failure(environment: dict[str, str]) -> None:
    notifier = Notifier(environment)
    notifier.ready()
    assert notifier.watchdog_seconds is None
