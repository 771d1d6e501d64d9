"""From a bundle of bytes to a bundle of structures. Nothing is verified; every field may still be a lie."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from verifier.evidence.attest import (
    CertifyAttest,
    QuoteAttest,
    TpmSignature,
    parse_attest,
    parse_signature,
)
from verifier.evidence.host_facts import ParsedHostFacts, parse_host_facts
from verifier.evidence.tpm import PublicArea, parse_public
from verifier.wire.binding import bound_sha256
from verifier.wire.bundle import (
    BindingKey,
    BootLog,
    EvidenceBundle,
    HostFacts,
    ImaLog,
    KnownBody,
    NodeId,
    NodeToken,
    Nonce,
    PcrBanks,
    TpmQuote,
)
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence


@dataclass(frozen=True, slots=True)
class ParsedQuote:
    """A quote with the PCR values that it should cover. `attest.raw` is the signed message."""

    attest: QuoteAttest
    signature: TpmSignature
    claimed_pcrs: PcrBanks


@dataclass(frozen=True, slots=True)
class ParsedBindingKey:
    """A binding key with its certification. `certify.raw` is the signed message."""

    public: PublicArea
    certify: CertifyAttest
    signature: TpmSignature


@dataclass(frozen=True, slots=True)
class ParsedBundle:
    """A bundle whose items parse, at most one of each kind. `bound_sha256` is of all that the quote must bind."""

    claimed_node_id: NodeId
    claimed_nonce: Nonce
    bound_sha256: bytes
    quote: ParsedQuote
    binding_key: ParsedBindingKey | None
    boot_log: bytes | KnownBody | None
    """Raw bytes, parsed when they are measured, so that a known log is parsed once."""
    node_token: bytes | None
    host_facts: ParsedHostFacts | None


def parse_bundle(bundle: EvidenceBundle) -> ParsedBundle:
    """The structures in `bundle`; exactly one `tpm-quote`, at most one of every other kind.

    Raises MalformedEvidence: `item-missing` (no quote), `item-not-requested` (a second item of a kind, or an IMA log,
    which no challenge asks for yet), `quote-type-wrong`, `binding-key-certify-mismatch` (another structure in the place
    of quote or certification), and whatever the parsers of tpm.py and host_facts.py raise.
    """
    quote: ParsedQuote | None = None
    binding_key: ParsedBindingKey | None = None
    boot_log: bytes | KnownBody | None = None
    node_token: bytes | None = None
    host_facts: ParsedHostFacts | None = None
    for item in bundle.items:
        if item.index:
            raise MalformedEvidence(ReasonCode.ITEM_NOT_REQUESTED, f"{item.kind}[{item.index}]", None, "one of a kind")
        match item:
            case TpmQuote():
                quote = parse_quote(item.attest, item.signature, item.claimed_pcrs)
            case BindingKey():
                binding_key = _binding_key(item)
            case BootLog():
                boot_log = item.log
            case NodeToken():
                node_token = item.token
            case HostFacts():
                host_facts = parse_host_facts(item.body)
            case ImaLog():
                raise MalformedEvidence(ReasonCode.ITEM_NOT_REQUESTED, "ima-log[0]")
            case _:
                assert_never(item)
    if quote is None:
        raise MalformedEvidence(ReasonCode.ITEM_MISSING, "tpm-quote[0]", "absent", "one quote")
    return ParsedBundle(
        bundle.claimed_node_id,
        bundle.claimed_nonce,
        bound_sha256(bundle.items),
        quote,
        binding_key,
        boot_log,
        node_token,
        host_facts,
    )


def parse_quote(attest_bytes: bytes, signature: bytes, claimed_pcrs: PcrBanks) -> ParsedQuote:
    """The quote in TPMS_ATTEST and TPMT_SIGNATURE. Raises MalformedEvidence as `parse_bundle`."""
    attest = parse_attest(attest_bytes)
    if not isinstance(attest, QuoteAttest):
        # Attack: a genuine structure of the same AK, made for another purpose, in the place of a quote.
        raise MalformedEvidence(ReasonCode.QUOTE_TYPE_WRONG, "tpm-quote[0].attest", "TPM2_Certify", "TPM2_Quote")
    return ParsedQuote(attest, parse_signature(signature), claimed_pcrs)


def _binding_key(item: BindingKey) -> ParsedBindingKey:
    certify = parse_attest(item.certify)
    if not isinstance(certify, CertifyAttest):
        raise MalformedEvidence(
            ReasonCode.BINDING_KEY_CERTIFY_MISMATCH, "binding-key[0].certify", "TPM2_Quote", "TPM2_Certify"
        )
    return ParsedBindingKey(parse_public(item.public), certify, parse_signature(item.certify_signature))
