"""Nonces and challenges: good once, for one node, for a while; bad evidence is refused and costs them nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.forge import attest
from tests.forge.evidence import ForgedEvidence, ForgedNode
from tests.verifier import fleet
from tests.verifier.evidence import attest_to, refused, with_node
from verifier.appraisal.context import IssuedChallenge
from verifier.live_nonces import MAX_TRIES
from verifier.server import Verifier
from verifier.store.attestation import MAX_LIVE_CHALLENGES
from verifier.wire.bundle import ImaLog, Nonce
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Refusal
from verifier.wire.signed_request import RequestLabel


@pytest.fixture
def clock() -> fleet.SetClock:
    return fleet.SetClock()


@pytest.fixture
def verifier(tmp_path: Path, clock: fleet.SetClock) -> Iterator[Verifier]:
    started = fleet.start(tmp_path / "v", clock)
    yield started
    started.close()


Change = Callable[[ForgedEvidence], bytes]


def _json(evidence: ForgedEvidence, change: Callable[[dict[str, Any]], object]) -> bytes:
    fields = json.loads(fleet.encoded(evidence))
    change(fields)
    return json.dumps(fields).encode()


def _swap(evidence: ForgedEvidence, kind: str, /, **fields: object) -> bytes:
    def change(bundle: dict[str, Any]) -> None:
        next(item for item in bundle["items"] if item["kind"] == kind).update(fields)

    return _json(evidence, change)


BAD: dict[str, tuple[ReasonCode, Change]] = {
    "truncated JSON": (ReasonCode.JSON_INVALID, lambda e: fleet.encoded(e)[:-1]),
    "a duplicate key": (ReasonCode.JSON_INVALID, lambda e: b'{"version":1,' + fleet.encoded(e)[1:]),
    "another version": (ReasonCode.VERSION_UNSUPPORTED, lambda e: _json(e, lambda b: b.update(version=2))),
    "an unknown field": (ReasonCode.SCHEMA_MISMATCH, lambda e: _json(e, lambda b: b.update(more=1))),
    "a wrong type": (ReasonCode.SCHEMA_MISMATCH, lambda e: _json(e, lambda b: b.update(items={}))),
    "too many items": (ReasonCode.BODY_TOO_LARGE, lambda e: _json(e, lambda b: b.update(items=b["items"] * 20))),
    "an unknown kind": (ReasonCode.ITEM_KIND_UNKNOWN, lambda e: _swap(e, "host-facts", kind="horoscope")),
    "a duplicated item": (ReasonCode.ITEM_DUPLICATED, lambda e: _json(e, lambda b: b["items"].append(b["items"][0]))),
    "a gap in the indices": (ReasonCode.ITEM_INDEX_INVALID, lambda e: _swap(e, "host-facts", index=1)),
    "padding": (ReasonCode.ENCODING_NOT_CANONICAL, lambda e: _swap(e, "host-facts", body="AA==")),
    "no quote": (ReasonCode.ITEM_MISSING, lambda e: _json(e, lambda b: b["items"].pop(0))),
    "no binding key": (ReasonCode.ITEM_MISSING, lambda e: fleet.encoded(e, binding=None)),
    "an IMA log": (ReasonCode.ITEM_NOT_REQUESTED, lambda e: fleet.encoded(e, extra_items=(ImaLog(0, b"x", 0),))),
    "an unwanted token": (ReasonCode.ITEM_NOT_REQUESTED, lambda e: fleet.encoded(e, node_token=b"token")),
    "a broken quote": (ReasonCode.ATTEST_MALFORMED, lambda e: fleet.encoded(e, quote_body=b"\0")),
    "a broken signature": (ReasonCode.SIGNATURE_MALFORMED, lambda e: fleet.encoded(e, signature=b"\0")),
    "a broken public area": (ReasonCode.PUBLIC_AREA_MALFORMED, lambda e: _swap(e, "binding-key", public="AAAA")),
    "broken host facts": (ReasonCode.HOST_FACTS_MALFORMED, lambda e: fleet.encoded(e, linux_boot_id="x")),
    "a clock beyond all time": (ReasonCode.CLOCK_OUT_OF_RANGE, lambda e: fleet.encoded(e, clock_ms=2**63)),
    "a structure no TPM made": (ReasonCode.QUOTE_NOT_TPM_GENERATED, lambda e: fleet.encoded(e, magic=1)),
    "another structure": (ReasonCode.QUOTE_TYPE_WRONG, lambda e: fleet.encoded(e, kind=attest.TIME)),
    "another key": (ReasonCode.QUOTE_SIGNATURE_INVALID, lambda e: fleet.encoded(e, signing_key=fleet.node(5).ak)),
    "another verifier's": (ReasonCode.QUOTE_BINDING_MISMATCH, lambda e: fleet.encoded(e, verifier_id="https://evil")),
    "too few PCRs": (
        ReasonCode.PCR_SELECTION_MISMATCH,
        lambda e: fleet.encoded(e, pcrs={k: v for k, v in e.pcrs.items() if k != 7}),
    ),
    "labels that lie": (
        ReasonCode.PCR_DIGEST_MISMATCH,
        lambda e: fleet.encoded(e, labels={"sha256": {**e.pcrs, 7: bytes(32)}}),
    ),
    "an inactive bank": (
        ReasonCode.PCR_BANK_INACTIVE,
        lambda e: fleet.encoded(e, quote_body=attest.selection([]) + b"\0\x20" + bytes(32)),
    ),
    "an AK under no EK": (
        ReasonCode.QUOTE_SIGNER_NOT_UNDER_EK,
        lambda e: fleet.encoded(e, signer=b"\0\x0b" + bytes(32)),
    ),
    "an unknown log": (ReasonCode.BOOT_LOG_UNKNOWN_DIGEST, lambda e: fleet.encoded(e, log_by_digest=True)),
    "another node's name": (
        ReasonCode.NONCE_WRONG_NODE,
        lambda e: _json(e, lambda b: b.update(node_id="00" * 32)),
    ),
    "an unknown nonce": (
        ReasonCode.NONCE_UNKNOWN,
        lambda e: fleet.encoded(replace(e, challenge=replace(e.challenge, nonce=Nonce(b"z" * 32)))),
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_evidence_is_refused_and_changes_nothing(verifier: Verifier, name: str) -> None:
    code, change = BAD[name]

    async def scenario(verifier: Verifier, forged: ForgedNode, challenge: IssuedChallenge) -> None:
        good = fleet.evidence(forged, challenge)
        assert await refused(verifier, change(good)) is code
        assert verifier.store.result(forged.enrolled.node_id) is None
        # The nonce is still good: a stranger's message, or a fault that was repaired, costs the node nothing.
        assert (await attest_to(verifier, fleet.encoded(good)))["verdict"] == "affirming"

    with_node(verifier, scenario)


def test_a_nonce_is_good_once(verifier: Verifier) -> None:
    async def scenario(verifier: Verifier, forged: ForgedNode, challenge: IssuedChallenge) -> None:
        body = fleet.encoded(fleet.evidence(forged, challenge))
        await attest_to(verifier, body)
        assert await refused(verifier, body) is ReasonCode.NONCE_USED

    with_node(verifier, scenario)


def test_one_nonce_sent_many_times_at_once_is_accepted_once(verifier: Verifier) -> None:
    async def scenario(verifier: Verifier, forged: ForgedNode, challenge: IssuedChallenge) -> None:
        bodies = [fleet.encoded(fleet.evidence(forged, challenge)) for _ in range(8)]
        attempts = (verifier.service.attest(body, "request-1") for body in bodies)
        outcomes = await asyncio.gather(*attempts, return_exceptions=True)
        codes = [outcome.code for outcome in outcomes if isinstance(outcome, Refusal)]
        assert codes == [ReasonCode.NONCE_USED] * 7
        verdicts = [row for row in verifier.store.audit_after(0, 100) if '"verdict"' in row.record]
        assert len(verdicts) == 1

    with_node(verifier, scenario)


def test_a_nonce_expires(verifier: Verifier, clock: fleet.SetClock) -> None:
    async def scenario(verifier: Verifier, forged: ForgedNode, challenge: IssuedChallenge) -> None:
        clock.forward(verifier.settings.nonce_seconds)
        body = fleet.encoded(fleet.evidence(forged, challenge))
        assert await refused(verifier, body) is ReasonCode.NONCE_EXPIRED

    with_node(verifier, scenario)


def test_tries_of_one_nonce_are_bounded(verifier: Verifier) -> None:
    async def scenario(verifier: Verifier, forged: ForgedNode, challenge: IssuedChallenge) -> None:
        good = fleet.evidence(forged, challenge)
        for _ in range(MAX_TRIES):
            code = await refused(verifier, fleet.encoded(good, signing_key=fleet.node(5).ak))
            assert code is ReasonCode.QUOTE_SIGNATURE_INVALID
        assert await refused(verifier, fleet.encoded(good)) is ReasonCode.NONCE_TRIES_EXHAUSTED

    with_node(verifier, scenario)


def test_a_clock_that_goes_back_within_one_boot_is_refused(verifier: Verifier) -> None:
    async def scenario(verifier: Verifier, forged: ForgedNode, challenge: IssuedChallenge) -> None:
        answer = await attest_to(verifier, fleet.encoded(fleet.evidence(forged, challenge)))
        following = fleet.issued(forged, answer["next_challenge"], fleet.NOW)
        early = fleet.encoded(fleet.evidence(forged, following), clock_ms=1)
        assert await refused(verifier, early) is ReasonCode.CLOCK_REGRESSED

    with_node(verifier, scenario)


def test_a_hundred_nodes_at_once_are_all_affirmed(verifier: Verifier) -> None:
    async def run() -> None:
        nodes = [fleet.node(which) for which in range(100)]
        for forged in nodes:
            await fleet.enrol(verifier, forged)
        challenges = await asyncio.gather(*(fleet.challenge(verifier, forged) for forged in nodes))
        bodies = [fleet.encoded(fleet.evidence(n, c)) for n, c in zip(nodes, challenges, strict=True)]
        answers = await asyncio.gather(*(attest_to(verifier, body) for body in bodies))
        assert {answer["verdict"] for answer in answers} == {"affirming"}
        events = [result.event for result in verifier.store.results_after(0, 1000)]
        assert len(events) == 100 and events == sorted(set(events))

    asyncio.run(run())


def test_a_fault_of_ours_stores_nothing_and_leaves_the_nonce(
    verifier: Verifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(verifier: Verifier, forged: ForgedNode, challenge: IssuedChallenge) -> None:
        body = fleet.encoded(fleet.evidence(forged, challenge))
        with monkeypatch.context() as patch:
            patch.setattr("verifier.service.appraise", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                await verifier.service.attest(body, "request-1")
        assert verifier.store.result(forged.enrolled.node_id) is None
        assert (await attest_to(verifier, body))["verdict"] == "affirming"

    with_node(verifier, scenario)


# --- challenges ---


async def challenge_refused(verifier: Verifier, message: bytes) -> ReasonCode:
    with pytest.raises(Refusal) as caught:
        await verifier.service.challenge(message)
    return caught.value.code


def test_a_challenge_needs_the_nodes_own_signature_of_this_label(verifier: Verifier) -> None:
    async def scenario(verifier: Verifier, forged: ForgedNode, _challenge: IssuedChallenge) -> None:
        other = replace(forged, ak=fleet.node(5).ak)
        codes = [
            await challenge_refused(verifier, fleet.signed(other, fleet.NOW)),
            await challenge_refused(verifier, fleet.signed(forged, fleet.NOW, RequestLabel.ATTEST_NOW)),
        ]
        assert codes == [ReasonCode.REQUEST_SIGNATURE_INVALID] * 2
        stranger = fleet.node(7)
        assert await challenge_refused(verifier, fleet.signed(stranger, fleet.NOW)) is ReasonCode.NODE_UNKNOWN

    with_node(verifier, scenario)


def test_a_signed_request_is_good_once_and_only_while_fresh(verifier: Verifier) -> None:
    async def scenario(verifier: Verifier, forged: ForgedNode, _challenge: IssuedChallenge) -> None:
        request = fleet.signed(forged, fleet.NOW)
        await verifier.service.challenge(request)
        assert await challenge_refused(verifier, request) is ReasonCode.REQUEST_REPLAYED
        for skew in (-301, 301):
            late = fleet.signed(forged, fleet.NOW + skew)
            assert await challenge_refused(verifier, late) is ReasonCode.REQUEST_NOT_FRESH

    with_node(verifier, scenario)


def test_live_challenges_of_one_node_are_bounded(verifier: Verifier) -> None:
    async def scenario(verifier: Verifier, forged: ForgedNode, challenge: IssuedChallenge) -> None:
        clock = verifier.clock
        assert isinstance(clock, fleet.SetClock)
        clock.forward(1)
        later = [await fleet.challenge(verifier, forged) for _ in range(MAX_LIVE_CHALLENGES)]
        # The oldest made room, and only it.
        assert await refused(verifier, fleet.encoded(fleet.evidence(forged, challenge))) is ReasonCode.NONCE_UNKNOWN
        answer = await attest_to(verifier, fleet.encoded(fleet.evidence(forged, later[0])))
        assert answer["verdict"] == "affirming"

    with_node(verifier, scenario)


def test_nonces_differ(verifier: Verifier) -> None:
    async def scenario(verifier: Verifier, forged: ForgedNode, challenge: IssuedChallenge) -> None:
        others = [await fleet.challenge(verifier, forged) for _ in range(5)]
        assert len({challenge.nonce, *(other.nonce for other in others)}) == 6

    with_node(verifier, scenario)


def test_a_node_that_waits_hears_when_evidence_is_wanted(verifier: Verifier) -> None:
    async def scenario(verifier: Verifier, forged: ForgedNode, challenge: IssuedChallenge) -> None:
        await attest_to(verifier, fleet.encoded(fleet.evidence(forged, challenge)))
        node = await verifier.service.attest_now(fleet.signed(forged, fleet.NOW, RequestLabel.ATTEST_NOW))
        waiting = asyncio.ensure_future(verifier.service.wanted.wait(node.node_id))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        verifier.reload_baselines()
        assert await asyncio.wait_for(waiting, 5) is True
        assert await verifier.service.wanted.wait("00" * 32, 0.01) is False

    with_node(verifier, scenario)
