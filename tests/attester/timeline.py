"""Hours of the service in a moment: a bell that lets time pass instead of waiting, and rounds as a test plans them."""

from __future__ import annotations

from collections.abc import Callable

from attester.daemon import Bell
from attester.notify import Notifier
from verifier.wire.challenge import ChallengeResponse, Collect
from verifier.wire.failures import Refusal
from verifier.wire.messages import text_of
from verifier.wire.result import Verdict
from verifier.wire.verdict import EvidenceResponse, Reason

SILENT = Notifier({})


def lowest(low: float, _: float) -> float:
    return low


def highest(_: float, high: float) -> float:
    return high


def challenge(number: int, seconds: int = 60) -> ChallengeResponse:
    wanted = Collect(pcr_bank="sha256", pcrs=[0], boot_log_known_sha256=None, node_token=False)
    nonce = text_of(bytes([number]) * 32)
    return ChallengeResponse(nonce=nonce, expires_at=1, collect=wanted, next_in_seconds=seconds)


def answer(following: ChallengeResponse | None) -> EvidenceResponse:
    reason = Reason(
        code="secure-boot-off", claim="c", observed=None, expected=None, pcr=7, event_index=None, remedy="Turn it on."
    )
    return EvidenceResponse(verdict=Verdict.CONTRAINDICATED, reasons=[reason], result="j", next_challenge=following)


class Timeline(Bell):
    """Waiting moves its clock, up to the next planned event, and takes no time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.waits: list[float] = []
        self._planned: list[tuple[float, Callable[[], None]]] = []

    def monotonic(self) -> float:
        """The clock."""
        return self.now

    def plan(self, seconds: float, event: Callable[[], None]) -> None:
        """`event` happens in so many seconds, and ends the wait that is on then."""
        self._planned.append((self.now + seconds, event))

    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.waits.append(seconds)
        until = self.now + seconds
        due = min((at for at, _ in self._planned if at <= until), default=None)
        self.now = until if due is None else max(self.now, due)
        happening = [event for at, event in self._planned if at <= self.now]
        self._planned = [(at, event) for at, event in self._planned if at > self.now]
        for event in happening:
            event()


class Script:
    """What the rounds give, one after another; the last one stops the service."""

    def __init__(self, bell: Timeline, *outcomes: EvidenceResponse | Refusal) -> None:
        self._outcomes = list(outcomes)
        self._bell = bell
        self.challenges: list[ChallengeResponse | None] = []
        self.times: list[float] = []

    def __call__(self, given: ChallengeResponse | None) -> EvidenceResponse:
        self.challenges.append(given)
        self.times.append(self._bell.now)
        outcome = self._outcomes.pop(0)
        if not self._outcomes:
            self._bell.stop()
        if isinstance(outcome, Refusal):
            raise outcome
        return outcome
