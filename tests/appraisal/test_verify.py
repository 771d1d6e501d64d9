"""The numbered checks of `authenticate` (1 to 11) and `verify` (12 to 16): accepted evidence, one thing changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.forge import attest
from tests.forge.evidence import (
    NOW,
    VERIFIER_ID,
    ForgedEvidence,
    accepted,
    challenge_for,
    forged_binding,
    forged_node,
    measured,
    pcrs_of,
)
from tests.forge.keys import (
    ECDSA_SHA256,
    AkKind,
    EkKind,
    SoftKey,
    attestation_key,
    public_area,
    sized,
)
from verifier.appraisal.authenticate import AuthenticBundle, authenticate
from verifier.appraisal.context import IssuedChallenge, LastSeen
from verifier.appraisal.verify import VerifiedBundle, verify
from verifier.evidence.parse import parse_bundle
from verifier.evidence.tpm import parse_public
from verifier.wire.bundle import EvidenceBundle, KnownBody, NodeId, Nonce, TpmQuote
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure, Refusal, Rejection


def _authenticate(
    evidence: ForgedEvidence, challenge: IssuedChallenge | None = None, last_seen: LastSeen | None = None
) -> AuthenticBundle:
    challenge = evidence.challenge if challenge is None else challenge
    parsed = parse_bundle(evidence.bundle())
    return authenticate(parsed, evidence.node.enrolled, challenge, VERIFIER_ID, last_seen)


def _verify(evidence: ForgedEvidence, last_seen: LastSeen | None = None) -> VerifiedBundle:
    boot = None if evidence.log is None else measured(evidence.log)
    return verify(_authenticate(evidence, last_seen=last_seen), boot, None)


def _refusal(call: Callable[[], object]) -> ReasonCode:
    with pytest.raises(Refusal) as caught:
        call()
    return caught.value.code


def _refused(
    evidence: ForgedEvidence, challenge: IssuedChallenge | None = None, last_seen: LastSeen | None = None
) -> ReasonCode:
    return _refusal(lambda: _authenticate(evidence, challenge, last_seen))


def _refused_bundle(bundle: EvidenceBundle, evidence: ForgedEvidence) -> ReasonCode:
    parsed = parse_bundle(bundle)
    return _refusal(lambda: authenticate(parsed, evidence.node.enrolled, evidence.challenge, VERIFIER_ID, None))


@pytest.mark.parametrize("ek", ["rsa-2048", "p-256", "p-384"])
@pytest.mark.parametrize("ak", ["p-256", "rsa-2048"])
def test_evidence_of_every_kind_of_ek_and_ak_is_verified(ek: EkKind, ak: AkKind) -> None:
    verified = _verify(accepted(node=forged_node(ek, ak)))
    assert verified.replayed == frozenset(verified.authentic.pcrs)
    assert verified.unreplayed == {}
    assert verified.binding_key is not None


def test_only_authenticate_and_verify_make_what_they_return() -> None:
    verified = _verify(accepted())
    with pytest.raises(TypeError):
        replace(verified.authentic, maker=object())
    with pytest.raises(TypeError):
        replace(verified, maker=verified.authentic.maker)


# 1: the AK's form


@pytest.mark.parametrize("attributes", [0x00040472, 0x00050470, 0x00070472, 0x00050452, 0x00050062, 0x000504F2])
def test_check_1_an_ak_with_other_attributes_is_refused(attributes: int) -> None:
    evidence = accepted()
    ak = attestation_key(attributes=attributes)
    node = replace(evidence.node, ak=ak, enrolled=replace(evidence.node.enrolled, ak=parse_public(ak.tpm2b)))
    changed = replace(evidence, node=node, binding=None)
    assert _refused(changed) is ReasonCode.AK_ATTRIBUTES_UNSUITABLE


def test_check_1_an_ak_with_a_sha1_name_is_refused() -> None:
    evidence = accepted()
    private = attestation_key().private
    ak = SoftKey(private, public_area(private, 0x50472, scheme=ECDSA_SHA256, name_alg="sha1"), "sha1")
    enrolled = replace(evidence.node.enrolled, ak=parse_public(ak.tpm2b))
    changed = replace(evidence, node=replace(evidence.node, ak=ak, enrolled=enrolled))
    assert _refused(changed) is ReasonCode.AK_ALGORITHM_UNSUPPORTED


# 2: node and challenge


def test_check_2_a_bundle_that_names_another_node_is_refused() -> None:
    evidence = accepted()
    bundle = replace(evidence.bundle(), claimed_node_id=NodeId("00" * 32))
    assert _refused_bundle(bundle, evidence) is ReasonCode.NONCE_WRONG_NODE


def test_check_2_an_answer_to_another_nodes_challenge_is_refused() -> None:
    evidence = accepted()
    challenge = challenge_for(forged_node(which=1))
    assert _refused(evidence, challenge) is ReasonCode.NONCE_WRONG_NODE


def test_check_2_an_answer_to_another_nonce_is_refused() -> None:
    evidence = accepted()
    challenge = replace(evidence.challenge, nonce=Nonce(b"m" * 32))
    assert _refused(evidence, challenge) is ReasonCode.QUOTE_BINDING_MISMATCH


# 3: the items


def test_check_3_a_bundle_without_binding_key_is_refused() -> None:
    assert _refused(replace(accepted(), binding=None)) is ReasonCode.ITEM_MISSING


def test_check_3_a_bundle_without_host_facts_is_refused() -> None:
    assert _refused(replace(accepted(), linux_boot_id=None)) is ReasonCode.ITEM_MISSING


def test_check_3_a_wanted_node_token_must_be_there() -> None:
    node = forged_node()
    evidence = accepted(challenge=challenge_for(node, node_token=True))
    assert _refused(evidence) is ReasonCode.ITEM_MISSING
    assert _authenticate(replace(evidence, node_token=b"token")).parsed.node_token == b"token"


def test_check_3_a_node_token_that_nobody_asked_for_is_refused() -> None:
    evidence = replace(accepted(), node_token=b"token")
    assert _refused(evidence) is ReasonCode.ITEM_NOT_REQUESTED


def test_check_3_a_bundle_without_quote_is_refused() -> None:
    bundle = accepted().bundle()
    without = replace(bundle, items=bundle.items[1:])
    assert _refusal(lambda: parse_bundle(without)) is ReasonCode.ITEM_MISSING


# 4, 5: scheme and signature


def test_check_4_a_signature_of_another_scheme_is_refused() -> None:
    evidence = replace(accepted(), signing_key=attestation_key("rsa-2048"))
    assert _refused(evidence) is ReasonCode.QUOTE_SCHEME_MISMATCH


def test_check_4_a_signature_with_another_hash_is_refused() -> None:
    evidence = accepted()
    quote = evidence.bundle().items[0]
    assert isinstance(quote, TpmQuote)
    good = quote.signature
    changed = replace(evidence, signature=bytes.fromhex("0018000c") + good[4:])
    assert _refused(changed) is ReasonCode.QUOTE_SCHEME_MISMATCH


def test_check_5_a_quote_signed_by_the_ak_of_another_tpm_is_refused() -> None:
    evidence = replace(accepted(), signing_key=attestation_key(which=1))
    assert _refused(evidence) is ReasonCode.QUOTE_SIGNATURE_INVALID


@pytest.mark.parametrize("r,s", [(0, 0), (1, 1), (0, 1)])
def test_check_5_degenerate_signatures_are_refused(r: int, s: int) -> None:
    signature = ECDSA_SHA256 + sized(r.to_bytes(32, "big")) + sized(s.to_bytes(32, "big"))
    evidence = replace(accepted(), signature=signature)
    assert _refused(evidence) is ReasonCode.QUOTE_SIGNATURE_INVALID


# 6: the binding


def test_magic_and_type_are_checked_before_anything_is_believed() -> None:
    assert _refused(replace(accepted(), magic=0)) is ReasonCode.QUOTE_NOT_TPM_GENERATED
    assert _refused(replace(accepted(), kind=attest.TIME)) is ReasonCode.QUOTE_TYPE_WRONG


@pytest.mark.parametrize("extra", [b"", b"n" * 32, bytes(32), b"n" * 31])
def test_check_6_a_quote_over_other_extra_data_is_refused(extra: bytes) -> None:
    assert _refused(replace(accepted(), extra_data=extra)) is ReasonCode.QUOTE_BINDING_MISMATCH


def test_check_6_evidence_for_another_verifier_is_refused() -> None:
    evidence = replace(accepted(), verifier_id="https://evil.example")
    assert _refused(evidence) is ReasonCode.QUOTE_BINDING_MISMATCH


def test_check_6_an_item_exchanged_after_the_quote_is_refused() -> None:
    evidence = accepted()
    bundle = evidence.bundle()
    others = replace(
        evidence,
        log=b"another log",
        binding=forged_binding(evidence.node, 9, 9),
        linux_boot_id="00000000-0000-4000-8000-000000000000",
    ).items()
    for position, (item, other) in enumerate(zip(bundle.items[1:], others, strict=True), start=1):
        assert item.kind == other.kind
        items = (*bundle.items[:position], other, *bundle.items[position + 1 :])
        assert _refused_bundle(replace(bundle, items=items), evidence) is ReasonCode.QUOTE_BINDING_MISMATCH, item.kind


def test_check_6_dropping_the_boot_log_after_the_quote_is_refused() -> None:
    evidence = accepted()
    bundle = evidence.bundle()
    items = tuple(item for item in bundle.items if item.kind != "boot-log")
    assert _refused_bundle(replace(bundle, items=items), evidence) is ReasonCode.QUOTE_BINDING_MISMATCH


# 7, 8: bank and selection


def test_check_7_a_quote_of_an_inactive_bank_is_refused() -> None:
    for selection in (attest.selection([]), attest.selection([("sha256", [])])):
        evidence = replace(accepted(), quote_body=selection + sized(bytes(32)))
        assert _refused(evidence) is ReasonCode.PCR_BANK_INACTIVE


def test_check_8_a_quote_over_too_few_pcrs_is_refused() -> None:
    evidence = accepted()
    fewer = {pcr: value for pcr, value in evidence.pcrs.items() if pcr != 4}
    labels = {"sha256": dict(evidence.pcrs)}
    changed = replace(evidence, quote_body=attest.quote_body("sha256", fewer), labels=labels)
    assert _refused(changed) is ReasonCode.PCR_SELECTION_MISMATCH


def test_check_8_a_quote_over_more_pcrs_is_refused() -> None:
    evidence = accepted()
    changed = replace(evidence, pcrs={**evidence.pcrs, 23: bytes(32)})
    assert _refused(changed) is ReasonCode.PCR_SELECTION_MISMATCH


def test_check_8_a_quote_of_two_banks_is_refused() -> None:
    evidence = accepted()
    body = attest.quote_body("sha256", evidence.pcrs)
    digest = body[-34:]
    both = attest.selection([("sha1", [0]), ("sha256", sorted(evidence.pcrs))]) + digest
    assert _refused(replace(evidence, quote_body=both)) is ReasonCode.PCR_SELECTION_MISMATCH


def test_check_8_labels_that_differ_from_the_selection_are_refused() -> None:
    evidence = accepted()
    good = dict(evidence.pcrs)
    without = {pcr: value for pcr, value in good.items() if pcr != 7}
    for labels in (
        {"sha256": without},
        {"sha256": {**without, 15: good[7]}},
        {"sha256": {**good, 15: bytes(32)}},
        {"sha256": good, "sha1": {0: bytes(20)}},
        {"sha384": {pcr: bytes(48) for pcr in good}},
    ):
        changed = replace(evidence, labels=labels)
        assert _refused(changed) is ReasonCode.PCR_SELECTION_MISMATCH


# 9: the digest


def test_check_9_any_other_pcr_value_is_refused() -> None:
    evidence = accepted()
    for pcr, value in evidence.pcrs.items():
        for position in range(len(value)):
            altered = value[:position] + bytes([value[position] ^ 0x80]) + value[position + 1 :]
            changed = replace(evidence, labels={"sha256": {**evidence.pcrs, pcr: altered}}, quote_body=None)
            assert _refused(changed) is ReasonCode.PCR_DIGEST_MISMATCH


def test_check_9_values_in_exchanged_places_are_refused() -> None:
    evidence = accepted()
    pcrs = dict(evidence.pcrs)
    pcrs[0], pcrs[7] = pcrs[7], pcrs[0]
    assert _refused(replace(evidence, labels={"sha256": pcrs})) is ReasonCode.PCR_DIGEST_MISMATCH


# 10: the parent


@pytest.mark.parametrize("hierarchy", [attest.OWNER, attest.NULL_HIERARCHY])
def test_check_10_an_ak_under_another_hierarchy_is_refused(hierarchy: bytes) -> None:
    evidence = accepted()
    node = evidence.node
    for signer in (node.ak.qualified_name(hierarchy), node.ak.qualified_name(node.ek.qualified_name(hierarchy))):
        changed = replace(evidence, signer=signer)
        assert _refused(changed) is ReasonCode.QUOTE_SIGNER_NOT_UNDER_EK


def test_check_10_an_ak_under_another_ek_is_refused() -> None:
    evidence = accepted()
    other = forged_node(which=1)
    signer = evidence.node.ak.qualified_name(other.ek.qualified_name(attest.ENDORSEMENT))
    assert _refused(replace(evidence, signer=signer)) is ReasonCode.QUOTE_SIGNER_NOT_UNDER_EK


# 11, 12: clock and counters


@pytest.mark.parametrize("clock_ms", [0, 9_999, 10_000])
def test_check_11_a_clock_that_does_not_rise_within_one_boot_is_refused(clock_ms: int) -> None:
    evidence = accepted(clock_ms=clock_ms)
    assert _refused(evidence, last_seen=LastSeen(3, 0, 10_000)) is ReasonCode.CLOCK_REGRESSED


def test_a_clock_that_went_back_over_a_reset_is_accepted() -> None:
    evidence = accepted(clock_ms=5)
    assert _verify(evidence, LastSeen(2, 7, 10_000)).authentic.quote.clock.clock_ms == 5


@pytest.mark.parametrize("last", [(4, 0), (3, 1), (4, 5), (0xFFFFFFFF, 0)])
def test_check_12_counters_that_went_back_are_refused(last: tuple[int, int]) -> None:
    evidence = accepted()
    assert _refusal(lambda: _verify(evidence, LastSeen(*last, 1))) is ReasonCode.COUNTER_REGRESSED


# 14: the boot log


def test_check_14_evidence_without_a_boot_log_is_refused() -> None:
    assert _refusal(lambda: _verify(replace(accepted(), log=None))) is ReasonCode.BOOT_LOG_ABSENT


def test_check_14_a_log_named_by_digest_is_verified_like_the_log() -> None:
    evidence = replace(accepted(), log_by_digest=True)
    assert isinstance(_verify(evidence).authentic.parsed.boot_log, KnownBody)


def test_check_14_a_log_that_the_verifier_does_not_have_is_refused() -> None:
    evidence = replace(accepted(), log_by_digest=True)
    authentic = _authenticate(evidence)
    assert _refusal(lambda: verify(authentic, None, None)) is ReasonCode.BOOT_LOG_UNKNOWN_DIGEST


def test_check_14_another_log_than_the_one_named_is_refused() -> None:
    evidence = accepted()
    assert evidence.log is not None
    other = replace(measured(evidence.log), size=1)
    authentic = _authenticate(evidence)
    assert _refusal(lambda: verify(authentic, other, None)) is ReasonCode.BOOT_LOG_UNKNOWN_DIGEST


def test_check_14_a_log_measured_in_another_bank_is_refused() -> None:
    evidence = accepted()
    assert evidence.log is not None
    authentic = _authenticate(evidence)
    assert _refusal(lambda: verify(authentic, measured(evidence.log, "sha1"), None)) is ReasonCode.BOOT_LOG_BANK_MISSING


# 15, 16: the replay


def test_check_15_a_log_that_contradicts_itself_is_refused_for_its_first_contradiction() -> None:
    evidence = accepted()
    assert evidence.log is not None
    failures = (
        Failure(ReasonCode.EVENT_TYPE_FORGED, "boot.event", pcr=4, event_index=9),
        Failure(ReasonCode.EVENT_NOT_ALLOWED, "boot.event"),
    )
    authentic = _authenticate(evidence)
    with pytest.raises(Rejection) as caught:
        verify(authentic, replace(measured(evidence.log), failures=failures), None)
    assert caught.value.failure == failures[0]


@pytest.mark.parametrize("pcr", range(8))
def test_check_16_a_firmware_pcr_that_does_not_replay_is_refused(pcr: int) -> None:
    evidence = accepted()
    changed = replace(evidence, pcrs={**evidence.pcrs, pcr: b"\x55" * 32})
    with pytest.raises(Rejection) as caught:
        _verify(changed)
    assert caught.value.code is ReasonCode.PCR_REPLAY_MISMATCH
    assert caught.value.failure.pcr == pcr


def test_check_16_a_pcr_that_the_log_leaves_out_must_be_initial() -> None:
    evidence = accepted()
    assert evidence.log is not None
    boot = measured(evidence.log)
    left_out = replace(boot, pcrs={pcr: value for pcr, value in boot.pcrs.items() if pcr != 3})
    authentic = _authenticate(evidence)
    assert _refusal(lambda: verify(authentic, left_out, None)) is ReasonCode.PCR_WITHOUT_EVENTS


def test_check_16_a_bank_that_was_enabled_but_never_extended_is_refused() -> None:
    evidence = accepted()
    zeroed = replace(evidence, pcrs={pcr: bytes(32) for pcr in evidence.pcrs})
    assert _refusal(lambda: _verify(zeroed)) is ReasonCode.PCR_REPLAY_MISMATCH


def test_a_higher_pcr_that_the_log_does_not_account_for_is_told_and_not_replayed() -> None:
    evidence = accepted()
    verified = _verify(replace(evidence, pcrs={**evidence.pcrs, 9: b"\x55" * 32, 14: b"\x55" * 32}))
    assert {pcr: failure.code for pcr, failure in verified.unreplayed.items()} == {
        9: ReasonCode.PCR_REPLAY_MISMATCH,
        14: ReasonCode.PCR_REPLAY_MISMATCH,
    }
    assert verified.replayed == frozenset(evidence.pcrs) - {9, 14}


def test_a_pcr_that_starts_at_ones_is_initial_with_ones() -> None:
    node = forged_node()
    challenge = challenge_for(node, pcrs=(0, 1, 2, 3, 4, 5, 6, 7, 16, 17))
    evidence = accepted(challenge=challenge)
    honest = replace(evidence, pcrs={**evidence.pcrs, 17: b"\xff" * 32})
    assert 17 in _verify(honest).replayed
    assert _verify(replace(evidence, pcrs={**evidence.pcrs, 17: bytes(32)})).unreplayed[17].code is (
        ReasonCode.PCR_WITHOUT_EVENTS
    )


# recordings of other tools


def test_a_bare_nonce_recording_is_verified_without_binding_key_and_parent() -> None:
    evidence = accepted()
    challenge = replace(evidence.challenge, form="bare-nonce")
    recorded = replace(
        evidence,
        challenge=challenge,
        binding=None,
        linux_boot_id=None,
        signer=b"\x00\x0b" + bytes(32),
        extra_data=challenge.nonce,
    )
    assert _verify(recorded).binding_key is None


def test_a_bare_nonce_quote_does_not_answer_a_challenge_of_the_service() -> None:
    evidence = accepted()
    assert evidence.challenge.form == "bound"
    assert evidence.challenge.issued_at == NOW
    changed = replace(evidence, extra_data=evidence.challenge.nonce)
    assert _refused(changed) is ReasonCode.QUOTE_BINDING_MISMATCH


def test_pcr_values_follow_from_the_log() -> None:
    evidence = accepted()
    assert evidence.log is not None
    assert pcrs_of(evidence.log) == dict(evidence.pcrs)
