"""TPM 2.0 structures as a TPM marshals them: public areas, attestation structures, signatures. Big-endian.

Source: TPM 2.0 Library, Part 2 (Structures), revision 1.59; section numbers stand at each parser. Nothing is verified
here: a parsed quote may be forged, a parsed key may be in no TPM.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from verifier.evidence.reader import Reader
from verifier.evidence.tpm_algorithms import (
    ALG_NULL,
    BANK_NAMES,
    CIPHERS,
    CURVE_BYTES,
    CURVES,
    ECC_SCHEMES,
    HASH_IDS,
    HASH_NAMES,
    KDFS,
    MODES,
    RSA_SCHEMES,
    SCHEMES,
    Curve,
    HashName,
    KeyScheme,
)
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence

_TYPE_RSA = 0x0001
_TYPE_ECC = 0x0023
_DEFAULT_RSA_EXPONENT = 65537
"""What exponent 0 stands for (Part 2, section 12.2.3.5)."""

GENERATED_VALUE = 0xFF544347
"""TPM_GENERATED_VALUE: only a TPM signs a structure that begins so with a restricted key (Part 2, section 6.2)."""
_ST_ATTEST_CERTIFY = 0x8017
_ST_ATTEST_QUOTE = 0x8018

_CLOCK_AND_VERSION = struct.Struct(">QIIBQ")
"""u64 clock, u32 resetCount, u32 restartCount, u8 safe, u64 firmwareVersion."""
_MAX_FIELD_BYTES = 1024
_MAX_SELECTIONS = 16
_MAX_SELECT_BYTES = 4
"""Real TPMs have 24 PCRs (3 bytes); the fourth leaves room for the 32 that the interface type allows."""


@dataclass(frozen=True, slots=True)
class SignatureScheme:
    """A key's or a signature's scheme with its hash (None only for `rsaes`, which has none)."""

    algorithm: KeyScheme
    hash: HashName | None


@dataclass(frozen=True, slots=True)
class SymmetricCipher:
    """TPMT_SYM_DEF_OBJECT of a storage key: cipher name, key size and mode."""

    algorithm: str
    bits: int
    mode: str


@dataclass(frozen=True, slots=True)
class RsaPublic:
    """An RSA public key; `modulus` has no leading zero bytes removed or added, `exponent` has its default filled in."""

    modulus: int
    bits: int
    exponent: int


@dataclass(frozen=True, slots=True)
class EccPublic:
    """A point as the TPM gave it: the coordinates are below 2^(8 * size), and may still lie off the curve."""

    curve: Curve
    x: int
    y: int


@dataclass(frozen=True, slots=True)
class PublicArea:
    """TPMT_PUBLIC of an RSA or ECC key. `raw` is the TPMT_PUBLIC itself (without the size of TPM2B_PUBLIC)."""

    raw: bytes
    algorithm: Literal["rsa", "ecc"]
    name_alg: HashName
    attributes: int
    auth_policy: bytes
    symmetric: SymmetricCipher | None
    scheme: SignatureScheme | None
    kdf: str | None
    key: RsaPublic | EccPublic

    def __hash__(self) -> int:
        # All else is read from `raw`, and a bytes object keeps its hash: as a key of caches this costs nothing.
        return hash(self.raw)

    @property
    def name(self) -> bytes:
        """The object's Name: nameAlg || H_nameAlg(TPMT_PUBLIC) (Part 1, section 16)."""
        return HASH_IDS[self.name_alg].to_bytes(2, "big") + hashlib.new(self.name_alg, self.raw).digest()

    @property
    def tpm2b(self) -> bytes:
        """TPM2B_PUBLIC: the bytes that `parse_public` took."""
        return len(self.raw).to_bytes(2, "big") + self.raw


@dataclass(frozen=True, slots=True)
class ClockInfo:
    """TPMS_CLOCK_INFO. `safe` is advisory: software TPMs report false."""

    clock_ms: int
    reset_count: int
    restart_count: int
    safe: bool


@dataclass(frozen=True, slots=True)
class PcrSelection:
    """One bank of a selection with its PCR indices, ascending; empty where the bank is inactive."""

    bank: str
    pcrs: tuple[int, ...]


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


