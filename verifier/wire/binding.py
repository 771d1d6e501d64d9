"""What ties evidence together: the one definition of every digest that a nonce, a node and a key enter.

Both sides import this file, so a mistake here passes every round trip: tests pin it with fixed vectors computed apart.
All labels end in a zero byte, so that no label is a prefix of another message.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Any, assert_never

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
from verifier.wire.encoding import canonical_json

_QUOTE_LABEL = b"nodewarden/quote/1\0"
_BINDING_KEY_LABEL = b"nodewarden/binding-key/1\0"


def quote_extra_data(nonce: Nonce, node_id: NodeId, verifier_id: str, items: tuple[Item, ...]) -> bytes:
    """extraData (32 bytes) of the quote that answers `nonce` with `items`.

    SHA-256(label || nonce || node id (32 bytes) || SHA-256(verifier id) || SHA-256(JCS(bound items))). The verifier id
    is the verifier's `iss`; an attester takes it from its own settings, never from a challenge, or a false verifier
    could have evidence made for the true one.
    """
    return extra_data_binding(nonce, node_id, verifier_id, bound_sha256(items))


def extra_data_binding(nonce: Nonce, node_id: NodeId, verifier_id: str, bound: bytes) -> bytes:
    """As `quote_extra_data`, for items whose `bound_sha256` is `bound`."""
    prefix, verifier = _ends(node_id, verifier_id)
    return hashlib.sha256(b"".join((_QUOTE_LABEL, nonce, prefix, verifier, bound))).digest()


def bound_sha256(items: tuple[Item, ...]) -> bytes:
    """SHA-256(JCS(bound items)), 32 bytes: all of `items` that a quote binds."""
    return hashlib.sha256(canonical_json(bound_items(items))).digest()


@lru_cache(maxsize=16384)
def _ends(node_id: NodeId, verifier_id: str) -> tuple[bytes, bytes]:
    return bytes.fromhex(node_id), hashlib.sha256(verifier_id.encode()).digest()


def bound_items(items: tuple[Item, ...]) -> list[dict[str, Any]]:
    """The items that the quote binds, by kind then index, each body as its digest and size.

    Left out: `tpm-quote` (it carries the binding) and `ima-log` (read after the quote; PCR 10 proves it).
    """
    bound = [entry for item in items if (entry := _bound(item)) is not None]
    return sorted(bound, key=lambda entry: (entry["kind"], entry["index"]))


def _bound(item: Item) -> dict[str, Any] | None:
    head: dict[str, Any] = {"kind": item.kind, "index": item.index}
    match item:
        case TpmQuote() | ImaLog():
            return None
        case BootLog():
            return head | {"log": _digest(item.log)}
        case BindingKey():
            return head | {
                "public": _digest(item.public),
                "certify": _digest(item.certify),
                "certify_signature": _digest(item.certify_signature),
            }
        case NodeToken():
            return head | {"token": _digest(item.token)}
        case HostFacts():
            return head | {"body": _digest(item.body)}
        case _:
            assert_never(item)


def _digest(body: bytes | KnownBody) -> dict[str, Any]:
    if isinstance(body, KnownBody):
        return {"sha256": body.claimed_sha256.hex(), "size": body.claimed_size}
    return {"sha256": hashlib.sha256(body).hexdigest(), "size": len(body)}


def binding_key_qualifying_data(node_id: NodeId) -> bytes:
    """qualifyingData (32 bytes) of the TPM2_Certify of a binding key: made once per boot, so bound to the node only."""
    return hashlib.sha256(_BINDING_KEY_LABEL + bytes.fromhex(node_id)).digest()


@lru_cache(maxsize=16384)
def boot_id(ak_name: bytes, reset_count: int, restart_count: int) -> str:
    """The boot's name (64 hex digits): SHA-256(AK name || u32 resetCount || u32 restartCount), big-endian."""
    counters = reset_count.to_bytes(4, "big") + restart_count.to_bytes(4, "big")
    return hashlib.sha256(ak_name + counters).hexdigest()
