"""From a parsed bundle to an authentic one: signed by the enrolled node's AK, for this challenge, over these PCRs.

A failure here is anybody's doing: a stranger can send it. So nothing that fails here may change a node's verdict. The
checks are numbered as in the tests. What the node itself signed but does not hold is `verifier.appraisal.verify`.
Still owed by the caller: that the challenge is live, was issued to this node, and is used once.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache

from verifier.appraisal.context import EnrolledNode, IssuedChallenge, LastSeen
from verifier.appraisal.identity import KeyNames, key_names
from verifier.appraisal.signatures import verify_signature
from verifier.evidence.attest import PcrSelection, QuoteAttest
from verifier.evidence.parse import ParsedBundle
from verifier.wire.binding import extra_data_binding
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence, Rejection

_MAKER = object()
"""Held by this module alone: what makes an AuthenticBundle one."""


@dataclass(frozen=True, slots=True)
class AuthenticBundle:
    """Evidence that the node's AK signed for the challenge. Only `authenticate` makes one.

    The PCR values are those of its TPM, in the challenge's bank; the boot log, the binding key and the counters are as
    the node sent them, and are for `verify` to judge.
    """

    node: EnrolledNode
    challenge: IssuedChallenge
    parsed: ParsedBundle
    quote: QuoteAttest
    pcrs: dict[int, bytes]
    names: KeyNames
    last_seen: LastSeen | None
    maker: object

    def __post_init__(self) -> None:
        if self.maker is not _MAKER:
            raise TypeError("an AuthenticBundle is made by authenticate() only")


_MAX_CLOCK_MS = 2**53
"""Of milliseconds that a TPM was powered: 285,000 years."""


def authenticate(
    parsed: ParsedBundle,
    node: EnrolledNode,
    challenge: IssuedChallenge,
    verifier_id: str,
    last_seen: LastSeen | None,
) -> AuthenticBundle:
    """The bundle as evidence of `node`, signed by its AK for `challenge` and this verifier.

    Sources: TPM 2.0 Library, Part 2, 10.12 (TPMS_ATTEST), Part 3, 18.4 (TPM2_Quote). The AK and the names are those of
    enrolment, never of the bundle. Raises Rejection by check:
     1. the AK's form: `ak-attributes-unsuitable`, `ak-algorithm-unsupported`
     2. the bundle is of this node and challenge: `nonce-wrong-node`, `quote-binding-mismatch`
     3. what was asked for is there, and nothing else: `item-missing`, `item-not-requested` (MalformedEvidence)
     4. the signature's scheme is the key's own: `quote-scheme-mismatch`
     5. the signature: `quote-signature-invalid`
     6. extraData binds nonce, node, verifier and every item: `quote-binding-mismatch`
     7. the bank is active: `pcr-bank-inactive`
     8. selection = requested = labels of the values: `pcr-selection-mismatch`
     9. pcrDigest is of the values: `pcr-digest-mismatch`
    10. the signer is a child of the enrolled EK: `quote-signer-not-under-ek`
    11. the clock is one that a store can keep, and rises within one boot: `clock-out-of-range`, `clock-regressed`
    Magic and type were checked when the bytes were parsed. `safe` is advisory: software TPMs never set it.

    A challenge of form `bare-nonce` describes recordings whose quotes answer the nonce itself. Then check 6 compares
    extraData with the nonce, so nothing binds the other items; binding key and host facts are not asked for; and check
    10 is left out, because those recordings' AKs are no children of the EK. No service issues such challenges.
    """
    quote = parsed.quote.attest
    names = key_names(node)  # 1
    if parsed.claimed_node_id != node.node_id or challenge.node_id != node.node_id:  # 2
        raise Rejection(ReasonCode.NONCE_WRONG_NODE, "bundle.node_id", parsed.claimed_node_id, challenge.node_id)
    if parsed.claimed_nonce != challenge.nonce:
        raise Rejection(ReasonCode.QUOTE_BINDING_MISMATCH, "bundle.nonce", "another nonce", "the challenge's nonce")
    _check_items(parsed, challenge)  # 3
    if parsed.quote.signature.scheme != node.ak.scheme:  # 4
        seen, own = parsed.quote.signature.scheme, node.ak.scheme
        raise Rejection(ReasonCode.QUOTE_SCHEME_MISMATCH, "quote.signature", str(seen), str(own))
    verify_signature(  # 5
        node.ak, quote.raw, parsed.quote.signature, ReasonCode.QUOTE_SIGNATURE_INVALID, "quote.signature"
    )
    if quote.extra_data != _expected_extra_data(parsed, challenge, verifier_id):  # 6
        raise Rejection(ReasonCode.QUOTE_BINDING_MISMATCH, "quote.extra_data", quote.extra_data.hex())
    pcrs = _check_selection(parsed, challenge)  # 7, 8
    # The digest's algorithm is the signing scheme's, not the bank's (measured; Part 3, 18.4.1).
    scheme_hash = parsed.quote.signature.scheme.hash
    if scheme_hash is None or quote.pcr_digest != hashlib.new(scheme_hash, b"".join(pcrs.values())).digest():  # 9
        raise Rejection(ReasonCode.PCR_DIGEST_MISMATCH, "quote.pcr_digest", quote.pcr_digest.hex())
    if challenge.form == "bound" and quote.qualified_signer != names.ak_qualified_name:  # 10
        seen_signer, wanted = quote.qualified_signer.hex(), names.ak_qualified_name.hex()
        raise Rejection(ReasonCode.QUOTE_SIGNER_NOT_UNDER_EK, "quote.qualified_signer", seen_signer, wanted)
    _check_clock(quote, last_seen)  # 11
    return AuthenticBundle(node, challenge, parsed, quote, pcrs, names, last_seen, _MAKER)


def _check_items(parsed: ParsedBundle, challenge: IssuedChallenge) -> None:
    """The boot log may be absent here: the node signs that it has none, and is judged for it."""
    if challenge.node_token != (parsed.node_token is not None):
        code = ReasonCode.ITEM_MISSING if challenge.node_token else ReasonCode.ITEM_NOT_REQUESTED
        raise MalformedEvidence(code, "node-token[0]")
    if challenge.form == "bound":
        for kind, item in (("binding-key", parsed.binding_key), ("host-facts", parsed.host_facts)):
            if item is None:
                raise MalformedEvidence(ReasonCode.ITEM_MISSING, f"{kind}[0]", "absent", "one item")


def _expected_extra_data(parsed: ParsedBundle, challenge: IssuedChallenge, verifier_id: str) -> bytes:
    if challenge.form == "bare-nonce":
        return challenge.nonce
    return extra_data_binding(challenge.nonce, challenge.node_id, verifier_id, parsed.bound_sha256)


def _check_selection(parsed: ParsedBundle, challenge: IssuedChallenge) -> dict[int, bytes]:
    """The quoted PCR values in ascending order, if selection, request and labels name the same PCRs of one bank.

    Attack: a quote over too few PCRs, with the missing values merely claimed (CVE-2022-0317).
    """
    quote = parsed.quote.attest
    bank = challenge.pcr_bank
    if quote.selections != _requested(bank, challenge.pcrs):
        selected = {selection.bank: selection.pcrs for selection in quote.selections if selection.pcrs}
        if not selected:
            # A quote of an inactive bank succeeds, and covers nothing.
            raise Rejection(ReasonCode.PCR_BANK_INACTIVE, "quote.selection", "empty", bank)
        raise Rejection(
            ReasonCode.PCR_SELECTION_MISMATCH, "quote.selection", str(selected), str({bank: challenge.pcrs})
        )
    values = parsed.quote.claimed_pcrs.get(bank)
    if len(parsed.quote.claimed_pcrs) != 1 or values is None or len(values) != len(challenge.pcrs):
        banks = {name: sorted(labels) for name, labels in parsed.quote.claimed_pcrs.items()}
        raise Rejection(ReasonCode.PCR_SELECTION_MISMATCH, "quote.pcrs", str(banks), str({bank: challenge.pcrs}))
    try:
        return {pcr: values[pcr] for pcr in challenge.pcrs}
    except KeyError as error:
        raise Rejection(
            ReasonCode.PCR_SELECTION_MISMATCH, "quote.pcrs", str(sorted(values)), str(challenge.pcrs)
        ) from error


@lru_cache(maxsize=64)
def _requested(bank: str, pcrs: tuple[int, ...]) -> tuple[PcrSelection, ...]:
    return (PcrSelection(bank, tuple(sorted(pcrs))),)


def _check_clock(quote: QuoteAttest, last: LastSeen | None) -> None:
    """Attack: a TPM whose clock is set back within one boot could replay what it signed before."""
    clock = quote.clock
    if clock.clock_ms > _MAX_CLOCK_MS:
        raise Rejection(
            ReasonCode.CLOCK_OUT_OF_RANGE, "quote.clock", f"{clock.clock_ms} ms", f"at most {_MAX_CLOCK_MS}"
        )
    if last is None:
        return
    same_boot = (clock.reset_count, clock.restart_count) == (last.reset_count, last.restart_count)
    if same_boot and clock.clock_ms <= last.clock_ms:
        raise Rejection(
            ReasonCode.CLOCK_REGRESSED, "quote.clock", f"{clock.clock_ms} ms", f"more than {last.clock_ms} ms"
        )
