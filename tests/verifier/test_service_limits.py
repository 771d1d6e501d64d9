"""What one sender may cost the verifier: a stranger nearly nothing, an enrolled node its own pace."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.forge import baselines
from tests.forge.evidence import ForgedNode
from tests.verifier import fleet
from tests.verifier.evidence import attest_to, refused, with_node
from tests.verifier.http import Http, with_http
from verifier.appraisal.context import IssuedChallenge
from verifier.live_nonces import MAX_TRIES
from verifier.server import Verifier
from verifier.store.ports import NodeState
from verifier.wire.codes import ReasonCode
from verifier.wire.encoding import encode_base64url
from verifier.wire.failures import Refusal
from verifier.wire.signed_request import RequestLabel


@pytest.fixture
def verifier(tmp_path: Path) -> Iterator[Verifier]:
    """A verifier with one good baseline."""
    started = fleet.start(tmp_path / "v", fleet.SetClock())
    yield started
    started.close()


def _remembered(verifier: Verifier) -> int:
    return len(verifier.service._steady._known)


def _changed(body: bytes, **changes: Any) -> bytes:
    return json.dumps(json.loads(body) | changes).encode()


def test_a_nonce_that_is_not_live_ends_it_before_any_item_is_looked_at(verifier: Verifier) -> None:
    async def scenario(verifier: Verifier, forged: ForgedNode, challenge: IssuedChallenge) -> None:
        body = fleet.encoded(fleet.evidence(forged, challenge))
        strange = encode_base64url(bytes(32))
        assert await refused(verifier, _changed(body, nonce=strange)) is ReasonCode.NONCE_UNKNOWN
        assert await refused(verifier, _changed(body, nonce=strange, items=[{}])) is ReasonCode.NONCE_UNKNOWN
        assert await refused(verifier, _changed(body, items=[{}])) is ReasonCode.SCHEMA_MISMATCH

    with_node(verifier, scenario)


async def _attested(verifier: Verifier, forged: ForgedNode, challenge: IssuedChallenge, **changes: Any) -> bytes:
    """The body of honest evidence that was just accepted."""
    body = fleet.encoded(fleet.evidence(forged, challenge), **changes)
    assert (await attest_to(verifier, body))["verdict"] == "affirming"
    return body


def test_only_evidence_that_the_node_signed_is_remembered(verifier: Verifier) -> None:
    async def scenario(verifier: Verifier, forged: ForgedNode, challenge: IssuedChallenge) -> None:
        await _attested(verifier, forged, challenge)
        assert _remembered(verifier) == 0, "a log that is sent whole is sent once"
        honest = fleet.evidence(forged, await fleet.challenge(verifier, forged))
        bad = fleet.encoded(honest, log_by_digest=True, signing_key=fleet.node(5).ak)
        assert await refused(verifier, bad) is ReasonCode.QUOTE_SIGNATURE_INVALID
        assert _remembered(verifier) == 0
        await attest_to(verifier, fleet.encoded(honest, log_by_digest=True))
        assert _remembered(verifier) == 1

    with_node(verifier, scenario)


def test_evidence_that_is_recognised_is_refused_and_judged_as_any_other(verifier: Verifier) -> None:
    async def scenario(verifier: Verifier, forged: ForgedNode, challenge: IssuedChallenge) -> None:
        await _attested(verifier, forged, challenge)
        kept = await _attested(verifier, forged, await fleet.challenge(verifier, forged), log_by_digest=True)
        later = fleet.evidence(forged, await fleet.challenge(verifier, forged))
        for bad, code in (
            (kept, ReasonCode.NONCE_USED),
            (
                fleet.encoded(later, log_by_digest=True, signing_key=fleet.node(5).ak),
                ReasonCode.QUOTE_SIGNATURE_INVALID,
            ),
            (fleet.encoded(later, log_by_digest=True, clock_ms=1), ReasonCode.CLOCK_REGRESSED),
        ):
            assert verifier.service._steady.find(bad) is not None
            assert await refused(verifier, bad) is code
        good = fleet.encoded(later, log_by_digest=True)
        assert verifier.service._steady.find(good) is not None
        assert (await attest_to(verifier, good))["verdict"] == "affirming"

    with_node(verifier, scenario)


def test_many_bundles_side_by_side_are_as_many_tries(verifier: Verifier) -> None:
    async def scenario(verifier: Verifier, forged: ForgedNode, challenge: IssuedChallenge) -> None:
        bad = fleet.encoded(fleet.evidence(forged, challenge), signing_key=fleet.node(5).ak)
        outcomes = await asyncio.gather(
            *(verifier.service.attest(bad, "request-1") for _ in range(20)), return_exceptions=True
        )
        codes = [outcome.code for outcome in outcomes if isinstance(outcome, Refusal)]
        assert codes.count(ReasonCode.QUOTE_SIGNATURE_INVALID) == MAX_TRIES
        assert codes.count(ReasonCode.NONCE_TRIES_EXHAUSTED) == 20 - MAX_TRIES
        assert verifier.service._nonces._counting == {}

    with_node(verifier, scenario)


def test_a_node_that_proves_itself_without_pause_is_told_to_wait_and_keeps_its_verdict(tmp_path: Path) -> None:
    async def scenario(http: Http) -> None:
        busy, other = fleet.node(0), fleet.node(1)
        for forged in (busy, other):
            await fleet.enrol(http.verifier, forged)
        answers = [await http.attest(busy) for _ in range(13)]
        assert [answer.get("verdict") for answer in answers[:10]] == ["affirming"] * 10
        assert [answer["code"] for answer in answers[10:]] == [ReasonCode.RATE_LIMITED] * 3
        assert (await http.get("/v1/nodes/node-0"))["verdict"] == "affirming"
        assert (await http.attest(other))["verdict"] == "affirming"
        kinds = [json.loads(row.record)["kind"] for row in http.verifier.store.audit_after(0, 100)]
        assert "evidence-refused" not in kinds

    with_http(tmp_path / "v", scenario, evidence_per_node_per_minute=10)


@pytest.mark.parametrize("state", ["admitted", "pending"])
def test_a_node_that_asks_without_pause_is_told_to_wait_and_nothing_of_it_is_written(
    tmp_path: Path, state: NodeState
) -> None:
    async def scenario(http: Http) -> None:
        busy, other = fleet.node(0), fleet.node(1)
        await fleet.enrol(http.verifier, busy, state)
        await fleet.enrol(http.verifier, other)
        ways = (("/v1/challenges", RequestLabel.CHALLENGE), ("/v1/attest-now", RequestLabel.ATTEST_NOW))
        http.verifier.service.wanted.want_all([busy.enrolled.node_id, other.enrolled.node_id])
        answers = [
            await http.call("POST", path, fleet.signed(busy, fleet.NOW, label))
            for _ in range(11)
            for path, label in ways
        ]
        assert [answer.status_code for answer in answers] == [200] * 20 + [429] * 2
        assert answers[-1].json()["code"] == ReasonCode.RATE_LIMITED.value
        # One that keeps its pace is served.
        for path, label in ways:
            assert (await http.call("POST", path, fleet.signed(other, fleet.NOW, label))).status_code == 200

    with_http(tmp_path / "v", scenario, evidence_per_node_per_minute=10)


def test_a_stranger_at_the_same_address_does_not_hide_what_the_node_is_told(tmp_path: Path) -> None:
    async def scenario(http: Http) -> None:
        forged = fleet.node(0)
        await fleet.enrol(http.verifier, forged)
        challenge = await fleet.challenge(http.verifier, forged)
        codes = [(await http.call("POST", "/v1/evidence", b"{}")).json()["code"] for _ in range(7)]
        assert codes[-1] == ReasonCode.RATE_LIMITED
        unknown = fleet.encoded(fleet.evidence(forged, challenge), log_by_digest=True)
        told = await http.call("POST", "/v1/evidence", unknown)
        assert (told.status_code, told.json()["code"]) == (403, ReasonCode.BOOT_LOG_UNKNOWN_DIGEST)
        late = await http.call("POST", "/v1/challenges", fleet.signed(forged, fleet.NOW - 3600))
        assert late.json()["code"] == ReasonCode.REQUEST_NOT_FRESH
        strange = await http.call("POST", "/v1/challenges", fleet.signed(fleet.node(3), fleet.NOW))
        assert strange.json()["code"] == ReasonCode.RATE_LIMITED

    with_http(tmp_path / "v", scenario, refused_requests_per_minute=5)


def test_evidence_for_a_challenge_of_before_a_baseline_with_more_pcrs_condemns_nobody(verifier: Verifier) -> None:
    async def scenario(verifier: Verifier, forged: ForgedNode, challenge: IssuedChallenge) -> None:
        answer = await attest_to(verifier, fleet.encoded(fleet.evidence(forged, challenge)))
        old = fleet.issued(forged, answer["next_challenge"], fleet.NOW)
        document = baselines.document()
        document["metadata"]["version"] = "1.1.0"
        document["evidence"]["requirePcrReplay"].append(11)
        fleet.write_baseline(verifier.settings.baselines_dir, document)
        verifier.reload_baselines()
        assert await refused(verifier, fleet.encoded(fleet.evidence(forged, old))) is ReasonCode.CHALLENGE_OUTDATED
        kept = verifier.store.result(forged.enrolled.node_id)
        assert kept is not None and kept.verdict == "affirming"
        assert 11 in (await fleet.challenge(verifier, forged)).pcrs

    with_node(verifier, scenario)


def test_a_malformed_log_that_the_node_signed_lowers_its_verdict(verifier: Verifier) -> None:
    async def scenario(verifier: Verifier, forged: ForgedNode, challenge: IssuedChallenge) -> None:
        answer = await attest_to(verifier, fleet.encoded(fleet.evidence(forged, challenge)))
        following = fleet.issued(forged, answer["next_challenge"], fleet.NOW)
        answer = await attest_to(verifier, fleet.encoded(fleet.evidence(forged, following), log=b"\1" * 40))
        assert answer["verdict"] == "contraindicated"
        assert [reason["code"] for reason in answer["reasons"]] == [ReasonCode.BOOT_LOG_MALFORMED]
        following = fleet.issued(forged, answer["next_challenge"], fleet.NOW)
        assert (await attest_to(verifier, fleet.encoded(fleet.evidence(forged, following))))["verdict"] == "affirming"

    with_node(verifier, scenario)
