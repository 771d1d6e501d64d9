"""The check of a request that a node signed with its AK: one definition for verifier and broker.

It reads only the two kinds of AK that enrolment admits, each in its one encoding, so that a relying party needs no
general reader of TPM structures. Source: TPM 2.0 Library, Part 2, 12.2.4 (TPMT_PUBLIC), 11.3.4 (TPMT_SIGNATURE).
"""

from __future__ import annotations

import struct

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence, Rejection
from verifier.wire.signed_request import RequestLabel, SignedRequest, message_to_sign

RequestKey = ec.EllipticCurvePublicKey | rsa.RSAPublicKey
"""Public part of an AK: P-256 for ECDSA, or RSA-2048 for RSASSA-PKCS1-v1_5, both with SHA-256."""

_ALG_RSA = 0x0001
_ALG_SHA256 = 0x000B
_ALG_NULL = 0x0010
_ALG_RSASSA = 0x0014
_ALG_ECDSA = 0x0018
_ALG_ECC = 0x0023
_ECC_NIST_P256 = 0x0003
_NAME_ALGS = frozenset({0x000B, 0x000C, 0x000D})
"""SHA-256, SHA-384, SHA-512: the name algorithm does not matter to a signature."""
_DEFAULT_EXPONENT = 65537
"""TPMS_RSA_PARMS writes this exponent as 0."""


class _Fields:
    """Reads big-endian fields and refuses what is short or left over."""

    def __init__(self, body: bytes, code: ReasonCode, where: str) -> None:
        self._body, self._at, self._code, self._where = body, 0, code, where

    def u16(self) -> int:
        return int(struct.unpack(">H", self._take(2))[0])

    def u32(self) -> int:
        return int(struct.unpack(">I", self._take(4))[0])

    def sized(self) -> bytes:
        return self._take(self.u16())

    def require(self, found: int, wanted: int, what: str) -> None:
        if found != wanted:
            raise self.fault(f"{what} {found:#06x}", f"{wanted:#06x}")

    def finish(self) -> None:
        if self._at != len(self._body):
            raise self.fault(f"{len(self._body) - self._at} trailing bytes")

    def fault(self, observed: str, expected: str | None = None) -> MalformedEvidence:
        return MalformedEvidence(self._code, self._where, observed, expected)

    def _take(self, size: int) -> bytes:
        part = self._body[self._at : self._at + size]
        if len(part) != size:
            raise self.fault(f"ends at byte {len(self._body)}")
        self._at += size
        return part


def load_request_key(ak_public: bytes) -> RequestKey:
    """The key in `ak_public`, a TPM2B_PUBLIC of a P-256 ECDSA or RSA-2048 RSASSA key with SHA-256.

    Layout: u16 size, u16 type, u16 nameAlg, u32 attributes, 2B authPolicy, parameters, unique; nothing after. Raises
    MalformedEvidence `public-area-malformed`. Does not check attributes: only an enrolled AK may be passed.
    """
    outer = _Fields(ak_public, ReasonCode.PUBLIC_AREA_MALFORMED, "ak_public")
    area = _Fields(outer.sized(), ReasonCode.PUBLIC_AREA_MALFORMED, "ak_public")
    outer.finish()
    kind = area.u16()
    name_alg = area.u16()
    if name_alg not in _NAME_ALGS:
        raise area.fault(f"name algorithm {name_alg:#06x}", "SHA-256, SHA-384 or SHA-512")
    area.u32()  # attributes: enrolment's to judge
    area.sized()  # authPolicy: likewise
    area.require(area.u16(), _ALG_NULL, "symmetric algorithm")
    key: RequestKey
    if kind == _ALG_ECC:
        area.require(area.u16(), _ALG_ECDSA, "scheme")
        area.require(area.u16(), _ALG_SHA256, "scheme hash")
        area.require(area.u16(), _ECC_NIST_P256, "curve")
        area.require(area.u16(), _ALG_NULL, "key derivation")
        x, y = int.from_bytes(area.sized()), int.from_bytes(area.sized())
        area.finish()
        try:
            key = ec.EllipticCurvePublicNumbers(x, y, ec.SECP256R1()).public_key()
        except ValueError as error:
            raise area.fault("not a point of P-256") from error
        return key
    area.require(kind, _ALG_RSA, "type")
    area.require(area.u16(), _ALG_RSASSA, "scheme")
    area.require(area.u16(), _ALG_SHA256, "scheme hash")
    area.require(area.u16(), 2048, "key bits")
    exponent = area.u32() or _DEFAULT_EXPONENT
    modulus = int.from_bytes(area.sized())
    area.finish()
    if modulus.bit_length() != 2048 or exponent != _DEFAULT_EXPONENT:
        raise area.fault(f"a modulus of {modulus.bit_length()} bits, exponent {exponent}", "2048 bits, exponent 65537")
    try:
        key = rsa.RSAPublicNumbers(exponent, modulus).public_key()
    except ValueError as error:
        raise area.fault("not an RSA key") from error
    return key


def verify_signed_request(key: RequestKey, label: RequestLabel, request: SignedRequest) -> bytes:
    """The body of `request`, which the holder of `key` signed for `label`.

    Raises MalformedEvidence `signature-malformed`, Rejection `request-signature-invalid`. Does not check who the key
    belongs to, the body's form, its time or whether it was seen before.
    """
    message = message_to_sign(label, request.claimed_body)
    fields = _Fields(request.signature, ReasonCode.SIGNATURE_MALFORMED, "request.signature")
    algorithm = fields.u16()
    fields.require(fields.u16(), _ALG_SHA256, "hash")
    try:
        if isinstance(key, ec.EllipticCurvePublicKey):
            fields.require(algorithm, _ALG_ECDSA, "signature algorithm")
            r, s = int.from_bytes(fields.sized()), int.from_bytes(fields.sized())
            fields.finish()
            key.verify(encode_dss_signature(r, s), message, ec.ECDSA(hashes.SHA256()))
        else:
            fields.require(algorithm, _ALG_RSASSA, "signature algorithm")
            signature = fields.sized()
            fields.finish()
            key.verify(signature, message, padding.PKCS1v15(), hashes.SHA256())
    except InvalidSignature as error:
        raise Rejection(ReasonCode.REQUEST_SIGNATURE_INVALID, "request.signature", "does not verify") from error
    return request.claimed_body
