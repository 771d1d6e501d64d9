"""The attester as a service: a round every interval, pauses that grow after failures, a stop that waits for no one.

It listens on no port: the verifier's answer to evidence carries the next challenge, so that a steady round is one
request. In between a second connection waits for the verifier's word that it wants evidence at once (`on_demand`).
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue

from attester.notify import Notifier
from attester.on_demand import Monotonic, OnDemand
from attester.pauses import Pauses, Uniform
from verifier.wire.challenge import ChallengeResponse
from verifier.wire.failures import Refusal, Unavailable
from verifier.wire.verdict import EvidenceResponse

log = logging.getLogger("nodewarden.attester")

_LOWEST_JITTER = 0.9
SPREAD_SECONDS = 0.5
"""Evidence on demand comes within this, so that a whole fleet of which it is wanted does not come at one moment."""


Round = Callable[[ChallengeResponse | None], EvidenceResponse]
"""One attestation, for a given challenge or a new one."""


class Bell:
    """What wakes the main thread: a signal to stop, or another thread that has something to tell.

    No threading.Event: a signal handler that sets the one on which its own thread is about to wait can wait for ever.
    A SimpleQueue's put is made to be called there.
    """

    def __init__(self) -> None:
        self._rung: SimpleQueue[None] = SimpleQueue()
        self.stopped = False

    def stop(self) -> None:
        """The service is to end."""
        self.stopped = True
        self.ring()

    def ring(self) -> None:
        """Something is to be looked at."""
        self._rung.put(None)

    def wait(self, seconds: float) -> None:
        """Returns when it rings, or rang since the last wait, or after `seconds`."""
        with suppress(Empty):
            self._rung.get(timeout=seconds)


class Service:
    """Attests until its bell says stop."""

    def __init__(
        self,
        attest: Round,
        pauses: Pauses,
        uniform: Uniform,
        notifier: Notifier,
        bell: Bell,
        on_demand: OnDemand | None,
        monotonic: Monotonic = time.monotonic,
    ) -> None:
        """`on_demand`, where it is not None, sees the same clock."""
        self._attest = attest
        self._pauses = pauses
        self._uniform = uniform
        self._notifier = notifier
        self._bell = bell
        self._on_demand = on_demand
        self._monotonic = monotonic

    def run(self) -> None:
        """Attests until stopped; returns after the round in flight, whose every wait is bounded.

        A Refusal of any kind is logged with its code and tried again; another exception is a defect and ends the
        service, for the service manager to start anew.
        """
        self._notifier.ready()
        challenge: ChallengeResponse | None = None
        while not self._bell.stopped:
            if self._on_demand is not None:
                self._on_demand.round_begins()
            try:
                answer = self._attest(challenge)
            except Refusal as refusal:
                # A challenge may be used up, or not: a new one is always right.
                challenge = None
                seconds = self._pauses.after_failure()
                level = logging.WARNING if isinstance(refusal, Unavailable) else logging.ERROR
                code, line = refusal.code.value, refusal.failure.line()
                log.log(level, "attestation_failed code=%s retry_seconds=%.1f %s", code, seconds, line)
                # The pause stands, whatever the verifier wants: it is what keeps a fleet from pressing on one in need.
                self._wait(seconds, None)
            else:
                self._pauses.after_success()
                challenge = answer.next_challenge
                reasons = ",".join(reason.code for reason in answer.reasons) or "none"
                log.info("attested verdict=%s reasons=%s", answer.verdict.value, reasons)
                # Only ever early: the nonce lives little longer than the interval.
                interval = challenge.next_in_seconds if challenge is not None else self._pauses.after_failure()
                self._wait(interval * self._uniform(_LOWEST_JITTER, 1.0), self._on_demand)
        self._notifier.stopping()
        log.info("stopped")

    def _wait(self, seconds: float, on_demand: OnDemand | None) -> None:
        deadline = self._monotonic() + seconds
        early = False
        while not self._bell.stopped:
            self._notifier.alive()
            if self._monotonic() >= deadline:
                return
            due = math.inf if on_demand is None else on_demand.tend()
            if on_demand is not None and not early and on_demand.wanted():
                early = True
                deadline = min(deadline, self._monotonic() + self._uniform(0.0, SPREAD_SECONDS))
            left = deadline - self._monotonic()
            self._bell.wait(max(0.0, min(left, due, self._notifier.watchdog_seconds or left)))
