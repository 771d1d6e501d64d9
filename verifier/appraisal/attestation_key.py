"""Which key may attest: one that the TPM made, keeps, and uses only on what it hashed or built itself."""

from __future__ import annotations

from verifier.evidence.tpm import EccPublic, PublicArea, RsaPublic, SignatureScheme
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Rejection

AK_ATTRIBUTES = frozenset({0x00050072, 0x00050472})
"""fixedTPM, fixedParent, sensitiveDataOrigin, userWithAuth, restricted, sign; noDA may be set too.

Restricted and sign without decrypt make a key that signs outside data only with a ticket, so that a structure that
begins with TPM_GENERATED_VALUE can come only from the TPM (Part 1, section 25.2). Exactly these, because every
further bit (a policy, a duplication) would have to be understood first.
"""


def check_ak(ak: PublicArea) -> None:
    """Returns if `ak` is of the one form that may attest: a restricted signing key that cannot leave its TPM.

    Accepts P-256 with ECDSA and RSA-2048 with RSASSA, both SHA-256 and with a SHA-2 name. Raises Rejection
    `ak-attributes-unsuitable`, `ak-algorithm-unsupported`. Does not check that the key is in a TPM: activation does.
    """
    if ak.attributes not in AK_ATTRIBUTES:
        expected = " or ".join(f"{value:#010x}" for value in sorted(AK_ATTRIBUTES))
        raise Rejection(ReasonCode.AK_ATTRIBUTES_UNSUITABLE, "ak.attributes", f"{ak.attributes:#010x}", expected)
    if ak.symmetric is not None or ak.kdf is not None:
        raise Rejection(ReasonCode.AK_ATTRIBUTES_UNSUITABLE, "ak.parameters", "symmetric or kdf", "null")
    if ak.name_alg == "sha1":
        raise Rejection(ReasonCode.AK_ALGORITHM_UNSUPPORTED, "ak.name_alg", ak.name_alg, "sha256 or stronger")
    match ak.key:
        case RsaPublic(bits=bits, exponent=exponent):
            fits = bits == 2048 and exponent == 65537 and ak.scheme == SignatureScheme("rsassa", "sha256")
        case EccPublic(curve=curve):
            fits = curve == "P-256" and ak.scheme == SignatureScheme("ecdsa", "sha256")
    if not fits:
        raise Rejection(
            ReasonCode.AK_ALGORITHM_UNSUPPORTED, "ak", f"{ak.algorithm} {ak.scheme}", "P-256 ECDSA or RSA-2048 RSASSA"
        )
