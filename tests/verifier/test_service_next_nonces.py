"""The challenge that an answer carries lives in the node's own row: the rules of nonces hold there as well."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.forge.evidence import ForgedNode
from tests.verifier import fleet
from tests.verifier.evidence import attest_to, refused, with_node
from verifier.appraisal.context import IssuedChallenge
from verifier.live_nonces import MAX_TRIES
from verifier.server import Verifier, build_verifier
from verifier.store.attestation import MAX_USED_NONCES
from verifier.store.ports import AuditEntry
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Refusal


@pytest.fixture
def clock() -> fleet.SetClock:
    return fleet.SetClock()


@pytest.fixture
def verifier(tmp_path: Path, clock: fleet.SetClock) -> Iterator[Verifier]:
    started = fleet.start(tmp_path / "v", clock)
    yield started
    started.close()


Scenario = Callable[[Verifier, ForgedNode, IssuedChallenge], Awaitable[None]]


def with_next(verifier: Verifier, scenario: Scenario) -> None:
    """Runs `scenario` with a node that attested once, and the challenge that the answer carried."""

    async def attested(verifier: Verifier, forged: ForgedNode, challenge: IssuedChallenge) -> None:
        await scenario(verifier, forged, await _attest(verifier, forged, challenge))

    with_node(verifier, attested)


async def _attest(verifier: Verifier, forged: ForgedNode, challenge: IssuedChallenge) -> IssuedChallenge:
    answer = await attest_to(verifier, fleet.encoded(fleet.evidence(forged, challenge)))
    assert answer["verdict"] == "affirming"
    return fleet.issued(forged, answer["next_challenge"], verifier.clock.now_ms() // 1000)


def _body(forged: ForgedNode, challenge: IssuedChallenge) -> bytes:
    return fleet.encoded(fleet.evidence(forged, challenge))


def test_it_is_good_once_and_known_as_used_for_longer_than_it_lives(verifier: Verifier) -> None:
    async def scenario(verifier: Verifier, forged: ForgedNode, following: IssuedChallenge) -> None:
        first = following
        for _ in range(MAX_USED_NONCES):
            body = _body(forged, following)
            following = await _attest(verifier, forged, following)
            assert await refused(verifier, body) is ReasonCode.NONCE_USED
            assert await refused(verifier, _body(forged, first)) is ReasonCode.NONCE_USED
        await _attest(verifier, forged, following)
        assert await refused(verifier, _body(forged, first)) is ReasonCode.NONCE_UNKNOWN

    with_next(verifier, scenario)


def test_sent_many_times_at_once_it_is_accepted_once(verifier: Verifier) -> None:
    async def scenario(verifier: Verifier, forged: ForgedNode, following: IssuedChallenge) -> None:
        bodies = [_body(forged, following) for _ in range(8)]
        attempts = (verifier.service.attest(body, "request-1") for body in bodies)
        outcomes = await asyncio.gather(*attempts, return_exceptions=True)
        codes = [outcome.code for outcome in outcomes if isinstance(outcome, Refusal)]
        assert codes == [ReasonCode.NONCE_USED] * 7
        verdicts = [row for row in verifier.store.audit_after(0, 100) if '"verdict"' in row.record]
        assert len(verdicts) == 2

    with_next(verifier, scenario)


def test_it_expires(verifier: Verifier, clock: fleet.SetClock) -> None:
    async def scenario(verifier: Verifier, forged: ForgedNode, following: IssuedChallenge) -> None:
        clock.forward(verifier.settings.nonce_seconds)
        assert await refused(verifier, _body(forged, following)) is ReasonCode.NONCE_EXPIRED
        # The row is free again: the next challenge that is answered leaves its successor there.
        following = await _attest(verifier, forged, await fleet.challenge(verifier, forged))
        assert verifier.store.find_next_nonce(forged.enrolled.node_id, _digest(following)) is not None

    with_next(verifier, scenario)


def test_its_tries_are_bounded_and_a_failed_one_costs_it_nothing_else(verifier: Verifier) -> None:
    async def scenario(verifier: Verifier, forged: ForgedNode, following: IssuedChallenge) -> None:
        good = fleet.evidence(forged, following)
        bad = fleet.encoded(good, signing_key=fleet.node(5).ak)
        assert await refused(verifier, bad) is ReasonCode.QUOTE_SIGNATURE_INVALID
        following = await _attest(verifier, forged, following)
        good = fleet.evidence(forged, following)
        for _ in range(MAX_TRIES):
            bad = fleet.encoded(good, signing_key=fleet.node(5).ak)
            assert await refused(verifier, bad) is ReasonCode.QUOTE_SIGNATURE_INVALID
        assert await refused(verifier, fleet.encoded(good)) is ReasonCode.NONCE_TRIES_EXHAUSTED

    with_next(verifier, scenario)


def test_another_node_cannot_answer_it(verifier: Verifier) -> None:
    async def scenario(verifier: Verifier, forged: ForgedNode, following: IssuedChallenge) -> None:
        other = fleet.node(1)
        await fleet.enrol(verifier, other)
        stolen = replace(following, node_id=other.enrolled.node_id)
        assert await refused(verifier, _body(other, stolen)) is ReasonCode.NONCE_UNKNOWN
        await _attest(verifier, forged, following)

    with_next(verifier, scenario)


def test_evidence_that_a_person_sends_beside_leaves_it_good(verifier: Verifier) -> None:
    async def scenario(verifier: Verifier, forged: ForgedNode, following: IssuedChallenge) -> None:
        beside = await _attest(verifier, forged, await fleet.challenge(verifier, forged))
        following = await _attest(verifier, forged, following)
        await _attest(verifier, forged, beside)
        await _attest(verifier, forged, following)

    with_next(verifier, scenario)


def test_both_challenges_of_a_node_can_be_answered_at_once(verifier: Verifier) -> None:
    async def scenario(verifier: Verifier, forged: ForgedNode, following: IssuedChallenge) -> None:
        asked = await fleet.challenge(verifier, forged)
        outcomes = await asyncio.gather(
            verifier.service.attest(_body(forged, following), "request-1"),
            verifier.service.attest(_body(forged, asked), "request-2"),
        )
        # One of the two is judged again, from what the other left; both count.
        assert [json.loads(answered.body)["verdict"] for answered in outcomes] == ["affirming"] * 2

    with_next(verifier, scenario)


def test_enrolment_voids_it(verifier: Verifier) -> None:
    async def scenario(verifier: Verifier, forged: ForgedNode, following: IssuedChallenge) -> None:
        await fleet.enrol(verifier, forged)
        assert await refused(verifier, _body(forged, following)) is ReasonCode.NONCE_UNKNOWN
        following = await _attest(verifier, forged, await fleet.challenge(verifier, forged))
        assert verifier.store.find_next_nonce(forged.enrolled.node_id, _digest(following)) is not None

    with_next(verifier, scenario)


def test_a_revoked_node_cannot_use_it(verifier: Verifier) -> None:
    async def scenario(verifier: Verifier, forged: ForgedNode, following: IssuedChallenge) -> None:
        audit = AuditEntry(fleet.NOW * 1000, "revoked", "test", "request-1")
        await verifier.store.set_state(forged.enrolled.node_id, "revoked", None, audit)
        assert await refused(verifier, _body(forged, following)) is ReasonCode.NODE_REVOKED

    with_next(verifier, scenario)


def test_it_outlives_the_process_that_issued_it(tmp_path: Path, clock: fleet.SetClock) -> None:
    verifier = fleet.start(tmp_path / "v", clock)
    issued: list[IssuedChallenge] = []

    async def scenario(_verifier: Verifier, _forged: ForgedNode, following: IssuedChallenge) -> None:
        issued.append(following)

    with_next(verifier, scenario)
    verifier.close()
    again = build_verifier(verifier.settings, clock)
    asyncio.run(_attest(again, fleet.node(0), issued[0]))
    again.close()


def _digest(challenge: IssuedChallenge) -> bytes:
    return hashlib.sha256(challenge.nonce).digest()
