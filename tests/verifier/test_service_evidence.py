"""The path of evidence: what changes a verdict, what is refused, and that a refusal changes nothing."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jwt
import pytest

from tests.forge import attest, baselines
from tests.forge.evidence import ForgedEvidence, ForgedNode, forged_binding, vm_log
from tests.verifier import fleet
from verifier.appraisal.context import IssuedChallenge
from verifier.server import Verifier
from verifier.service import MAX_TRIES
from verifier.store.attestation import MAX_LIVE_CHALLENGES
from verifier.wire.bundle import ImaLog, Nonce
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Refusal
from verifier.wire.messages import decode_message
from verifier.wire.result import AttestationResult, Verdict, result_from_claims
from verifier.wire.signed_request import RequestLabel
from verifier.wire.verdict import EvidenceResponse

Scenario = Callable[[Verifier, ForgedNode, IssuedChallenge], Awaitable[None]]


@pytest.fixture
def clock() -> fleet.SetClock:
    return fleet.SetClock()


@pytest.fixture
def verifier(tmp_path: Path, clock: fleet.SetClock) -> Iterator[Verifier]:
    started = fleet.start(tmp_path / "v", clock)
    yield started
    started.close()


def with_node(verifier: Verifier, scenario: Scenario) -> None:
    """Runs `scenario` with an enrolled node and a live challenge for it."""

    async def run() -> None:
        forged = fleet.node(0)
        await fleet.enrol(verifier, forged)
        await scenario(verifier, forged, await fleet.challenge(verifier, forged))

    asyncio.run(run())


async def attest_to(verifier: Verifier, body: bytes) -> dict[str, Any]:
    """The decoded answer to evidence, in exactly the wire's form."""
    answered = await verifier.service.attest(body, "request-1")
    decode_message(EvidenceResponse, answered.body, "answer")
    fields: dict[str, Any] = json.loads(answered.body)
    return fields


async def refused(verifier: Verifier, body: bytes) -> ReasonCode:
    """The code with which evidence is refused."""
    with pytest.raises(Refusal) as caught:
        await verifier.service.attest(body, "request-1")
    return caught.value.code


def result_of(verifier: Verifier, token: str) -> AttestationResult:
    """The result in a token that this verifier signed."""
    key = jwt.PyJWKSet.from_dict(verifier.signer.jwks)[jwt.get_unverified_header(token)["kid"]]
    options: Any = {"verify_exp": False, "verify_iat": False}
    claims = jwt.decode(token, key, algorithms=["ES256"], audience="test-cluster", options=options)
    return result_from_claims(claims)


def test_good_evidence_is_affirmed_and_bound_to_node_boot_and_key(verifier: Verifier) -> None:
    async def scenario(verifier: Verifier, forged: ForgedNode, challenge: IssuedChallenge) -> None:
        answer = await attest_to(verifier, fleet.encoded(fleet.evidence(forged, challenge)))
        result = result_of(verifier, answer["result"])
        assert answer["verdict"] == result.verdict == Verdict.AFFIRMING
        assert (result.node_id, result.node_name) == (forged.enrolled.node_id, "node-0")
        assert (result.issued_at, result.expires_at) == (fleet.NOW, fleet.NOW + 300)
        assert result.sequence == fleet.NOW * 1000
        assert result.baseline is not None and result.baseline.version == "1.0.0"
        assert result.binding_key is not None and result.linux_boot_id is not None
        assert result.reasons == ()

    with_node(verifier, scenario)


def test_a_result_ends_by_the_age_of_its_nonce_not_of_its_arrival(verifier: Verifier, clock: fleet.SetClock) -> None:
    async def scenario(verifier: Verifier, forged: ForgedNode, challenge: IssuedChallenge) -> None:
        clock.forward(100)
        answer = await attest_to(verifier, fleet.encoded(fleet.evidence(forged, challenge)))
        assert result_of(verifier, answer["result"]).expires_at == fleet.NOW + 300

    with_node(verifier, scenario)


