"""Writes binding.json: the binding definition worked out from its text alone, with hashlib, struct and json.

Run by hand (`python tests/vectors/binding/make_vectors.py`) only when the definition changes, which makes a new label.
It imports nothing of the product: attester and verifier share one implementation, so that a mistake there would pass
every round trip. Formulas are those of the documentation:

  extraData  = SHA-256("nodewarden/quote/1" 00 || nonce || node id || SHA-256(verifier id) || SHA-256(JCS(items)))
  items      = all but tpm-quote and ima-log, by kind, then index: {kind, index, NAME: {sha256, size}} for every body
  qualifying = SHA-256("nodewarden/binding-key/1" 00 || node id)
  boot id    = SHA-256(AK name || u32 resetCount || u32 restartCount)
  policy     = SHA-256(00 * 32 || 0000016D || SHA-256(u32 resetCount || u32 restartCount || 0010 || 0000))
"""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any


def sha(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def body(content: bytes) -> dict[str, Any]:
    return {"sha256": sha(content).hex(), "size": len(content)}


NONCE = bytes(range(32))
NODE_ID = sha(b"a node")
VERIFIER = "https://verifier.example"
LOG, PUBLIC, CERTIFY, SIGNATURE = b"\x00log" * 100, b"public area", b"certify attest", b"certify signature"
TOKEN, FACTS = b"ey.token.text", b'{"hostname":"a"}'

LOG_ITEM = {"kind": "boot-log", "index": 0, "log": body(LOG)}
KEY_ITEM = {
    "kind": "binding-key",
    "index": 0,
    "public": body(PUBLIC),
    "certify": body(CERTIFY),
    "certify_signature": body(SIGNATURE),
}
TOKEN_ITEM = {"kind": "node-token", "index": 0, "token": body(TOKEN)}
FACTS_ITEM = {"kind": "host-facts", "index": 0, "body": body(FACTS)}

SENT_LOG = {"kind": "boot-log", "index": 0, "log": LOG.hex()}
KNOWN_LOG = {"kind": "boot-log", "index": 0, "log_sha256": sha(LOG).hex(), "log_size": len(LOG)}
SENT_KEY = {
    "kind": "binding-key",
    "index": 0,
    "public": PUBLIC.hex(),
    "certify": CERTIFY.hex(),
    "certify_signature": SIGNATURE.hex(),
}
SENT_TOKEN = {"kind": "node-token", "index": 0, "token": TOKEN.hex()}
SENT_FACTS = {"kind": "host-facts", "index": 0, "body": FACTS.hex()}
IMA = {"kind": "ima-log", "index": 0, "log": b"ima".hex(), "offset": 7}
QUOTE = {"kind": "tpm-quote", "index": 0, "attest": b"attest".hex(), "signature": b"sig".hex()}


def extra_data(bound: list[Any], nonce: bytes = NONCE, node: bytes = NODE_ID, verifier: str = VERIFIER) -> str:
    jcs = json.dumps(bound, sort_keys=True, separators=(",", ":")).encode()
    return sha(b"nodewarden/quote/1\0" + nonce + node + sha(verifier.encode()) + sha(jcs)).hex()


def case(name: str, sent: list[Any], bound: list[Any], **changed: Any) -> dict[str, Any]:
    nonce, node = changed.get("nonce", NONCE), changed.get("node", NODE_ID)
    verifier = changed.get("verifier", VERIFIER)
    return {
        "name": name,
        "nonce": nonce.hex(),
        "node_id": node.hex(),
        "verifier_id": verifier,
        "items": sent,
        "extra_data": extra_data(bound, nonce, node, verifier),
    }


ALL_SENT = [QUOTE, SENT_TOKEN, SENT_LOG, SENT_FACTS, SENT_KEY]
ALL_BOUND = [KEY_ITEM, LOG_ITEM, FACTS_ITEM, TOKEN_ITEM]
QUOTE_CASES = [
    case("no item but the quote", [QUOTE], []),
    case("a boot log", [QUOTE, SENT_LOG], [LOG_ITEM]),
    case("the same boot log by digest", [QUOTE, KNOWN_LOG], [LOG_ITEM]),
    case("every kind, in another order than the bound one", ALL_SENT, ALL_BOUND),
    case("an IMA log is not bound", [QUOTE, SENT_LOG, IMA], [LOG_ITEM]),
    case(
        "two items of one kind, by index",
        [{**SENT_FACTS, "index": 1}, SENT_FACTS],
        [FACTS_ITEM, {**FACTS_ITEM, "index": 1}],
    ),
    case("another nonce", ALL_SENT, ALL_BOUND, nonce=bytes(32)),
    case("another node", ALL_SENT, ALL_BOUND, node=sha(b"another node")),
    case("another verifier", ALL_SENT, ALL_BOUND, verifier="https://other.example"),
    case("a verifier id beyond ASCII", ALL_SENT, ALL_BOUND, verifier="https://prüfer.example"),
]

AK_NAME = bytes.fromhex("000b") + sha(b"an AK")
COUNTERS = [(0, 0), (3, 0), (3, 1), (0xFFFFFFFF, 0xFFFFFFFE)]


def counters(reset: int, restart: int) -> dict[str, Any]:
    arguments = struct.pack(">IIHH", reset, restart, 16, 0)
    return {
        "reset_count": reset,
        "restart_count": restart,
        "boot_id": sha(AK_NAME + struct.pack(">II", reset, restart)).hex(),
        "policy": sha(bytes(32) + struct.pack(">I", 0x16D) + sha(arguments)).hex(),
    }


vectors = {
    "how": "tests/vectors/binding/make_vectors.py, standard library only",
    "quotes": QUOTE_CASES,
    "binding_key": {"node_id": NODE_ID.hex(), "qualifying_data": sha(b"nodewarden/binding-key/1\0" + NODE_ID).hex()},
    "boots": {"ak_name": AK_NAME.hex(), "cases": [counters(*pair) for pair in COUNTERS]},
}
Path(__file__).with_name("binding.json").write_text(json.dumps(vectors, indent=1, sort_keys=True) + "\n")
