"""Evidence on demand: one request held at the verifier, which is answered early when it wants evidence now.

What it costs a node: one signature by the AK for each hold, so about one a minute beside the quote of each round
(TPM2_ContextLoad, TPM2_Hash, TPM2_Sign, TPM2_FlushContext), and a second connection, of 53 kB at the verifier. On a
software TPM it took 1.9 ms with a P-256 key and 13 ms with an RSA-2048 key, two thirds of what a round took there; a
discrete TPM takes longer for both. What it brings: a changed baseline, or an approval, reaches the verdict in a second
or two instead of after the interval.

What must hold: whatever the verifier answers, or does not, the rounds go on at their interval, and no answer makes a
node attest more often than `EARLY_SECONDS` allows.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Callable

from attester.client import refusal_code
from attester.long_poll import LONGEST_HOLD_SECONDS, LongPoll
from attester.pauses import Pauses
from attester.rounds import Clock, Node, signed_by
from verifier.wire.challenge import AttestNowRequest
from verifier.wire.failures import Refusal, Rejection
from verifier.wire.signed_request import RequestLabel, SignedRequest

log = logging.getLogger("nodewarden.attester")

EARLY_SECONDS = 10.0
"""Holds begin at least so far apart, and so long after a round that the verifier asked for. So a node attests early at
most six times a minute, whatever a hostile or broken verifier answers: its TPM is there for others too."""
_LOCK_SECONDS = 0.5
"""To ask is not worth a longer wait for a TPM that another process holds: a stop would wait as well."""

Monotonic = Callable[[], float]
"""Seconds of a clock that never goes back."""


def ask_to_wait(node: Node, now: int) -> SignedRequest:
    """A request for one hold, signed by this node's AK at `now` (seconds since 1970).

    Raises what the TPM's parts do.
    """
    request = AttestNowRequest(jti=secrets.token_urlsafe(24), iat=now, node_id=node.enrolment.node_id)
    return signed_by(node, RequestLabel.ATTEST_NOW, request, lock_seconds=_LOCK_SECONDS)


def on_demand(node: Node, poll: LongPoll, pauses: Pauses, clock: Clock, monotonic: Monotonic) -> OnDemand:
    """What `attester run` uses."""
    return OnDemand(lambda: ask_to_wait(node, clock()), poll, pauses, monotonic)


class OnDemand:
    """When to ask the verifier to hold a request, and what came of it. Used by the main thread only."""

    def __init__(self, ask: Callable[[], SignedRequest], poll: LongPoll, pauses: Pauses, monotonic: Monotonic) -> None:
        self._ask = ask
        self._poll = poll
        self._pauses = pauses
        self._monotonic = monotonic
        self._held_since: float | None = None
        self._next = -math.inf
        self._wanted = False
        self._failing: tuple[str, str | None] | None = None

    def wanted(self) -> bool:
        """Whether the verifier said that it wants evidence, since the last round began."""
        self._take()
        return self._wanted

    def round_begins(self) -> None:
        """What was wanted until now gets its answer."""
        if self.wanted():
            self._wanted = False
            self._next = max(self._next, self._monotonic() + EARLY_SECONDS)

    def tend(self) -> float:
        """What is due is done: a new hold, or the end of one that takes too long. Seconds until more is due."""
        self._take()
        if self._wanted:
            return math.inf
        if self._held_since is not None:
            left = self._held_since + LONGEST_HOLD_SECONDS - self._monotonic()
            if left > 0:
                return left
            # Attack: a verifier that sends a byte now and then, and so is never found to be silent.
            self._poll.break_off()
            return 1.0
        left = self._next - self._monotonic()
        if left > 0:
            return left
        return self._hold()

    def _hold(self) -> float:
        started = self._monotonic()
        self._next = started + EARLY_SECONDS
        try:
            request = self._ask()
        except Refusal as refusal:
            self._failed(refusal)
            return self._next - self._monotonic()
        self._poll.begin(request)
        self._held_since = started
        return LONGEST_HOLD_SECONDS

    def _take(self) -> None:
        outcome = self._poll.take()
        if outcome is None:
            return
        self._held_since = None
        if isinstance(outcome, Refusal):
            self._failed(outcome)
            return
        self._pauses.after_success()
        if self._failing is not None:
            self._failing = None
            log.info("attest_now_works_again")
        if outcome:
            log.info("evidence_wanted")
            self._wanted = True

    def _failed(self, refusal: Refusal) -> None:
        self._next = max(self._next, self._monotonic() + self._pauses.after_failure())
        verifiers = refusal_code(refusal) if isinstance(refusal, Rejection) else None
        failing = refusal.code.value, verifiers
        if failing != self._failing:
            # Once: the rounds go on, and say themselves what keeps them.
            self._failing = failing
            log.warning("attest_now_failed code=%s the_interval_goes_on %s", refusal.code.value, refusal.failure.line())
