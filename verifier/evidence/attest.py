"""What a TPM attests, and signatures by it, as it marshals them: TPMS_ATTEST and TPMT_SIGNATURE. Big-endian.

Source: TPM 2.0 Library, Part 2 (Structures), revision 1.59; section numbers stand at each parser. Nothing is verified
here: a parsed quote may be forged.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache

from verifier.evidence.reader import Reader
from verifier.evidence.tpm import SignatureScheme, read_hash
from verifier.evidence.tpm_algorithms import BANK_NAMES, SCHEMES
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence

GENERATED_VALUE = 0xFF544347
"""TPM_GENERATED_VALUE: only a TPM signs a structure that begins so with a restricted key (Part 2, section 6.2)."""
_ST_ATTEST_CERTIFY = 0x8017
_ST_ATTEST_QUOTE = 0x8018

_CLOCK_AND_VERSION = struct.Struct(">QIIBQ")
"""u64 clock, u32 resetCount, u32 restartCount, u8 safe, u64 firmwareVersion."""
_MAX_SELECTIONS = 16
_MAX_SELECT_BYTES = 4
"""Real TPMs have 24 PCRs (3 bytes); the fourth leaves room for the 32 that the interface type allows."""

_COMMON_QUOTE = struct.Struct(">IHH34sH32sQIIBQIHB3sH32s")
_COMMON_SHAPE = (GENERATED_VALUE, _ST_ATTEST_QUOTE, 34, 32, 1, 3, 32)
"""Magic, type, and the sizes and counts between the fields."""
_COMMON_SIGNATURE = struct.Struct(">HHH32sH32s")
_COMMON_SIGNATURE_SHAPE = (0x0018, 0x000B, 32, 32)
"""ECDSA, SHA-256, and the sizes of r and s."""
_ECDSA_SHA256 = SignatureScheme("ecdsa", "sha256")


@dataclass(frozen=True, slots=True)
class PcrSelection:
    """One bank of a selection with its PCR indices, ascending; empty where the bank is inactive."""

    bank: str
    pcrs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ClockInfo:
    """TPMS_CLOCK_INFO. `safe` is advisory: software TPMs report false."""

    clock_ms: int
    reset_count: int
    restart_count: int
    safe: bool


@dataclass(frozen=True, slots=True)
class QuoteAttest:
    """TPMS_ATTEST of TPM2_Quote, with the magic and type that it must have; `raw` is what the signature covers."""

    raw: bytes
    qualified_signer: bytes
    extra_data: bytes
    clock: ClockInfo
    firmware_version: int
    selections: tuple[PcrSelection, ...]
    pcr_digest: bytes


@dataclass(frozen=True, slots=True)
class CertifyAttest:
    """TPMS_ATTEST of TPM2_Certify, with the magic and type that it must have."""

    raw: bytes
    qualified_signer: bytes
    extra_data: bytes
    clock: ClockInfo
    firmware_version: int
    name: bytes
    qualified_name: bytes


@dataclass(frozen=True, slots=True)
class RsaSignature:
    """TPMT_SIGNATURE with scheme RSASSA or RSAPSS."""

    scheme: SignatureScheme
    value: bytes


@dataclass(frozen=True, slots=True)
class EcdsaSignature:
    """TPMT_SIGNATURE with scheme ECDSA."""

    scheme: SignatureScheme
    r: int
    s: int


TpmSignature = RsaSignature | EcdsaSignature


def parse_attest(attest: bytes) -> QuoteAttest | CertifyAttest:
    """The quote or key certification in TPMS_ATTEST `attest` (Part 2, section 10.12.8), magic and type checked.

    Layout: u32 magic, u16 type, 2B qualifiedSigner, 2B extraData, u64 clock, u32 resetCount, u32 restartCount, u8 safe,
    u64 firmwareVersion, then per type. Raises MalformedEvidence: `quote-not-tpm-generated` (magic), `quote-type-wrong`
    (a structure of another command), `attest-malformed` (anything else, trailing bytes included). Verifies nothing.
    """
    if len(attest) == _COMMON_QUOTE.size:
        common = _common_quote(attest)
        if common is not None:
            return common
    reader = Reader(attest, ReasonCode.ATTEST_MALFORMED, "attest")
    magic = reader.u32("magic")
    if magic != GENERATED_VALUE:
        # Attack: a restricted key signs any other message; only the magic says that the TPM itself wrote this one.
        raise MalformedEvidence(
            ReasonCode.QUOTE_NOT_TPM_GENERATED, "attest.magic", f"{magic:#010x}", f"{GENERATED_VALUE:#010x}"
        )
    kind = reader.u16("type")
    if kind not in (_ST_ATTEST_QUOTE, _ST_ATTEST_CERTIFY):
        raise MalformedEvidence(
            ReasonCode.QUOTE_TYPE_WRONG, "attest.type", f"{kind:#06x}", "TPM2_Quote or TPM2_Certify"
        )
    signer = reader.sized("qualifiedSigner", 66)
    extra_data = reader.sized("extraData", 66)
    clock_ms, reset, restart, safe, firmware = _CLOCK_AND_VERSION.unpack(
        reader.take(_CLOCK_AND_VERSION.size, "clockInfo")
    )
    if safe > 1:
        raise reader.fault("safe", str(safe), "0 or 1")
    clock = ClockInfo(clock_ms, reset, restart, safe == 1)
    if kind == _ST_ATTEST_CERTIFY:
        name, qualified = reader.sized("name", 66), reader.sized("qualifiedName", 66)
        reader.finish()
        return CertifyAttest(attest, signer, extra_data, clock, firmware, name, qualified)
    selections = _selections(reader)
    digest = reader.sized("pcrDigest", 64)
    reader.finish()
    return QuoteAttest(attest, signer, extra_data, clock, firmware, selections, digest)


def _common_quote(attest: bytes) -> QuoteAttest | None:
    """The quote in `attest` if it has the shape of nearly all: SHA-256 names, one bank of 24 PCRs, a SHA-256 digest.

    Read at once, because every node sends one every minute. Whatever is not exactly of that shape is left, as None, to
    the general way; tests hold the two to the same answer.
    """
    (magic, kind, signer_size, signer, extra_size, extra_data, clock_ms, reset, restart, safe, firmware,
     count, bank_id, bitmap_size, bitmap, digest_size, digest) = _COMMON_QUOTE.unpack(attest)  # fmt: skip
    shape = (magic, kind, signer_size, extra_size, count, bitmap_size, digest_size)
    bank = BANK_NAMES.get(bank_id)
    if shape != _COMMON_SHAPE or safe > 1 or bank is None:
        return None
    clock = ClockInfo(clock_ms, reset, restart, safe == 1)
    return QuoteAttest(attest, signer, extra_data, clock, firmware, (_selection(bank, bitmap),), digest)


def _selections(reader: Reader) -> tuple[PcrSelection, ...]:
    """TPML_PCR_SELECTION (Part 2, section 10.9.7): each bank at most once."""
    count = reader.u32("pcrSelect.count")
    if count > _MAX_SELECTIONS:
        raise reader.fault("pcrSelect.count", str(count), f"at most {_MAX_SELECTIONS}")
    selections: list[PcrSelection] = []
    for _ in range(count):
        identifier = reader.u16("pcrSelect.hash")
        bank = BANK_NAMES.get(identifier)
        if bank is None or bank in [earlier.bank for earlier in selections]:
            raise reader.fault("pcrSelect.hash", f"{identifier:#06x}", "a known hash, once")
        size = reader.u8("pcrSelect.sizeofSelect")
        if size > _MAX_SELECT_BYTES:
            raise reader.fault("pcrSelect.sizeofSelect", str(size), f"at most {_MAX_SELECT_BYTES}")
        selections.append(_selection(bank, reader.take(size, "pcrSelect.pcrSelect")))
    return tuple(selections)


@lru_cache(maxsize=256)
def _selection(bank: str, bitmap: bytes) -> PcrSelection:
    bits = int.from_bytes(bitmap, "little")
    return PcrSelection(bank, tuple(pcr for pcr in range(8 * len(bitmap)) if bits >> pcr & 1))


def parse_signature(signature: bytes) -> TpmSignature:
    """The signature in TPMT_SIGNATURE `signature` (Part 2, section 11.3.4): RSASSA, RSAPSS or ECDSA.

    Layout: u16 scheme, u16 hash, then 2B signature, or 2B r and 2B s. Raises MalformedEvidence `signature-malformed`.
    """
    if len(signature) == _COMMON_SIGNATURE.size:
        scheme_id, hash_id, r_size, r_bytes, s_size, s_bytes = _COMMON_SIGNATURE.unpack(signature)
        if (scheme_id, hash_id, r_size, s_size) == _COMMON_SIGNATURE_SHAPE:
            return EcdsaSignature(_ECDSA_SHA256, int.from_bytes(r_bytes, "big"), int.from_bytes(s_bytes, "big"))
    reader = Reader(signature, ReasonCode.SIGNATURE_MALFORMED, "signature")
    identifier = reader.u16("sigAlg")
    algorithm = SCHEMES.get(identifier)
    if algorithm not in ("rsassa", "rsapss", "ecdsa"):
        raise reader.fault("sigAlg", f"{identifier:#06x}", "RSASSA, RSAPSS or ECDSA")
    scheme = SignatureScheme(algorithm, read_hash(reader, "hash"))
    if algorithm == "ecdsa":
        r = int.from_bytes(reader.sized("signatureR", 66), "big")
        parsed: TpmSignature = EcdsaSignature(scheme, r, int.from_bytes(reader.sized("signatureS", 66), "big"))
    else:
        parsed = RsaSignature(scheme, reader.sized("sig", 512))
    reader.finish()
    return parsed
