"""The binding definition against vectors that were worked out apart from it."""

from __future__ import annotations

import dataclasses
import json
import typing
from pathlib import Path
from typing import Any

import pytest

from verifier.appraisal.binding_key import boot_policy
from verifier.wire.binding import binding_key_qualifying_data, boot_id, bound_items, quote_extra_data
from verifier.wire.bundle import (
    BindingKey,
    BootLog,
    HostFacts,
    ImaLog,
    Item,
    KnownBody,
    NodeId,
    NodeToken,
    Nonce,
    TpmQuote,
)

VECTORS = json.loads((Path(__file__).parent.parent / "vectors" / "binding" / "binding.json").read_text())


def _item(sent: dict[str, Any]) -> Item:
    body = {
        name: bytes.fromhex(sent[name]) for name in sent.keys() - {"kind", "index", "log_sha256", "log_size", "offset"}
    }
    index = sent["index"]
    match sent["kind"]:
        case "tpm-quote":
            return TpmQuote(index, body["attest"], body["signature"], {"sha256": {0: bytes(32)}})
        case "boot-log" if "log" in sent:
            return BootLog(index, body["log"])
        case "boot-log":
            return BootLog(index, KnownBody(bytes.fromhex(sent["log_sha256"]), sent["log_size"]))
        case "binding-key":
            return BindingKey(index, body["public"], body["certify"], body["certify_signature"])
        case "node-token":
            return NodeToken(index, body["token"])
        case "host-facts":
            return HostFacts(index, body["body"])
        case _:
            return ImaLog(index, body["log"], sent["offset"])


@pytest.mark.parametrize("case", VECTORS["quotes"], ids=lambda case: case["name"])
def test_quote_extra_data_equals_the_vector(case: dict[str, Any]) -> None:
    items = tuple(_item(sent) for sent in case["items"])
    computed = quote_extra_data(
        Nonce(bytes.fromhex(case["nonce"])), NodeId(case["node_id"]), case["verifier_id"], items
    )
    assert computed.hex() == case["extra_data"]


def test_the_order_in_which_items_are_sent_does_not_matter() -> None:
    case = next(case for case in VECTORS["quotes"] if case["name"].startswith("every kind"))
    items = tuple(_item(sent) for sent in case["items"])
    assert bound_items(items) == bound_items(items[::-1])


def test_every_body_of_every_bound_item_enters_the_digest() -> None:
    case = next(case for case in VECTORS["quotes"] if case["name"].startswith("every kind"))
    items = tuple(_item(sent) for sent in case["items"])
    nonce, node, verifier = Nonce(bytes.fromhex(case["nonce"])), NodeId(case["node_id"]), case["verifier_id"]
    bound = [item for item in items if not isinstance(item, TpmQuote)]
    assert len(bound) == 4
    for item in bound:
        for field in dataclasses.fields(item):
            value = getattr(item, field.name)
            if not isinstance(value, bytes):
                continue
            change: dict[str, Any] = {field.name: value[:-1] + bytes([value[-1] ^ 1])}
            altered = dataclasses.replace(item, **change)
            changed = tuple(altered if other is item else other for other in items)
            assert quote_extra_data(nonce, node, verifier, changed).hex() != case["extra_data"], field.name


def test_every_item_kind_is_bound_or_left_out_on_purpose() -> None:
    kinds = {typing.get_args(typing.get_type_hints(kind)["kind"])[0] for kind in typing.get_args(Item)}
    covered = {sent["kind"] for case in VECTORS["quotes"] for sent in case["items"]}
    assert covered == kinds


def test_binding_key_qualifying_data_equals_the_vector() -> None:
    vector = VECTORS["binding_key"]
    assert binding_key_qualifying_data(NodeId(vector["node_id"])).hex() == vector["qualifying_data"]


@pytest.mark.parametrize(
    "case", VECTORS["boots"]["cases"], ids=lambda case: f"{case['reset_count']}-{case['restart_count']}"
)
def test_boot_id_and_policy_equal_the_vector(case: dict[str, Any]) -> None:
    name = bytes.fromhex(VECTORS["boots"]["ak_name"])
    assert boot_id(name, case["reset_count"], case["restart_count"]) == case["boot_id"]
    assert boot_policy(case["reset_count"], case["restart_count"]).hex() == case["policy"]