def test_the_steady_state_is_one_round_trip_with_the_log_named_by_digest(verifier: Verifier) -> None:
    async def scenario(verifier: Verifier, forged: ForgedNode, challenge: IssuedChallenge) -> None:
        answer = await attest_to(verifier, fleet.encoded(fleet.evidence(forged, challenge)))
        for _ in range(3):
            following = answer["next_challenge"]
            assert following["collect"]["boot_log_known_sha256"] == hashlib.sha256(vm_log()).hexdigest()
            evidence = fleet.evidence(forged, fleet.issued(forged, following, fleet.NOW))
            answer = await attest_to(verifier, fleet.encoded(evidence, log_by_digest=True))
            assert answer["verdict"] == "affirming"

    with_node(verifier, scenario)


def test_sequence_numbers_rise_even_when_the_clock_stands_or_goes_back(
    verifier: Verifier, clock: fleet.SetClock
) -> None:
    async def scenario(verifier: Verifier, forged: ForgedNode, challenge: IssuedChallenge) -> None:
        first = await attest_to(verifier, fleet.encoded(fleet.evidence(forged, challenge)))
        clock.forward(-1)
        following = fleet.issued(forged, first["next_challenge"], fleet.NOW)
        second = await attest_to(verifier, fleet.encoded(fleet.evidence(forged, following)))
        before, after = (result_of(verifier, answer["result"]).sequence for answer in (first, second))
        assert after == before + 1

    with_node(verifier, scenario)


def test_another_command_line_is_answered_with_a_verdict_and_its_reason(verifier: Verifier) -> None:
    document = baselines.document()
    document["bootSets"][0]["cmdline"]["require"].append("module.sig_enforce=1")
    fleet.write_baseline(verifier.settings.baselines_dir, document)
    verifier.reload_baselines()

    async def scenario(verifier: Verifier, forged: ForgedNode, challenge: IssuedChallenge) -> None:
        answer = await attest_to(verifier, fleet.encoded(fleet.evidence(forged, challenge)))
        assert answer["verdict"] == "contraindicated"
        assert ReasonCode.CMDLINE_ARGUMENT_MISSING in [reason["code"] for reason in answer["reasons"]]

    with_node(verifier, scenario)


def test_a_node_without_a_baseline_gets_no_verdict(verifier: Verifier) -> None:
    (verifier.settings.baselines_dir / "good.yaml").unlink()
    verifier.reload_baselines()

    async def scenario(verifier: Verifier, forged: ForgedNode, challenge: IssuedChallenge) -> None:
        answer = await attest_to(verifier, fleet.encoded(fleet.evidence(forged, challenge)))
        assert (answer["verdict"], answer["reasons"][0]["code"]) == ("none", ReasonCode.BASELINE_NONE)

    with_node(verifier, scenario)


def test_an_invalid_baseline_keeps_the_old_set(verifier: Verifier) -> None:
    before = verifier.service.baselines
    (verifier.settings.baselines_dir / "bad.yaml").write_text("version: 1.10\n")
    verifier.reload_baselines()
    assert verifier.service.baselines is before


def test_what_the_node_itself_signed_wrongly_lowers_its_verdict(verifier: Verifier) -> None:
    async def scenario(verifier: Verifier, forged: ForgedNode, challenge: IssuedChallenge) -> None:
        good = fleet.evidence(forged, challenge)
        first = await attest_to(verifier, fleet.encoded(good))
        following = fleet.issued(forged, first["next_challenge"], fleet.NOW)
        wrong = dict(good.pcrs)
        wrong[4] = bytes(32)
        answer = await attest_to(verifier, fleet.encoded(fleet.evidence(forged, following), pcrs=wrong))
        assert answer["verdict"] == "contraindicated"
        assert answer["reasons"][0]["code"] == ReasonCode.PCR_REPLAY_MISMATCH
        assert result_of(verifier, answer["result"]).binding_key is None

    with_node(verifier, scenario)


