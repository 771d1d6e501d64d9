"""The path of evidence: what changes a verdict, and to what."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import jwt
import pytest

from tests.forge import baselines
from tests.forge.evidence import ForgedNode, forged_binding, vm_log
from tests.verifier import fleet
from tests.verifier.evidence import attest_to, result_of, with_node
from verifier.appraisal.context import IssuedChallenge
from verifier.server import Verifier
from verifier.wire.codes import ReasonCode
from verifier.wire.result import Verdict


@pytest.fixture
def clock() -> fleet.SetClock:
    return fleet.SetClock()


@pytest.fixture
def verifier(tmp_path: Path, clock: fleet.SetClock) -> Iterator[Verifier]:
    started = fleet.start(tmp_path / "v", clock)
    yield started
    started.close()


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
