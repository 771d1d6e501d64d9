"""Which endorsement key may name a node, and the name that it gives: the node id."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from verifier.appraisal.signatures import PublicKey, load_key
from verifier.evidence.tpm import PublicArea, RsaPublic, SymmetricCipher
from verifier.evidence.tpm_algorithms import HashName
from verifier.wire.bundle import NodeId
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Rejection

_POLICY_A = bytes.fromhex("837197674484b3f81a90cc8d46a5d724fd52d76e06520b64f2a1da1b331469aa")
_POLICY_B_SHA256 = bytes.fromhex("ca3d0a99a2b93906f7a3342414efcfb3a385d44cd1fd459089d19b5071c0b7a0")
_POLICY_B_SHA384 = bytes.fromhex(
    "b26e7d28d11a50bc53d882bcf5fd3a1a074148bb35d3b4e4cb1c0ad9bde419cacb47ba09699646150f9fc000f3f80e12"
)
"""PolicySecret(endorsement), alone (A) or as one branch (B): TCG EK Credential Profile 2.5, annex B.6."""


@dataclass(frozen=True, slots=True)
class _Template:
    """What a TCG template fixes apart from the kind of key."""

    attributes: int
    name_alg: HashName
    policy: bytes
    cipher: SymmetricCipher


_AES_128 = SymmetricCipher("aes", 128, "cfb")
_AES_256 = SymmetricCipher("aes", 256, "cfb")
_LOW = _Template(0x000300B2, "sha256", _POLICY_A, _AES_128)
"""fixedTPM, fixedParent, sensitiveDataOrigin, adminWithPolicy, restricted, decrypt (annex B.3)."""
_HIGH_128 = _Template(0x000300F2, "sha256", _POLICY_B_SHA256, _AES_128)
_HIGH_256 = _Template(0x000300F2, "sha384", _POLICY_B_SHA384, _AES_256)
"""The high range (annex B.4) adds userWithAuth."""
_TEMPLATES: dict[str, tuple[_Template, ...]] = {
    "RSA-2048": (_LOW, _HIGH_128),
    "P-256": (_LOW, _HIGH_128),
    "P-384": (_HIGH_256,),
}


def check_ek_template(ek: PublicArea) -> None:
    """Returns if `ek` is of a TCG template: a restricted decryption key that never leaves its TPM.

    Raises Rejection `ek-algorithm-unsupported` (not RSA-2048, P-256 or P-384), `ek-attributes-unsuitable` (attributes,
    policy, name algorithm or cipher are of no template). Does not check that the key is in a TPM: activation does.
    """
    key = ek.key
    kind = f"RSA-{key.bits}" if isinstance(key, RsaPublic) else key.curve
    templates = _TEMPLATES.get(kind)
    if templates is None or (isinstance(key, RsaPublic) and key.exponent != 65537):
        raise Rejection(ReasonCode.EK_ALGORITHM_UNSUPPORTED, "ek", kind, ", ".join(_TEMPLATES))
    public_key_of(ek, ReasonCode.EK_ALGORITHM_UNSUPPORTED)
    if ek.symmetric is None or ek.scheme is not None or ek.kdf is not None:
        raise Rejection(ReasonCode.EK_ATTRIBUTES_UNSUITABLE, "ek.parameters", "not a storage key", "a TCG template")
    if _Template(ek.attributes, ek.name_alg, ek.auth_policy, ek.symmetric) not in templates:
        seen = f"{ek.attributes:#010x}, {ek.name_alg}, {ek.symmetric.algorithm}-{ek.symmetric.bits}"
        raise Rejection(ReasonCode.EK_ATTRIBUTES_UNSUITABLE, "ek.attributes", seen, "a TCG template")


def node_id_of(ek: PublicArea) -> NodeId:
    """SHA-256 (hex) of the DER SubjectPublicKeyInfo of `ek`: rsaEncryption, or the uncompressed point.

    The same for every spelling of the key: it is rebuilt from the numbers. Raises Rejection `ek-algorithm-unsupported`.
    """
    key = public_key_of(ek, ReasonCode.EK_ALGORITHM_UNSUPPORTED)
    return NodeId(hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest())


def public_key_of(public: PublicArea, code: ReasonCode) -> PublicKey:
    """The key of `public`, usable. Raises Rejection `code` where its numbers are no key (a point off its curve)."""
    try:
        return load_key(public.key)
    except ValueError as error:
        raise Rejection(code, "public.unique", "no key", "a key on its curve") from error
