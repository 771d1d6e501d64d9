"""TPM 2.0 structures as a TPM marshals them: public areas, attestation structures, signatures. Big-endian.

Source: TPM 2.0 Library, Part 2 (Structures), revision 1.59; section numbers stand at each parser. Nothing is verified
here: a parsed quote may be forged, a parsed key may be in no TPM.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

from verifier.evidence.reader import Reader
from verifier.evidence.tpm_algorithms import (
    ALG_NULL,
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

_TYPE_RSA = 0x0001
_TYPE_ECC = 0x0023
_DEFAULT_RSA_EXPONENT = 65537
"""What exponent 0 stands for (Part 2, section 12.2.3.5)."""

_MAX_FIELD_BYTES = 1024


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
    name_alg = read_hash(reader, "nameAlg")
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


def read_hash(reader: Reader, field: str) -> HashName:
    """The hash that the next two bytes name. Raises the reader's code for one that we do not compute."""
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
    return SignatureScheme(algorithm, None if algorithm == "rsaes" else read_hash(reader, "scheme.hash"))


def _kdf(reader: Reader) -> str | None:
    identifier = reader.u16("kdf")
    if identifier == ALG_NULL:
        return None
    name = KDFS.get(identifier)
    if name is None:
        raise reader.fault("kdf", f"{identifier:#06x}", "a known key derivation")
    return f"{name}/{read_hash(reader, 'kdf.hash')}"
