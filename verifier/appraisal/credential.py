"""TPM2_MakeCredential in software: a secret that only the TPM with this EK *and* this AK recovers.

Source: TPM 2.0 Library, Part 1, section 24 (credential protection), 11.4.10 (KDFa, KDFe), annexes B.10.4 (RSA) and
C.6.4 (ECC). The TPM checks the integrity HMAC over the AK's Name before it decrypts, so a credential made for one AK
tells nothing to another.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass

from cryptography.hazmat.decrepit.ciphers.modes import CFB
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from verifier.appraisal.endorsement_key import public_key_of
from verifier.evidence.tpm import EccPublic, PublicArea
from verifier.evidence.tpm_algorithms import CURVE_BYTES, Curve, HashName
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Rejection

SECRET_BYTES = 32
"""Secrets are exactly this long: no EK that is accepted has a smaller nameAlg digest, which is the TPM's limit."""

Entropy = Callable[[int], bytes]
"""Gives as many unpredictable bytes as it is asked for."""

_HASHES: dict[HashName, hashes.HashAlgorithm] = {"sha256": hashes.SHA256(), "sha384": hashes.SHA384()}
_CURVES: dict[Curve, tuple[ec.EllipticCurve, int]] = {
    "P-256": (ec.SECP256R1(), 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551),
    "P-384": (
        ec.SECP384R1(),
        0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFC7634D81F4372DDF581A0DB248B0A77AECEC196ACCC52973,
    ),
}
"""Curves with their order (FIPS 186-4, D.1.2.3 and D.1.2.4)."""
_IDENTITY = b"IDENTITY"


@dataclass(frozen=True, slots=True)
class Credential:
    """What TPM2_ActivateCredential takes, each without the outer size of its TPM2B."""

    blob: bytes
    """TPM2B_ID_OBJECT's content: 2B integrity HMAC, then the encrypted identity."""
    encrypted_secret: bytes
    """TPM2B_ENCRYPTED_SECRET's content: the encrypted seed."""


def make_credential(ek: PublicArea, ak_name: bytes, secret: bytes, entropy: Entropy) -> Credential:
    """`secret` (32 bytes) encrypted to the TPM that holds `ek` and an object named `ak_name`.

    `ek` must have passed `check_ek`. For RSA the padding's randomness is the library's own. Raises Rejection
    `ek-algorithm-unsupported`, ValueError for a secret of another size.
    """
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a credential's secret has {SECRET_BYTES} bytes")
    hash_name = ek.name_alg
    if hash_name not in _HASHES or ek.symmetric is None:
        raise Rejection(ReasonCode.EK_ALGORITHM_UNSUPPORTED, "ek", f"{ek.name_alg}, {ek.symmetric}")
    size = hashlib.new(hash_name).digest_size
    key = public_key_of(ek, ReasonCode.EK_ALGORITHM_UNSUPPORTED)
    if isinstance(key, rsa.RSAPublicKey):
        seed = entropy(size)
        hash_algorithm = _HASHES[hash_name]
        oaep = padding.OAEP(padding.MGF1(hash_algorithm), hash_algorithm, _IDENTITY + b"\0")
        encrypted_seed = key.encrypt(seed, oaep)
    else:
        seed, encrypted_seed = _ecc_seed(ek, key, entropy)
    symmetric_key = _kdf_a(hash_name, seed, b"STORAGE", ak_name, ek.symmetric.bits)
    # Part 1, 24.4: the initialisation vector is zero, because the key is used once.
    encryptor = Cipher(algorithms.AES(symmetric_key), CFB(bytes(16))).encryptor()
    identity = encryptor.update(_sized(secret)) + encryptor.finalize()
    integrity_key = _kdf_a(hash_name, seed, b"INTEGRITY", b"", size * 8)
    integrity = hmac.digest(integrity_key, identity + ak_name, hash_name)
    return Credential(_sized(integrity) + identity, encrypted_seed)


def _ecc_seed(ek: PublicArea, key: ec.EllipticCurvePublicKey, entropy: Entropy) -> tuple[bytes, bytes]:
    """The seed by one-pass ECDH, and the ephemeral point (TPMS_ECC_POINT) from which the TPM finds it.

    Trap: Z and both x-coordinates enter KDFe in the field's full width; with a leading zero stripped, one credential
    in about 256 does not activate.
    """
    if not isinstance(ek.key, EccPublic) or ek.key.curve not in _CURVES:
        raise Rejection(ReasonCode.EK_ALGORITHM_UNSUPPORTED, "ek", ek.algorithm, "RSA-2048, P-256 or P-384")
    curve, order = _CURVES[ek.key.curve]
    width = CURVE_BYTES[ek.key.curve]
    # Eight bytes more than the order, so that the remainder is even enough (FIPS 186-4, B.4.1).
    scalar = int.from_bytes(entropy(width + 8), "big") % (order - 1) + 1
    ephemeral = ec.derive_private_key(scalar, curve)
    point = ephemeral.public_key().public_numbers()
    x, y = point.x.to_bytes(width, "big"), point.y.to_bytes(width, "big")
    shared = ephemeral.exchange(ec.ECDH(), key).rjust(width, b"\0")
    seed = _kdf_e(ek.name_alg, shared, x, ek.key.x.to_bytes(width, "big"))
    return seed, _sized(x) + _sized(y)


def _kdf_a(hash_name: str, key: bytes, label: bytes, context: bytes, bits: int) -> bytes:
    """KDFa (SP 800-108 in counter mode): HMAC(key, u32 i || label || 0 || context || u32 bits), cut to `bits`."""
    output = b""
    counter = 1
    while len(output) * 8 < bits:
        message = counter.to_bytes(4, "big") + label + b"\0" + context + bits.to_bytes(4, "big")
        output += hmac.digest(key, message, hash_name)
        counter += 1
    return output[: bits // 8]


def _kdf_e(hash_name: str, shared: bytes, ephemeral_x: bytes, key_x: bytes) -> bytes:
    """KDFe (SP 800-56A), one block: H(u32 1 || Z || "IDENTITY" || 0 || ephemeral x || key x)."""
    message = (1).to_bytes(4, "big") + shared + _IDENTITY + b"\0" + ephemeral_x + key_x
    return hashlib.new(hash_name, message).digest()


def _sized(content: bytes) -> bytes:
    return len(content).to_bytes(2, "big") + content
