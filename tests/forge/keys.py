"""Keys as a TPM would describe them, made in software: the TPM's own marshalling, written out by hand.

Nothing here uses the product's parsers, so that a mistake in those does not cancel out.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from functools import cache
from typing import Literal

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

NULL = struct.pack(">H", 0x0010)
ALG = {"sha1": 0x0004, "sha256": 0x000B, "sha384": 0x000C, "sha512": 0x000D}
POLICY_A = bytes.fromhex("837197674484b3f81a90cc8d46a5d724fd52d76e06520b64f2a1da1b331469aa")
POLICY_B_SHA384 = bytes.fromhex(
    "b26e7d28d11a50bc53d882bcf5fd3a1a074148bb35d3b4e4cb1c0ad9bde419cacb47ba09699646150f9fc000f3f80e12"
)
EK_ATTRIBUTES, AK_ATTRIBUTES, BINDING_ATTRIBUTES = 0x000300B2, 0x00050472, 0x00020432
AES_128_CFB = struct.pack(">HHH", 0x0006, 128, 0x0043)
AES_256_CFB = struct.pack(">HHH", 0x0006, 256, 0x0043)
ECDSA_SHA256 = struct.pack(">HH", 0x0018, 0x000B)
RSASSA_SHA256 = struct.pack(">HH", 0x0014, 0x000B)
_CURVES = {"secp256r1": (0x0003, 32), "secp384r1": (0x0004, 48)}

Private = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
EkKind = Literal["rsa-2048", "p-256", "p-384"]
AkKind = Literal["p-256", "rsa-2048"]


def sized(content: bytes) -> bytes:
    """A TPM2B."""
    return struct.pack(">H", len(content)) + content


@dataclass(frozen=True)
class SoftKey:
    """A private key with the public area under which a TPM would hold it."""

    private: Private
    tpmt_public: bytes
    name_alg: str = "sha256"

    @property
    def tpm2b(self) -> bytes:
        return sized(self.tpmt_public)

    @property
    def name(self) -> bytes:
        return self._named(self.tpmt_public)

    def qualified_name(self, prefix: bytes) -> bytes:
        """Of this key under a hierarchy (its handle) or a parent (its qualified name)."""
        return self._named(prefix + self.name)

    def _named(self, content: bytes) -> bytes:
        return struct.pack(">H", ALG[self.name_alg]) + hashlib.new(self.name_alg, content).digest()

    def sign(self, message: bytes) -> bytes:
        """TPMT_SIGNATURE over SHA-256 of `message`: ECDSA or RSASSA."""
        if isinstance(self.private, ec.EllipticCurvePrivateKey):
            r, s = decode_dss_signature(self.private.sign(message, ec.ECDSA(hashes.SHA256())))
            return ECDSA_SHA256 + sized(r.to_bytes(32, "big")) + sized(s.to_bytes(32, "big"))
        return RSASSA_SHA256 + sized(self.private.sign(message, padding.PKCS1v15(), hashes.SHA256()))


def public_area(
    private: Private,
    attributes: int,
    policy: bytes = b"",
    symmetric: bytes = NULL,
    scheme: bytes = NULL,
    name_alg: str = "sha256",
    kdf: bytes = NULL,
) -> bytes:
    """TPMT_PUBLIC of the key (TPM 2.0 Library, Part 2, 12.2.4)."""
    public = private.public_key()
    kind = 0x0001 if isinstance(public, rsa.RSAPublicKey) else 0x0023
    head = struct.pack(">HHI", kind, ALG[name_alg], attributes) + sized(policy) + symmetric + scheme
    if isinstance(public, rsa.RSAPublicKey):
        modulus = public.public_numbers().n
        return head + struct.pack(">HI", public.key_size, 0) + sized(modulus.to_bytes(public.key_size // 8, "big"))
    point = public.public_numbers()
    curve, width = _CURVES[point.curve.name]
    return (
        head
        + struct.pack(">H", curve)
        + kdf
        + sized(point.x.to_bytes(width, "big"))
        + sized(point.y.to_bytes(width, "big"))
    )


@cache
def endorsement_key(kind: EkKind = "rsa-2048", which: int = 0) -> SoftKey:
    """An EK of a TCG template; `which` gives another of the same kind."""
    if kind == "rsa-2048":
        private: Private = rsa.generate_private_key(65537, 2048)
        return SoftKey(private, public_area(private, EK_ATTRIBUTES, POLICY_A, AES_128_CFB))
    if kind == "p-256":
        private = ec.generate_private_key(ec.SECP256R1())
        return SoftKey(private, public_area(private, EK_ATTRIBUTES, POLICY_A, AES_128_CFB))
    private = ec.generate_private_key(ec.SECP384R1())
    area = public_area(private, 0x000300F2, POLICY_B_SHA384, AES_256_CFB, NULL, "sha384")
    return SoftKey(private, area, "sha384")


@cache
def attestation_key(kind: AkKind = "p-256", which: int = 0, attributes: int = AK_ATTRIBUTES) -> SoftKey:
    """An AK as the attester makes it; `which` gives another of the same kind."""
    if kind == "p-256":
        private: Private = ec.generate_private_key(ec.SECP256R1())
        return SoftKey(private, public_area(private, attributes, scheme=ECDSA_SHA256))
    private = rsa.generate_private_key(65537, 2048)
    return SoftKey(private, public_area(private, attributes, scheme=RSASSA_SHA256))


def boot_policy(reset_count: int, restart_count: int) -> bytes:
    """PolicyCounterTimer over both counters, as tpm-keys documents it."""
    arguments = struct.pack(">IIHH", reset_count, restart_count, 16, 0)
    return hashlib.sha256(bytes(32) + struct.pack(">I", 0x16D) + hashlib.sha256(arguments).digest()).digest()


@cache
def binding_key(reset_count: int, restart_count: int, attributes: int = BINDING_ATTRIBUTES) -> SoftKey:
    """A binding key for the boot with these counters."""
    private = ec.generate_private_key(ec.SECP256R1())
    return SoftKey(private, public_area(private, attributes, boot_policy(reset_count, restart_count)))
