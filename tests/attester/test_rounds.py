"""What a round does when the verifier could not, or did not yet, take this round's evidence."""

from __future__ import annotations

from typing import Any, cast

import pytest

from attester import rounds
from attester.client import Client
from attester.rounds import Node, Rounds
from verifier.wire.challenge import ChallengeResponse, Collect
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Refusal, Rejection, Unavailable
from verifier.wire.verdict import EvidenceResponse

KNOWN = "11" * 32
NODE = cast("Node", None)
"""What follows replaces everything that would look at it."""


def _challenge(pcrs: list[int] | None = None) -> ChallengeResponse:
    collect = Collect(pcr_bank="sha256", pcrs=pcrs or [0, 1], boot_log_known_sha256=KNOWN, node_token=False)
    return ChallengeResponse(nonce="A" * 43, expires_at=2_000_000_000, collect=collect, next_in_seconds=60)


class _Verifier:
    """Answers each bundle with the next of `outcomes`, and keeps what the bundles answered."""

    def __init__(self, *outcomes: Refusal | None) -> None:
        self._outcomes = list(outcomes)
        self.answered: list[ChallengeResponse] = []

    def send_evidence(self, bundle: Any) -> EvidenceResponse:
        self.answered.append(bundle)
        outcome = self._outcomes.pop(0)
        if outcome is not None:
            raise outcome
        return cast("EvidenceResponse", "an answer")

    def known_logs(self) -> list[str | None]:
        return [challenge.collect.boot_log_known_sha256 for challenge in self.answered]


@pytest.fixture(autouse=True)
def _no_tpm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "_evidence", lambda _node, challenge: challenge)
    monkeypatch.setattr(rounds, "ask_challenge", lambda *_: _challenge([0, 1, 11]))


def _rounds(verifier: _Verifier) -> Rounds:
    return Rounds(NODE, cast("Client", verifier), lambda: 0)


def _refused(code: ReasonCode) -> Rejection:
    return Rejection(ReasonCode.VERIFIER_REFUSED, "/v1/evidence", code.value)


def test_the_round_after_one_without_an_answer_sends_the_log_whole_until_one_is_answered() -> None:
    limited = Unavailable(ReasonCode.VERIFIER_UNREACHABLE, "/v1/evidence", ReasonCode.RATE_LIMITED.value)
    verifier = _Verifier(limited, limited, None, None)
    attest = _rounds(verifier)
    for _ in range(2):
        with pytest.raises(Unavailable):
            attest(_challenge())
    for _ in range(2):
        attest(_challenge())
    assert verifier.known_logs() == [KNOWN, None, None, KNOWN]


def test_a_challenge_that_is_outdated_is_asked_for_anew_in_the_same_round() -> None:
    verifier = _Verifier(_refused(ReasonCode.CHALLENGE_OUTDATED), None)
    _rounds(verifier)(_challenge())
    assert [challenge.collect.pcrs for challenge in verifier.answered] == [[0, 1], [0, 1, 11]]


def test_a_log_that_the_verifier_forgot_is_sent_in_the_same_round() -> None:
    verifier = _Verifier(_refused(ReasonCode.BOOT_LOG_UNKNOWN_DIGEST), None)
    _rounds(verifier)(_challenge())
    assert verifier.known_logs() == [KNOWN, None]


def test_no_round_tries_more_than_twice_and_other_refusals_end_it() -> None:
    for code, tries in ((ReasonCode.CHALLENGE_OUTDATED, 2), (ReasonCode.NODE_REVOKED, 1)):
        verifier = _Verifier(*[_refused(code)] * 3)
        with pytest.raises(Rejection):
            _rounds(verifier)(_challenge())
        assert len(verifier.answered) == tries
