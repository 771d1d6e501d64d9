"""Bundles that repeat what their node proved before, all but nonce, quote and signature: recognised, not decoded again.

From one attestation of a boot to the next nothing else changes. A bundle's *frame* is its JSON without those three
strings. Two bodies with one frame are the same JSON but for them, because each of the three stands between two quotes
and holds base64url only; so the items of the first, decoded and parsed strictly, are the items of the second.

Only the canonical JSON that attesters write is recognised. Whatever else a body is, and all that is wrong with one, is
for the general way (`verifier.wire.bundle_codec`, `verifier.evidence.parse`), which tests hold this one to.
"""

from __future__ import annotations

from typing import NamedTuple

from verifier.evidence.parse import ParsedBundle, parse_quote
from verifier.wire.bundle import MAX_STRUCTURE_BYTES, NONCE_BYTES, NodeId, Nonce
from verifier.wire.encoding import decode_base64url
from verifier.wire.failures import MalformedEvidence

MAX_ENTRIES = 20_000
"""One a node and boot, of some 4 KiB each; more nodes than this only cost decoding."""
_MAX_FRAME_BYTES = 8 * 1024
"""Frames of real nodes take 2 KiB, or 4 with a token of the cluster."""

_BEFORE_ATTEST = b'{"items":[{"attest":"'
_BEFORE_SIGNATURE = b'"signature":"'
_BEFORE_NONCE = b'"nonce":"'
_QUOTE = b'"'


class SteadyHead(NamedTuple):
    """The head of a bundle with the items of `proved`, and its own quote and signature, decoded but not parsed."""

    claimed_node_id: NodeId
    claimed_nonce: Nonce
    proved: ParsedBundle
    attest: bytes
    signature: bytes


class SteadyBundles:
    """The last bundles that were proved, by frame. The oldest make room."""

    def __init__(self, limit: int = MAX_ENTRIES) -> None:
        self._limit = limit
        self._known: dict[bytes, ParsedBundle] = {}

    def find(self, body: bytes) -> SteadyHead | None:
        """The head of the bundle in `body`, if its frame is that of a bundle which was kept; else None.

        Nothing in it is verified: it may be anybody's copy of what a node sent.
        """
        cut = _cut(body)
        if cut is None:
            return None
        proved = self._known.get(cut.frame)
        if proved is None:
            return None
        try:
            nonce = decode_base64url(cut.nonce.decode(), "nonce", NONCE_BYTES)
            attest = decode_base64url(cut.attest.decode(), "attest", MAX_STRUCTURE_BYTES)
            signature = decode_base64url(cut.signature.decode(), "signature", MAX_STRUCTURE_BYTES)
        except (MalformedEvidence, UnicodeDecodeError):
            return None
        if len(nonce) != NONCE_BYTES or not attest or not signature:
            return None
        return SteadyHead(proved.claimed_node_id, Nonce(nonce), proved, attest, signature)

    def keep(self, body: bytes, parsed: ParsedBundle) -> None:
        """Bundles with the frame of `body` are recognised from now on; `parsed` is what the general way made of it.

        Only for what the node itself was proved to have signed: else strangers fill this memory.
        """
        cut = _cut(body)
        if cut is None:
            return
        if cut.frame not in self._known and len(self._known) >= self._limit:
            del self._known[next(iter(self._known))]
        self._known[cut.frame] = parsed


def parse_steady(head: SteadyHead) -> ParsedBundle:
    """What `parse_bundle` makes of the same bundle. Raises MalformedEvidence as it does, for the quote."""
    known = head.proved
    return ParsedBundle(
        known.claimed_node_id,
        head.claimed_nonce,
        known.bound_sha256,
        parse_quote(head.attest, head.signature, known.quote.claimed_pcrs),
        known.binding_key,
        known.boot_log,
        known.node_token,
        known.host_facts,
    )


class _Cut(NamedTuple):
    frame: bytes
    attest: bytes
    signature: bytes
    nonce: bytes


def _cut(body: bytes) -> _Cut | None:
    """The body with its three strings cut out, if it looks like canonical JSON whose first item is the quote.

    Where each string stands is known by the key before it. A key with its quotes cannot stand inside a string of JSON,
    where quotes are escaped, unless an escaped quote comes first, and then it ends a key that no bundle may have.
    """
    if len(body) > _MAX_FRAME_BYTES or not body.startswith(_BEFORE_ATTEST):
        return None
    attest_at = len(_BEFORE_ATTEST)
    attest_end = body.find(_QUOTE, attest_at)
    signature_at = body.find(_BEFORE_SIGNATURE, attest_end) + len(_BEFORE_SIGNATURE)
    signature_end = body.find(_QUOTE, signature_at)
    nonce_at = body.rfind(_BEFORE_NONCE) + len(_BEFORE_NONCE)
    nonce_end = body.find(_QUOTE, nonce_at)
    if not attest_at <= attest_end < signature_at <= signature_end < nonce_at <= nonce_end:
        return None
    frame = b"".join((body[attest_end:signature_at], body[signature_end:nonce_at], body[nonce_end:]))
    return _Cut(frame, body[attest_at:attest_end], body[signature_at:signature_end], body[nonce_at:nonce_end])
