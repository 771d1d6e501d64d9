"""The bundle's JSON: decoding with a reason code for every fault, and encoding to the one canonical text.

Hand-written rather than modelled: this is the hot path, and a decoder that checks one field at a time can say which.
Nothing that is decoded is believed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, assert_never

from verifier.wire.bundle import (
    MAX_BOOT_LOG_BYTES,
    MAX_FACTS_BYTES,
    MAX_IMA_PART_BYTES,
    MAX_ITEMS,
    MAX_STRUCTURE_BYTES,
    MAX_TOKEN_BYTES,
    NONCE_BYTES,
    PCR_BANK_BYTES,
    VERSION,
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
from verifier.wire.encoding import (
    canonical_json,
    decode_base64url,
    decode_hex,
    decode_json_object,
    encode_base64url,
)
from verifier.wire.failures import MalformedEvidence


def decode_bundle(body: bytes) -> EvidenceBundle:
    """The bundle whose JSON is `body`; every size and spelling is checked, no claim is.

    Raises MalformedEvidence: `json-invalid`, `body-too-large`, `version-unsupported`, `schema-mismatch`,
    `encoding-not-canonical`, `item-kind-unknown`, `item-duplicated`, `item-index-invalid`.
    """
    return decode_items(decode_head(body))


class BundleHead(NamedTuple):
    """Whose bundle it claims to be and which nonce it answers; its items are still JSON."""

    claimed_node_id: NodeId
    claimed_nonce: Nonce
    items: list[Any]


def decode_head(body: bytes) -> BundleHead:
    """The head of the bundle whose JSON is `body`, so that a nonce which is not live ends it here.

    Raises MalformedEvidence as `decode_bundle`, for all but the items.
    """
    return _head(decode_json_object(body, "bundle"))


def bundle_from_json(message: dict[str, Any]) -> EvidenceBundle:
    """As `decode_bundle`, from the decoded JSON object."""
    return decode_items(_head(message))


def _head(message: dict[str, Any]) -> BundleHead:
    if message.get("version") != VERSION or type(message["version"]) is not int:
        seen = message.get("version")
        raise MalformedEvidence(ReasonCode.VERSION_UNSUPPORTED, "bundle.version", repr(seen), str(VERSION))
    _require_fields(message, _BUNDLE_FIELDS, "bundle")
    node_id = NodeId(_text(message, "node_id", "bundle"))
    decode_hex(node_id, "bundle.node_id", 32)
    nonce = Nonce(decode_base64url(_text(message, "nonce", "bundle"), "bundle.nonce", NONCE_BYTES))
    if len(nonce) != NONCE_BYTES:
        raise MalformedEvidence(
            ReasonCode.SCHEMA_MISMATCH, "bundle.nonce", f"{len(nonce)} bytes", f"{NONCE_BYTES} bytes"
        )
    items = message["items"]
    if type(items) is not list or not items:
        raise MalformedEvidence(ReasonCode.SCHEMA_MISMATCH, "bundle.items", None, "a list with at least one item")
    if len(items) > MAX_ITEMS:
        raise MalformedEvidence(
            ReasonCode.BODY_TOO_LARGE, "bundle.items", f"{len(items)} items", f"at most {MAX_ITEMS}"
        )
    return BundleHead(node_id, nonce, items)


def decode_items(head: BundleHead) -> EvidenceBundle:
    """The whole bundle of `head`. Raises MalformedEvidence as `decode_bundle`, for the items."""
    decoded = tuple([_item(item, where) for item, where in zip(head.items, _ITEMS, strict=False)])
    kinds = [item.kind for item in decoded]
    if len(set(kinds)) != len(kinds):
        twice = next(kind for kind in kinds if kinds.count(kind) > 1)
        raise MalformedEvidence(ReasonCode.ITEM_DUPLICATED, f"{twice}[0]")
    return EvidenceBundle(head.claimed_node_id, head.claimed_nonce, decoded)


def _item(item: object, where: str) -> Item:
    if type(item) is not dict:
        raise MalformedEvidence(ReasonCode.SCHEMA_MISMATCH, where, type(item).__name__, "an object")
    kind = item.get("kind")
    if type(kind) is not str:
        raise MalformedEvidence(ReasonCode.SCHEMA_MISMATCH, f"{where}.kind", None, "a string")
    decoder = _DECODERS.get(kind)
    if decoder is None:
        raise MalformedEvidence(ReasonCode.ITEM_KIND_UNKNOWN, f"{where}.kind", kind, ", ".join(_DECODERS))
    return decoder(item, where, _index(item, where))


def _index(item: dict[str, Any], where: str) -> int:
    index = item.get("index")
    # Of each kind that there is yet, a node has one.
    if type(index) is not int or index != 0:
        raise MalformedEvidence(ReasonCode.ITEM_INDEX_INVALID, f"{where}.index", repr(index), "0")
    return index


def _require_fields(message: dict[str, Any], fields: frozenset[str], where: str) -> None:
    if message.keys() != fields:
        wrong = sorted(str(key) for key in message.keys() ^ fields)
        raise MalformedEvidence(
            ReasonCode.SCHEMA_MISMATCH, where, f"missing or unknown: {', '.join(wrong)}", ", ".join(sorted(fields))
        )


def _text(message: dict[str, Any], name: str, where: str) -> str:
    value = message[name]
    if type(value) is not str:
        raise MalformedEvidence(ReasonCode.SCHEMA_MISMATCH, f"{where}.{name}", type(value).__name__, "a string")
    return value


def _body(item: dict[str, Any], name: str, where: str, max_bytes: int) -> bytes:
    value = decode_base64url(_text(item, name, where), f"{where}.{name}", max_bytes)
    if not value:
        # Attack: an empty body whose check is skipped somewhere because it is false.
        raise MalformedEvidence(ReasonCode.SCHEMA_MISMATCH, f"{where}.{name}", "empty", "at least one byte")
    return value


def _natural(item: dict[str, Any], name: str, where: str, maximum: int) -> int:
    value = item[name]
    if type(value) is not int or not 0 <= value <= maximum:
        raise MalformedEvidence(ReasonCode.SCHEMA_MISMATCH, f"{where}.{name}", repr(value), f"0 to {maximum}")
    return value


_ITEMS = tuple(f"items[{position}]" for position in range(MAX_ITEMS))
_BUNDLE_FIELDS = frozenset({"version", "node_id", "nonce", "items"})
_QUOTE_FIELDS = frozenset({"kind", "index", "attest", "signature", "pcrs"})
_BOOT_LOG_FIELDS = frozenset({"kind", "index", "log"})
_KNOWN_LOG_FIELDS = frozenset({"kind", "index", "log_sha256", "log_size"})
_IMA_FIELDS = frozenset({"kind", "index", "log", "offset"})
_BINDING_KEY_FIELDS = frozenset({"kind", "index", "public", "certify", "certify_signature"})
_TOKEN_FIELDS = frozenset({"kind", "index", "token"})
_HOST_FACTS_FIELDS = frozenset({"kind", "index", "body"})
_PCR_NAMES: Mapping[str, int] = {str(index): index for index in range(24)}


def _quote(item: dict[str, Any], where: str, index: int) -> TpmQuote:
    _require_fields(item, _QUOTE_FIELDS, where)
    attest = _body(item, "attest", where, MAX_STRUCTURE_BYTES)
    signature = _body(item, "signature", where, MAX_STRUCTURE_BYTES)
    banks = item["pcrs"]
    if type(banks) is not dict or not banks:
        raise MalformedEvidence(ReasonCode.SCHEMA_MISMATCH, f"{where}.pcrs", None, "PCR values by bank")
    return TpmQuote(
        index, attest, signature, {bank: _pcr_values(bank, values, where) for bank, values in banks.items()}
    )


def _pcr_values(bank: str, values: object, where: str) -> Mapping[int, bytes]:
    size = PCR_BANK_BYTES.get(bank)
    if size is None or type(values) is not dict or not values:
        raise MalformedEvidence(ReasonCode.SCHEMA_MISMATCH, f"{where}.pcrs", bank, "values by PCR for a known bank")
    result: dict[int, bytes] = {}
    for name, value in values.items():
        pcr = _PCR_NAMES.get(name)
        if pcr is None or type(value) is not str:
            expected = "PCR 0 to 23 as text, each in hexadecimal text"
            raise MalformedEvidence(ReasonCode.SCHEMA_MISMATCH, f"{where}.pcrs.{bank}", name, expected)
        result[pcr] = decode_hex(value, f"{where}.pcrs.{bank}.{name}", size)
    return MappingProxyType(result)


def _boot_log(item: dict[str, Any], where: str, index: int) -> BootLog:
    if "log" in item:
        _require_fields(item, _BOOT_LOG_FIELDS, where)
        return BootLog(index, _body(item, "log", where, MAX_BOOT_LOG_BYTES))
    _require_fields(item, _KNOWN_LOG_FIELDS, where)
    size = _natural(item, "log_size", where, MAX_BOOT_LOG_BYTES)
    return BootLog(index, KnownBody(decode_hex(_text(item, "log_sha256", where), f"{where}.log_sha256", 32), size))


def _ima_log(item: dict[str, Any], where: str, index: int) -> ImaLog:
    _require_fields(item, _IMA_FIELDS, where)
    return ImaLog(index, _body(item, "log", where, MAX_IMA_PART_BYTES), _natural(item, "offset", where, 2**53))


def _binding_key(item: dict[str, Any], where: str, index: int) -> BindingKey:
    _require_fields(item, _BINDING_KEY_FIELDS, where)
    return BindingKey(
        index,
        _body(item, "public", where, MAX_STRUCTURE_BYTES),
        _body(item, "certify", where, MAX_STRUCTURE_BYTES),
        _body(item, "certify_signature", where, MAX_STRUCTURE_BYTES),
    )


def _node_token(item: dict[str, Any], where: str, index: int) -> NodeToken:
    _require_fields(item, _TOKEN_FIELDS, where)
    return NodeToken(index, _body(item, "token", where, MAX_TOKEN_BYTES))


def _host_facts(item: dict[str, Any], where: str, index: int) -> HostFacts:
    _require_fields(item, _HOST_FACTS_FIELDS, where)
    return HostFacts(index, _body(item, "body", where, MAX_FACTS_BYTES))


_DECODERS: Mapping[str, Callable[[dict[str, Any], str, int], Item]] = {
    "tpm-quote": _quote,
    "boot-log": _boot_log,
    "ima-log": _ima_log,
    "binding-key": _binding_key,
    "node-token": _node_token,
    "host-facts": _host_facts,
}


def encode_bundle(bundle: EvidenceBundle) -> bytes:
    """The canonical JSON of `bundle`; `decode_bundle` of it gives `bundle` back."""
    items = [item_as_json(item, encode_base64url) for item in bundle.items]
    nonce = encode_base64url(bundle.claimed_nonce)
    return canonical_json({"version": VERSION, "node_id": bundle.claimed_node_id, "nonce": nonce, "items": items})


def item_as_json(item: Item, body: Callable[[bytes], Any]) -> dict[str, Any]:
    """The item's JSON object, each body written by `body` (base64url on the wire, a file name in a recording)."""
    head: dict[str, Any] = {"kind": item.kind, "index": item.index}
    match item:
        case TpmQuote():
            pcrs = {bank: {str(p): v.hex() for p, v in values.items()} for bank, values in item.claimed_pcrs.items()}
            return head | {"attest": body(item.attest), "signature": body(item.signature), "pcrs": pcrs}
        case BootLog():
            if isinstance(item.log, KnownBody):
                return head | {"log_sha256": item.log.claimed_sha256.hex(), "log_size": item.log.claimed_size}
            return head | {"log": body(item.log)}
        case ImaLog():
            return head | {"log": body(item.log), "offset": item.offset}
        case BindingKey():
            signature = body(item.certify_signature)
            return head | {"public": body(item.public), "certify": body(item.certify), "certify_signature": signature}
        case NodeToken():
            return head | {"token": body(item.token)}
        case HostFacts():
            return head | {"body": body(item.body)}
        case _:
            assert_never(item)
