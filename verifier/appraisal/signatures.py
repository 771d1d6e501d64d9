"""Whether a TPM's key signed a message: RSASSA, RSAPSS and ECDSA over the keys' own curves and sizes.

The mathematics is `cryptography`'s; this file turns TPM structures into its terms and its answers into refusals.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import assert_never

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from verifier.evidence.attest import EcdsaSignature, RsaSignature, TpmSignature
from verifier.evidence.tpm import EccPublic, PublicArea, RsaPublic
from verifier.evidence.tpm_algorithms import Curve
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Rejection

PublicKey = rsa.RSAPublicKey | ec.EllipticCurvePublicKey

HASHES: Mapping[str, hashes.HashAlgorithm] = {
    "sha1": hashes.SHA1(),  # noqa: S303 - old quotes are shown by `inspect`; enrolment admits no key that uses it
    "sha256": hashes.SHA256(),
    "sha384": hashes.SHA384(),
    "sha512": hashes.SHA512(),
}
_CURVES: Mapping[Curve, ec.EllipticCurve] = {
    "P-256": ec.SECP256R1(),
    "P-384": ec.SECP384R1(),
    "P-521": ec.SECP521R1(),
}
_ECDSA = {name: ec.ECDSA(algorithm) for name, algorithm in HASHES.items()}


@lru_cache(maxsize=16384)
def load_key(key: RsaPublic | EccPublic) -> PublicKey:
    """The usable public key. Raises ValueError for a point off its curve or an RSA key too small to be one."""
    match key:
        case RsaPublic():
            return rsa.RSAPublicNumbers(key.exponent, key.modulus).public_key()
        case EccPublic():
            return ec.EllipticCurvePublicNumbers(key.x, key.y, _CURVES[key.curve]).public_key()
        case _:
            assert_never(key)


def verify_signature(public: PublicArea, message: bytes, signature: TpmSignature, code: ReasonCode, claim: str) -> None:
    """Returns only if the key of `public` made `signature` over `message`.

    Raises Rejection `code` at `claim`. RSAPSS salts may be as long as the hash or as long as fits (TPM 2.0 Library,
    Part 1, B.7: both occur). Does not check that the scheme is the one that the key was made with, nor its strength.
    """
    try:
        key = load_key(public.key)
        match signature:
            case EcdsaSignature() if isinstance(key, ec.EllipticCurvePublicKey):
                der = encode_dss_signature(signature.r, signature.s)
                key.verify(der, message, _ECDSA[signature.scheme.hash or ""])
            case RsaSignature() if isinstance(key, rsa.RSAPublicKey):
                _verify_rsa(key, message, signature)
            case _:
                raise Rejection(code, claim, f"{signature.scheme.algorithm} by a key of type {public.algorithm}")
    except (InvalidSignature, ValueError, KeyError) as error:
        raise Rejection(code, claim, "does not verify", f"a signature by {public.name.hex()}") from error


def _verify_rsa(key: rsa.RSAPublicKey, message: bytes, signature: RsaSignature) -> None:
    algorithm = HASHES[signature.scheme.hash or ""]
    if signature.scheme.algorithm == "rsassa":
        key.verify(signature.value, message, padding.PKCS1v15(), algorithm)
        return
    mask = padding.MGF1(algorithm)
    try:
        key.verify(signature.value, message, padding.PSS(mask, padding.PSS.DIGEST_LENGTH), algorithm)
    except InvalidSignature:
        # As a number: the library takes its own MAX_LENGTH for "any length" when it verifies.
        longest = padding.calculate_max_pss_salt_length(key, algorithm)
        key.verify(signature.value, message, padding.PSS(mask, longest), algorithm)
