"""Which challenge a bundle answers, and how often one may be answered wrongly.

The first thing that is asked of evidence, and all that is asked of a stranger's: two look-ups, and nothing parsed.
"""

from __future__ import annotations

import hashlib

from verifier.issued_nonces import IssuedNonces
from verifier.store.ports import AuditEntry, NonceState, Store
from verifier.wire.bundle import NodeId, Nonce
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Refusal, Rejection

MAX_TRIES = 5
"""So many bundles that fail may be sent for one nonce."""


class LiveNonces:
    """The nonces of one store that are still good."""

    def __init__(self, store: Store, issued: IssuedNonces) -> None:
        self._store = store
        self._issued = issued
        self._counting: dict[bytes, int] = {}

    def find(self, node_id: NodeId, claimed: Nonce, now: int) -> NonceState:
        """The challenge that is answered: the one in the row of the claimed node, else one that was asked for.

        Raises Rejection `nonce-unknown`, `nonce-used`, `nonce-expired`, `nonce-tries-exhausted`. That it is of the
        claimed node is for the caller to check.
        """
        nonce = self._issued.find(node_id, claimed) or self._stored(node_id, hashlib.sha256(claimed).digest())
        if nonce.used:
            raise Rejection(ReasonCode.NONCE_USED, "bundle.nonce")
        if now >= nonce.expires_at:
            raise Rejection(ReasonCode.NONCE_EXPIRED, "bundle.nonce", str(now), f"before {nonce.expires_at}")
        if nonce.tries + self._counting.get(nonce.nonce_sha256, 0) >= MAX_TRIES:
            raise Rejection(ReasonCode.NONCE_TRIES_EXHAUSTED, "bundle.nonce", f"{MAX_TRIES} tries")
        return nonce

    def _stored(self, node_id: str, digest: bytes) -> NonceState:
        nonce = self._store.find_next_nonce(node_id, digest) or self._store.find_nonce(digest)
        if nonce is None:
            used = self._store.was_used(node_id, digest)
            raise Rejection(ReasonCode.NONCE_USED if used else ReasonCode.NONCE_UNKNOWN, "bundle.nonce")
        return nonce

    async def count_try(self, nonce: NonceState, refusal: Refusal, request_id: str, now_ms: int) -> None:
        """One more bundle failed for this nonce: durable, audited, and counted from the moment of the call."""
        digest = nonce.nonce_sha256
        # Attack: many bundles side by side, of which each sees the count of before.
        counting = self._counting[digest] = self._counting.get(digest, 0) + 1
        detail: dict[str, str | int | None] = {"code": refusal.code.value, "tries": nonce.tries + counting}
        try:
            await self._store.count_try(
                nonce, AuditEntry(now_ms, "evidence-refused", "verifier", request_id, nonce.node_id, None, detail)
            )
        finally:
            left = self._counting.pop(digest) - 1
            if left:
                self._counting[digest] = left