def test_counters_that_went_back_stay_refused_until_enrolment(verifier: Verifier) -> None:
    async def scenario(verifier: Verifier, forged: ForgedNode, challenge: IssuedChallenge) -> None:
        answer = await attest_to(verifier, fleet.encoded(fleet.evidence(forged, challenge)))
        for _ in range(2):  # an older state, once accepted as the last one, would pass the second time
            following = fleet.issued(forged, answer["next_challenge"], fleet.NOW)
            older = fleet.evidence(forged, following)
            older = replace(older, reset_count=2, binding=forged_binding(forged, 2, 0))
            answer = await attest_to(verifier, fleet.encoded(older))
            assert answer["reasons"][0]["code"] == ReasonCode.COUNTER_REGRESSED
        other_ak = replace(fleet.record_of(forged), ak_public=fleet.node(9).ak.tpm2b)
        await fleet.enrol_record(verifier, other_ak)
        state = verifier.store.result(forged.enrolled.node_id)
        assert state is not None and state.verdict == "none"

    with_node(verifier, scenario)


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
    "a broken boot log": (ReasonCode.BOOT_LOG_MALFORMED, lambda e: fleet.encoded(e, log=b"no log")),
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
        waiting = asyncio.ensure_future(
            verifier.service.attest_now(fleet.signed(forged, fleet.NOW, RequestLabel.ATTEST_NOW))
        )
        await asyncio.sleep(0.05)
        assert not waiting.done()
        verifier.reload_baselines()
        assert await asyncio.wait_for(waiting, 5) is True
        assert await verifier.service.wanted.wait("00" * 32, 0.01) is False

    with_node(verifier, scenario)


@pytest.mark.parametrize(("profile", "claim"), [("deployed", "ear.status"), ("working-group", "ear_status")])
def test_results_speak_the_dialect_that_is_configured(tmp_path: Path, profile: str, claim: str) -> None:
    verifier = fleet.start(tmp_path / profile, fleet.SetClock(), profile=profile)

    async def scenario(verifier: Verifier, forged: ForgedNode, challenge: IssuedChallenge) -> None:
        answer = await attest_to(verifier, fleet.encoded(fleet.evidence(forged, challenge)))
        assert result_of(verifier, answer["result"]).verdict is Verdict.AFFIRMING
        assert claim in jwt.decode(answer["result"], options={"verify_signature": False})

    with_node(verifier, scenario)
    verifier.close()


def test_a_rejected_log_is_neither_kept_nor_named(verifier: Verifier) -> None:
    async def scenario(verifier: Verifier, forged: ForgedNode, challenge: IssuedChallenge) -> None:
        good = fleet.evidence(forged, challenge)
        wrong = dict(good.pcrs)
        wrong[0] = bytes(32)
        answer = await attest_to(verifier, fleet.encoded(good, pcrs=wrong))
        assert answer["next_challenge"]["collect"]["boot_log_known_sha256"] is None
        assert verifier.store.boot_log(hashlib.sha256(vm_log()).digest()) is None

    with_node(verifier, scenario)


def test_claims_that_are_remembered_are_the_claims_that_would_be_made(verifier: Verifier) -> None:
    async def scenario(verifier: Verifier, forged: ForgedNode, challenge: IssuedChallenge) -> None:
        claims, following = [], challenge
        for _ in range(3):
            answer = await attest_to(verifier, fleet.encoded(fleet.evidence(forged, following)))
            claims.append(jwt.decode(answer["result"], options={"verify_signature": False}))
            result_of(verifier, answer["result"])
            following = fleet.issued(forged, answer["next_challenge"], fleet.NOW)
        sequences = [made["nodewarden"].pop("seq") for made in claims]
        digests = [made["nodewarden"].pop("evidence_sha256") for made in claims]
        assert claims[0] == claims[1] == claims[2]
        assert sequences == sorted(set(sequences)) and len(set(digests)) == 3
        # Another boot: nothing of the former is remembered.
        rebooted = fleet.evidence(forged, following)
        rebooted = replace(rebooted, reset_count=4, binding=forged_binding(forged, 4, 0))
        answer = await attest_to(verifier, fleet.encoded(rebooted))
        after = jwt.decode(answer["result"], options={"verify_signature": False})
        assert after["cnf"] != claims[0]["cnf"]
        assert after["nodewarden"]["boot_id"] != claims[0]["nodewarden"]["boot_id"]
        await fleet.enrol_record(verifier, replace(fleet.record_of(forged), cohort="prod-b"))
        following = await fleet.challenge(verifier, forged)
        moved = fleet.evidence(forged, following)
        moved = replace(moved, reset_count=4, binding=forged_binding(forged, 4, 0))
        answer = await attest_to(verifier, fleet.encoded(moved))
        assert result_of(verifier, answer["result"]).cohort == "prod-b"

    with_node(verifier, scenario)
