"""The attester as a service: a round every interval, pauses that grow after failures, a stop that waits for no one.

It listens on no port: the verifier's answer to evidence carries the next challenge, so that a steady round is one
request. (The verifier's long poll for evidence on demand is not used yet; a changed node waits for its next interval.)
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from threading import Event

from attester.notify import Notifier
from verifier.wire.challenge import ChallengeResponse
from verifier.wire.failures import Refusal, Unavailable
from verifier.wire.verdict import EvidenceResponse

log = logging.getLogger("nodewarden.attester")

Uniform = Callable[[float, float], float]
"""A random number between two."""
_LOWEST_JITTER = 0.9
_LOWEST_PAUSE_JITTER = 0.5


Round = Callable[[ChallengeResponse | None], EvidenceResponse]
"""One attestation, for a given challenge or a new one."""


class Pauses:
    """Pauses after failures in a row: doubling from `first_seconds` to `longest_seconds`, each with jitter."""

    def __init__(self, first_seconds: float, longest_seconds: float, uniform: Uniform) -> None:
        self._first = first_seconds
        self._longest = longest_seconds
        self._uniform = uniform
        self._failures = 0

    def after_failure(self) -> float:
        """How long to wait now, in seconds."""
        # The exponent is bounded: a week of failures must not make a number too large for a float.
        pause = min(self._longest, self._first * 2.0 ** min(self._failures, 32))
        self._failures += 1
        # Jitter, so that a fleet does not come back at one moment after an outage.
        return pause * self._uniform(_LOWEST_PAUSE_JITTER, 1.0)

    def after_success(self) -> None:
        """The next failure is a first one."""
        self._failures = 0


def run(attest: Round, pauses: Pauses, uniform: Uniform, notifier: Notifier, stop: Event) -> None:
    """Attests until `stop` is set; returns after the round in flight, whose every wait is bounded.

    A Refusal of any kind is logged with its code and tried again; another exception is a defect and ends the service,
    for the service manager to start anew.
    """
    notifier.ready()
    challenge: ChallengeResponse | None = None
    while not stop.is_set():
        try:
            answer = attest(challenge)
        except Refusal as refusal:
            # A challenge may be used up, or not: a new one is always right.
            challenge = None
            seconds = pauses.after_failure()
            level = logging.WARNING if isinstance(refusal, Unavailable) else logging.ERROR
            code, line = refusal.code.value, refusal.failure.line()
            log.log(level, "attestation_failed code=%s retry_seconds=%.1f %s", code, seconds, line)
        else:
            pauses.after_success()
            challenge = answer.next_challenge
            reasons = ",".join(reason.code for reason in answer.reasons) or "none"
            log.info("attested verdict=%s reasons=%s", answer.verdict.value, reasons)
            # Only ever early: the nonce lives little longer than the interval.
            interval = challenge.next_in_seconds if challenge is not None else pauses.after_failure()
            seconds = interval * uniform(_LOWEST_JITTER, 1.0)
        _wait(seconds, notifier, stop)
    notifier.stopping()
    log.info("stopped")


def _wait(seconds: float, notifier: Notifier, stop: Event) -> None:
    deadline = time.monotonic() + seconds
    while True:
        notifier.alive()
        left = deadline - time.monotonic()
        if left <= 0 or stop.wait(min(left, notifier.watchdog_seconds or left)):
            return
