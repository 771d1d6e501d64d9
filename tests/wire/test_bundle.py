"""The bundle's form: one accepted spelling, a code of its own for each fault, and no other error whatever comes."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifier.wire.bundle import (
    MAX_ITEMS,
    BindingKey,
    BootLog,
    EvidenceBundle,
    HostFacts,
    ImaLog,
    KnownBody,
    NodeId,
    NodeToken,
    Nonce,
    TpmQuote,
)
from verifier.wire.bundle_codec import decode_bundle, encode_bundle
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence

BUNDLE = EvidenceBundle(
    NodeId("ab" * 32),
    Nonce(b"n" * 32),
    (
        TpmQuote(0, b"attest", b"signature", {"sha256": {0: bytes(32), 14: b"\xff" * 32}}),
        BootLog(0, b"log"),
        ImaLog(0, b"ima", 12),
        BindingKey(0, b"public", b"certify", b"certify signature"),
        NodeToken(0, b"token"),
        HostFacts(0, b"{}"),
    ),
)
MESSAGE: dict[str, Any] = json.loads(encode_bundle(BUNDLE))


def _refused(message: dict[str, Any] | bytes) -> ReasonCode:
    body = message if isinstance(message, bytes) else json.dumps(message).encode()
    with pytest.raises(MalformedEvidence) as caught:
        decode_bundle(body)
    return caught.value.code


def _changed(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    message = copy.deepcopy(MESSAGE)
    change(message)
    return message


def test_an_encoded_bundle_decodes_to_itself() -> None:
    assert decode_bundle(encode_bundle(BUNDLE)) == BUNDLE


def test_a_boot_log_named_by_digest_decodes_to_itself() -> None:
    bundle = EvidenceBundle(BUNDLE.claimed_node_id, BUNDLE.claimed_nonce, (BootLog(0, KnownBody(bytes(32), 7)),))
    assert decode_bundle(encode_bundle(bundle)) == bundle


def test_a_bundle_truncated_at_any_offset_is_malformed() -> None:
    body = encode_bundle(BUNDLE)
    for length in range(len(body)):
        assert _refused(body[:length]) is ReasonCode.JSON_INVALID


def test_a_bundle_with_an_appended_byte_is_malformed() -> None:
    assert _refused(encode_bundle(BUNDLE) + b"}") is ReasonCode.JSON_INVALID


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_only_ever_malformed(body: bytes) -> None:
    with pytest.raises(MalformedEvidence):
        decode_bundle(body)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=20,
)


@given(st.sampled_from(range(len(MESSAGE["items"]))), _JSON, st.data())
def test_any_value_in_any_field_decodes_or_is_malformed(position: int, value: Any, data: st.DataObject) -> None:
    message = copy.deepcopy(MESSAGE)
    item = message["items"][position]
    item[data.draw(st.sampled_from(sorted(item)))] = value
    try:
        decode_bundle(json.dumps(message).encode())
    except MalformedEvidence:
        return


FAULTS: dict[str, tuple[Callable[[dict[str, Any]], object], ReasonCode]] = {
    "no version": (lambda m: m.pop("version"), ReasonCode.VERSION_UNSUPPORTED),
    "a newer version": (lambda m: m.update(version=2), ReasonCode.VERSION_UNSUPPORTED),
    "true for a version": (lambda m: m.update(version=True), ReasonCode.VERSION_UNSUPPORTED),
    "an unknown field": (lambda m: m.update(extra=1), ReasonCode.SCHEMA_MISMATCH),
    "a missing field": (lambda m: m.pop("nonce"), ReasonCode.SCHEMA_MISMATCH),
    "no items": (lambda m: m.update(items=[]), ReasonCode.SCHEMA_MISMATCH),
    "items that are no list": (lambda m: m.update(items={}), ReasonCode.SCHEMA_MISMATCH),
    "an item that is no object": (lambda m: m["items"].append("x"), ReasonCode.SCHEMA_MISMATCH),
    "an item without a kind": (lambda m: m["items"][0].pop("kind"), ReasonCode.SCHEMA_MISMATCH),
    "an unknown field in an item": (lambda m: m["items"][1].update(x=1), ReasonCode.SCHEMA_MISMATCH),
    "a missing body": (lambda m: m["items"][0].pop("attest"), ReasonCode.SCHEMA_MISMATCH),
    "an empty body": (lambda m: m["items"][0].update(attest=""), ReasonCode.SCHEMA_MISMATCH),
    "a body that is no text": (lambda m: m["items"][0].update(attest=1), ReasonCode.SCHEMA_MISMATCH),
    "no PCR values": (lambda m: m["items"][0].update(pcrs={}), ReasonCode.SCHEMA_MISMATCH),
    "an unknown bank": (lambda m: m["items"][0].update(pcrs={"md5": {"0": "00"}}), ReasonCode.SCHEMA_MISMATCH),
    "PCR 24": (lambda m: m["items"][0]["pcrs"]["sha256"].update({"24": "00" * 32}), ReasonCode.SCHEMA_MISMATCH),
    "PCR 00": (lambda m: m["items"][0]["pcrs"]["sha256"].update({"00": "00" * 32}), ReasonCode.SCHEMA_MISMATCH),
    "a short nonce": (lambda m: m.update(nonce="AAAA"), ReasonCode.SCHEMA_MISMATCH),
    "a negative offset": (lambda m: m["items"][2].update(offset=-1), ReasonCode.SCHEMA_MISMATCH),
    "an unknown kind": (lambda m: m["items"][0].update(kind="tpm-quote2"), ReasonCode.ITEM_KIND_UNKNOWN),
    "an item twice": (lambda m: m["items"].append(m["items"][0]), ReasonCode.ITEM_DUPLICATED),
    "a gap in the indices": (lambda m: m["items"][0].update(index=1), ReasonCode.ITEM_INDEX_INVALID),
    "no index": (lambda m: m["items"][0].pop("index"), ReasonCode.ITEM_INDEX_INVALID),
    "true for an index": (lambda m: m["items"][0].update(index=True), ReasonCode.ITEM_INDEX_INVALID),
    "a negative index": (lambda m: m["items"][0].update(index=-1), ReasonCode.ITEM_INDEX_INVALID),
    "padded base64": (lambda m: m["items"][1].update(log="bG9nMQ=="), ReasonCode.ENCODING_NOT_CANONICAL),
    "trailing bits in base64": (lambda m: m["items"][1].update(log="bG9nMR"), ReasonCode.ENCODING_NOT_CANONICAL),
    "standard base64": (lambda m: m["items"][1].update(log="+/+/"), ReasonCode.ENCODING_NOT_CANONICAL),
    "upper-case hex": (lambda m: m.update(node_id="AB" * 32), ReasonCode.ENCODING_NOT_CANONICAL),
    "a node id of another size": (lambda m: m.update(node_id="ab" * 31), ReasonCode.ENCODING_NOT_CANONICAL),
    "a PCR value of another size": (
        lambda m: m["items"][0]["pcrs"]["sha256"].update({"1": "00" * 20}),
        ReasonCode.ENCODING_NOT_CANONICAL,
    ),
    "too many items": (lambda m: m.update(items=m["items"] * MAX_ITEMS), ReasonCode.BODY_TOO_LARGE),
    "an oversized structure": (lambda m: m["items"][0].update(attest="A" * 8192), ReasonCode.BODY_TOO_LARGE),
    "a token beyond its limit": (lambda m: m["items"][4].update(token="A" * 24_000), ReasonCode.BODY_TOO_LARGE),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_bundle_with_one_fault_is_refused_with_its_code(name: str) -> None:
    change, code = FAULTS[name]
    assert _refused(_changed(change)) is code


def test_a_nonce_longer_than_32_bytes_is_refused() -> None:
    assert _refused(_changed(lambda m: m.update(nonce="A" * 44))) is ReasonCode.BODY_TOO_LARGE
