from __future__ import annotations

from dataclasses import replace

import pytest

from tests.forge import attest as forge
from tests.forge.keys import attestation_key, binding_key, sized
from verifier.evidence.parse import parse_bundle
from verifier.wire.binding import bound_sha256
from verifier.wire.bundle import (
    BindingKey,
    BootLog,
    EvidenceBundle,
    HostFacts,
    ImaLog,
    Item,
    KnownBody,
    NodeId,
    NodeToken,
    Nonce,
    TpmQuote,
)
from verifier.wire.codes import ReasonCode
from verifier.wire.encoding import canonical_json
from verifier.wire.failures import MalformedEvidence

PCRS = {"sha256": {0: bytes(32)}}


def _attest(kind: int, body: bytes) -> bytes:
    return forge.attest(kind, body, signer=b"", extra_data=b"", clock_ms=1, reset_count=1, restart_count=0)


QUOTE = _attest(forge.QUOTE, forge.quote_body("sha256", PCRS["sha256"]))
CERTIFY = _attest(forge.CERTIFY, sized(b"name") + sized(b"qualified"))
SIGNATURE = attestation_key().sign(b"message")
FACTS = canonical_json(
    {"hostname": "n", "kernel_release": "6", "linux_boot_id": "0b1c2d3e-4f50-4617-8293-a4b5c6d7e8f9"}
)
ITEMS: tuple[Item, ...] = (
    TpmQuote(0, QUOTE, SIGNATURE, PCRS),
    BootLog(0, b"log"),
    BindingKey(0, binding_key(1, 0).tpm2b, CERTIFY, SIGNATURE),
    NodeToken(0, b"token"),
    HostFacts(0, FACTS),
)


def _bundle(*items: Item) -> EvidenceBundle:
    return EvidenceBundle(NodeId("00" * 32), Nonce(bytes(32)), items)


def _refused(*items: Item) -> ReasonCode:
    with pytest.raises(MalformedEvidence) as refusal:
        parse_bundle(_bundle(*items))
    return refusal.value.code


def test_a_bundle_with_one_item_of_each_kind_parses_to_its_structures() -> None:
    parsed = parse_bundle(_bundle(*ITEMS))
    assert parsed.bound_sha256 == bound_sha256(ITEMS)
    assert parsed.quote.attest.raw == QUOTE
    assert parsed.quote.claimed_pcrs == PCRS
    assert parsed.binding_key is not None
    assert parsed.binding_key.certify.raw == CERTIFY
    assert parsed.boot_log == b"log"
    assert parsed.node_token == b"token"
    assert parsed.host_facts is not None


def test_items_other_than_the_quote_may_be_absent_and_are_then_none() -> None:
    parsed = parse_bundle(_bundle(ITEMS[0]))
    assert (parsed.binding_key, parsed.boot_log, parsed.node_token, parsed.host_facts) == (None, None, None, None)


def test_a_boot_log_named_by_digest_stays_a_name() -> None:
    known = KnownBody(bytes(32), 5)
    assert parse_bundle(_bundle(ITEMS[0], BootLog(0, known))).boot_log == known


def test_a_bundle_without_a_quote_is_refused() -> None:
    assert _refused(*ITEMS[1:]) is ReasonCode.ITEM_MISSING


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item.kind)
def test_a_second_item_of_a_kind_is_refused(item: Item) -> None:
    assert _refused(*ITEMS, replace(item, index=1)) is ReasonCode.ITEM_NOT_REQUESTED


def test_an_ima_log_is_refused_until_it_is_asked_for() -> None:
    assert _refused(*ITEMS, ImaLog(0, b"log", 0)) is ReasonCode.ITEM_NOT_REQUESTED


def test_a_certification_in_place_of_a_quote_is_refused() -> None:
    assert _refused(TpmQuote(0, CERTIFY, SIGNATURE, PCRS)) is ReasonCode.QUOTE_TYPE_WRONG


def test_a_quote_in_place_of_a_certification_is_refused() -> None:
    item = BindingKey(0, binding_key(1, 0).tpm2b, QUOTE, SIGNATURE)
    assert _refused(ITEMS[0], item) is ReasonCode.BINDING_KEY_CERTIFY_MISMATCH


def test_broken_structures_keep_their_own_codes() -> None:
    assert _refused(TpmQuote(0, QUOTE[:-1], SIGNATURE, PCRS)) is ReasonCode.ATTEST_MALFORMED
    assert _refused(TpmQuote(0, QUOTE, SIGNATURE[:-1], PCRS)) is ReasonCode.SIGNATURE_MALFORMED
    assert _refused(ITEMS[0], HostFacts(0, b"{}")) is ReasonCode.HOST_FACTS_MALFORMED
    assert _refused(ITEMS[0], BindingKey(0, b"\0\1x", CERTIFY, SIGNATURE)) is ReasonCode.PUBLIC_AREA_MALFORMED
