"""The service: its rounds, its pauses, its stop, and what it tells systemd."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from pathlib import Path

import pytest

from attester.daemon import Bell, Service
from attester.notify import Notifier
from attester.pauses import Pauses, Uniform
from tests.attester.timeline import SILENT, Script, Timeline, answer, challenge, highest, lowest
from verifier.wire.challenge import ChallengeResponse
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Refusal, Rejection, Unavailable
from verifier.wire.verdict import EvidenceResponse

DOWN = Unavailable(ReasonCode.VERIFIER_UNREACHABLE, "x")


def played(
    *outcomes: EvidenceResponse | Refusal, uniform: Uniform = highest, notifier: Notifier = SILENT
) -> tuple[Script, Timeline]:
    bell = Timeline()
    script = Script(bell, *outcomes)
    Service(script, Pauses(2, 60, uniform), uniform, notifier, bell, None, bell.monotonic).run()
    return script, bell


def test_the_next_challenge_comes_from_the_answer_so_that_a_round_is_one_request() -> None:
    first, second = challenge(1), challenge(2)
    script, _ = played(answer(first), answer(second), answer(None))
    assert script.challenges == [None, first, second]


def test_a_challenge_is_dropped_after_any_failure() -> None:
    for failure in (
        DOWN,
        Rejection(ReasonCode.VERIFIER_REFUSED, "x", "nonce-expired"),
        Unavailable(ReasonCode.LOG_UNREADABLE, "x"),
    ):
        script, _ = played(answer(challenge(1)), failure, answer(None))
        assert script.challenges == [None, challenge(1), None]


def test_the_interval_is_the_verifiers_and_jitter_only_shortens_it() -> None:
    for uniform, seconds in ((highest, 60.0), (lowest, 54.0)):
        script, _ = played(answer(challenge(1, 60)), answer(None), uniform=uniform)
        assert script.times == [0.0, seconds]


def test_pauses_double_to_the_longest_and_begin_anew_after_a_success() -> None:
    _, bell = played(*[DOWN] * 7, answer(challenge(1, 60)), DOWN, DOWN, DOWN)
    assert [round(wait) for wait in bell.waits] == [2, 4, 8, 16, 32, 60, 60, 60, 2, 4]


def test_pauses_have_jitter_of_a_half_and_never_overflow() -> None:
    pauses = Pauses(2, 60, lowest)
    assert [pauses.after_failure() for _ in range(6)] == [1, 2, 4, 8, 16, 30]
    for _ in range(5000):
        assert pauses.after_failure() == 30


def test_an_answer_without_a_challenge_is_followed_by_a_pause_and_a_new_one() -> None:
    script, bell = played(answer(None), answer(None))
    assert script.challenges == [None, None]
    assert bell.waits == [2.0]


def test_a_stop_before_the_first_round_makes_no_round() -> None:
    bell = Bell()
    bell.stop()

    def never(_: ChallengeResponse | None) -> EvidenceResponse:
        raise AssertionError

    Service(never, Pauses(2, 60, highest), highest, SILENT, bell, None).run()


def test_a_stop_ends_a_long_wait_at_once() -> None:
    bell = Bell()
    service = Service(lambda _: answer(challenge(1, 3600)), Pauses(2, 60, highest), highest, SILENT, bell, None)
    thread = threading.Thread(target=service.run)
    thread.start()
    time.sleep(0.05)
    bell.stop()
    thread.join(2)
    assert not thread.is_alive()


def test_a_signal_that_comes_while_the_bell_is_waited_on_is_heard() -> None:
    bell = Bell()
    before = signal.signal(signal.SIGUSR1, lambda *_: bell.stop())
    timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1))
    try:
        timer.start()
        started = time.monotonic()
        bell.wait(30)
        assert bell.stopped and time.monotonic() - started < 5
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)


def test_what_rings_before_the_wait_is_not_missed() -> None:
    bell = Bell()
    bell.ring()
    started = time.monotonic()
    bell.wait(30)
    assert time.monotonic() - started < 5 and not bell.stopped


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
        Service(broken, Pauses(2, 60, highest), highest, SILENT, Bell(), None).run()


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_hears_ready_alive_and_stopping(tmp_path: Path, abstract: bool) -> None:
    name = f"nodewarden-test-{tmp_path.name}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0{name}" if abstract else str(tmp_path / "notify"))
        manager.settimeout(2)
        address = f"@{name}" if abstract else str(tmp_path / "notify")
        notifier = Notifier({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "20000000"})
        assert notifier.watchdog_seconds == 10.0
        _, bell = played(answer(challenge(1, 15)), answer(None), notifier=notifier)
        heard = [manager.recv(100).decode() for _ in range(5)]
    assert heard == ["READY=1", "WATCHDOG=1", "WATCHDOG=1", "WATCHDOG=1", "STOPPING=1"]
    assert bell.waits == [10.0, 5.0]


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