def parse_public(tpm2b: bytes) -> PublicArea:
    """The key that TPM2B_PUBLIC `tpm2b` describes (Part 2, sections 12.2.4 and 12.2.5).

    RSA and ECC (P-256, P-384, P-521) only. Raises MalformedEvidence `public-area-malformed` for another kind of object,
    an unknown algorithm, a size that contradicts itself, or a trailing byte. Does not check that a point is on its
    curve, nor any attribute.
    """
    outer = Reader(tpm2b, ReasonCode.PUBLIC_AREA_MALFORMED, "public")
    raw = outer.sized("size", _MAX_FIELD_BYTES)
    outer.finish()
    reader = Reader(raw, ReasonCode.PUBLIC_AREA_MALFORMED, "public")
    kind = reader.u16("type")
    if kind not in (_TYPE_RSA, _TYPE_ECC):
        raise reader.fault("type", f"{kind:#06x}", "RSA or ECC")
    name_alg = _hash(reader, "nameAlg")
    attributes = reader.u32("objectAttributes")
    auth_policy = reader.sized("authPolicy", 64)
    symmetric = _symmetric(reader)
    scheme = _key_scheme(reader, RSA_SCHEMES if kind == _TYPE_RSA else ECC_SCHEMES)
    kdf: str | None = None
    key: RsaPublic | EccPublic
    if kind == _TYPE_RSA:
        key = _rsa(reader)
    else:
        curve_id = reader.u16("curveID")
        curve = CURVES.get(curve_id)
        if curve is None:
            raise reader.fault("curveID", f"{curve_id:#06x}", "P-256, P-384 or P-521")
        kdf = _kdf(reader)
        size = CURVE_BYTES[curve]
        x = int.from_bytes(reader.sized("unique.x", size), "big")
        key = EccPublic(curve, x, int.from_bytes(reader.sized("unique.y", size), "big"))
    reader.finish()
    algorithm: Literal["rsa", "ecc"] = "rsa" if kind == _TYPE_RSA else "ecc"
    return PublicArea(raw, algorithm, name_alg, attributes, auth_policy, symmetric, scheme, kdf, key)


def _rsa(reader: Reader) -> RsaPublic:
    bits = reader.u16("keyBits")
    exponent = reader.u32("exponent") or _DEFAULT_RSA_EXPONENT
    modulus = int.from_bytes(reader.sized("unique.rsa", 512), "big")
    # The size is what policy asks about, so it must be the modulus' own.
    if modulus.bit_length() != bits or modulus % 2 == 0:
        raise reader.fault("unique.rsa", f"{modulus.bit_length()} bits", f"an odd number of {bits} bits")
    if exponent % 2 == 0 or exponent < 3:
        raise reader.fault("exponent", str(exponent), "an odd number from 3")
    return RsaPublic(modulus, bits, exponent)


def _hash(reader: Reader, field: str) -> HashName:
    identifier = reader.u16(field)
    name = HASH_NAMES.get(identifier)
    if name is None:
        raise reader.fault(field, f"{identifier:#06x}", "SHA-1, SHA-256, SHA-384 or SHA-512")
    return name


def _symmetric(reader: Reader) -> SymmetricCipher | None:
    identifier = reader.u16("symmetric")
    if identifier == ALG_NULL:
        return None
    algorithm = CIPHERS.get(identifier)
    bits = reader.u16("symmetric.keyBits")
    mode = MODES.get(reader.u16("symmetric.mode"))
    if algorithm is None or mode is None:
        raise reader.fault("symmetric", f"{identifier:#06x}", "a known block cipher and mode")
    return SymmetricCipher(algorithm, bits, mode)


def _key_scheme(reader: Reader, allowed: frozenset[str]) -> SignatureScheme | None:
    identifier = reader.u16("scheme")
    if identifier == ALG_NULL:
        return None
    algorithm = SCHEMES.get(identifier)
    if algorithm is None or algorithm not in allowed:
        raise reader.fault("scheme", f"{identifier:#06x}", "a scheme of the key's type")
    return SignatureScheme(algorithm, None if algorithm == "rsaes" else _hash(reader, "scheme.hash"))


def _kdf(reader: Reader) -> str | None:
    identifier = reader.u16("kdf")
    if identifier == ALG_NULL:
        return None
    name = KDFS.get(identifier)
    if name is None:
        raise reader.fault("kdf", f"{identifier:#06x}", "a known key derivation")
    return f"{name}/{_hash(reader, 'kdf.hash')}"


def parse_attest(attest: bytes) -> QuoteAttest | CertifyAttest:
    """The quote or key certification in TPMS_ATTEST `attest` (Part 2, section 10.12.8), magic and type checked.

    Layout: u32 magic, u16 type, 2B qualifiedSigner, 2B extraData, u64 clock, u32 resetCount, u32 restartCount, u8 safe,
    u64 firmwareVersion, then per type. Raises MalformedEvidence: `quote-not-tpm-generated` (magic), `quote-type-wrong`
    (a structure of another command), `attest-malformed` (anything else, trailing bytes included). Verifies nothing.
    """
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
    reader = Reader(signature, ReasonCode.SIGNATURE_MALFORMED, "signature")
    identifier = reader.u16("sigAlg")
    algorithm = SCHEMES.get(identifier)
    if algorithm not in ("rsassa", "rsapss", "ecdsa"):
        raise reader.fault("sigAlg", f"{identifier:#06x}", "RSASSA, RSAPSS or ECDSA")
    scheme = SignatureScheme(algorithm, _hash(reader, "hash"))
    if algorithm == "ecdsa":
        r = int.from_bytes(reader.sized("signatureR", 66), "big")
        parsed: TpmSignature = EcdsaSignature(scheme, r, int.from_bytes(reader.sized("signatureS", 66), "big"))
    else:
        parsed = RsaSignature(scheme, reader.sized("sig", 512))
    reader.finish()
    return parsed
