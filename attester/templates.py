"""The public templates of every key that the attester asks a TPM for, and where its EK certificates lie.

EK templates must be the TCG's to the bit: the EK is not stored but derived from them, and a certificate is for one
derivation only. The AK and the binding key are ours; the verifier requires exactly these attributes.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from enum import StrEnum
from hashlib import sha256
from typing import assert_never

from tpm2_pytss.constants import TPM2_ALG, TPM2_CC, TPM2_ECC, TPMA_OBJECT
from tpm2_pytss.types import (
    TPM2B_PUBLIC,
    TPMS_ECC_PARMS,
    TPMS_ECC_POINT,
    TPMS_RSA_PARMS,
    TPMS_SCHEME_HASH,
    TPMT_ECC_SCHEME,
    TPMT_KDF_SCHEME,
    TPMT_PUBLIC,
    TPMT_RSA_SCHEME,
    TPMT_SYM_DEF_OBJECT,
    TPMU_ASYM_SCHEME,
    TPMU_PUBLIC_ID,
    TPMU_PUBLIC_PARMS,
    TPMU_SYM_KEY_BITS,
    TPMU_SYM_MODE,
)


class EkType(StrEnum):
    """Which endorsement key the attester uses. It is the node's identity, so it never changes after enrolment."""

    RSA_2048 = "rsa-2048"
    P_256 = "p-256"
    P_384 = "p-384"


class AkType(StrEnum):
    """Which attestation key the attester makes under the EK."""

    P_256 = "p-256"
    RSA_2048 = "rsa-2048"


EK_CERTIFICATE_INDEX: Mapping[EkType, int] = {
    EkType.RSA_2048: 0x01C00002,
    EkType.P_256: 0x01C0000A,
    EkType.P_384: 0x01C00016,
}
"""NV index of each EK's certificate: TCG EK Credential Profile 2.5, section 2.2.1.4 and 2.2.1.5."""
INTERMEDIATE_CERTIFICATE_INDICES = range(0x01C00100, 0x01C00200)
"""NV indices of the manufacturer's intermediates, where it stores them on the TPM: same profile, section 2.2.1.5.2."""

# TCG EK Credential Profile 2.5, annex B. fixedTPM, fixedParent, sensitiveDataOrigin, adminWithPolicy, restricted,
# decrypt; the high range adds userWithAuth.
_EK_LOW_RANGE = TPMA_OBJECT(0x300B2)
_EK_HIGH_RANGE = TPMA_OBJECT(0x300F2)
# PolicySecret(TPM_RH_ENDORSEMENT) under SHA-256 (PolicyA), annex B.6.2.
_POLICY_A = bytes.fromhex("837197674484b3f81a90cc8d46a5d724fd52d76e06520b64f2a1da1b331469aa")
# PolicyB for SHA-384, annex B.6.3: PolicyA or an authorised policy.
_POLICY_B_SHA384 = bytes.fromhex(
    "b26e7d28d11a50bc53d882bcf5fd3a1a074148bb35d3b4e4cb1c0ad9bde419cacb47ba09699646150f9fc000f3f80e12"
)
# fixedTPM, fixedParent, sensitiveDataOrigin, userWithAuth, noDA, restricted, sign.
_AK = TPMA_OBJECT(0x50472)
# fixedTPM, fixedParent, sensitiveDataOrigin, noDA, decrypt. userWithAuth is clear, so that only the policy over this
# boot's counters gives use; restricted is clear, or ECDH_ZGen is refused.
_BINDING = TPMA_OBJECT(0x20432)

BINDING_UNIQUE_BYTES = 64


def ek_template(kind: EkType) -> TPM2B_PUBLIC:
    """The TCG's default template of an EK: low range for RSA-2048 and P-256, high range for P-384."""
    match kind:
        case EkType.RSA_2048:
            parameters = TPMU_PUBLIC_PARMS(
                rsaDetail=TPMS_RSA_PARMS(
                    symmetric=_aes_cfb(128), scheme=TPMT_RSA_SCHEME(scheme=TPM2_ALG.NULL), keyBits=2048, exponent=0
                )
            )
            unique = TPMU_PUBLIC_ID(rsa=bytes(256))
            return _public(TPM2_ALG.RSA, TPM2_ALG.SHA256, _EK_LOW_RANGE, _POLICY_A, parameters, unique)
        case EkType.P_256:
            parameters = _ecc_parameters(TPM2_ECC.NIST_P256, _aes_cfb(128), TPMT_ECC_SCHEME(scheme=TPM2_ALG.NULL))
            unique = TPMU_PUBLIC_ID(ecc=TPMS_ECC_POINT(x=bytes(32), y=bytes(32)))
            return _public(TPM2_ALG.ECC, TPM2_ALG.SHA256, _EK_LOW_RANGE, _POLICY_A, parameters, unique)
        case EkType.P_384:
            parameters = _ecc_parameters(TPM2_ECC.NIST_P384, _aes_cfb(256), TPMT_ECC_SCHEME(scheme=TPM2_ALG.NULL))
            unique = TPMU_PUBLIC_ID(ecc=TPMS_ECC_POINT(x=b"", y=b""))
            return _public(TPM2_ALG.ECC, TPM2_ALG.SHA384, _EK_HIGH_RANGE, _POLICY_B_SHA384, parameters, unique)
        case _:
            assert_never(kind)


def ak_template(kind: AkType) -> TPM2B_PUBLIC:
    """A restricted signing key: P-256 with ECDSA/SHA-256, or RSA-2048 with RSASSA/SHA-256; name algorithm SHA-256."""
    hash_scheme = TPMS_SCHEME_HASH(hashAlg=TPM2_ALG.SHA256)
    null_symmetric = TPMT_SYM_DEF_OBJECT(algorithm=TPM2_ALG.NULL)
    match kind:
        case AkType.P_256:
            ecdsa = TPMT_ECC_SCHEME(scheme=TPM2_ALG.ECDSA, details=TPMU_ASYM_SCHEME(ecdsa=hash_scheme))
            parameters = _ecc_parameters(TPM2_ECC.NIST_P256, null_symmetric, ecdsa)
            unique = TPMU_PUBLIC_ID(ecc=TPMS_ECC_POINT(x=b"", y=b""))
            return _public(TPM2_ALG.ECC, TPM2_ALG.SHA256, _AK, b"", parameters, unique)
        case AkType.RSA_2048:
            rsassa = TPMT_RSA_SCHEME(scheme=TPM2_ALG.RSASSA, details=TPMU_ASYM_SCHEME(rsassa=hash_scheme))
            parameters = TPMU_PUBLIC_PARMS(
                rsaDetail=TPMS_RSA_PARMS(symmetric=null_symmetric, scheme=rsassa, keyBits=2048, exponent=0)
            )
            return _public(TPM2_ALG.RSA, TPM2_ALG.SHA256, _AK, b"", parameters, TPMU_PUBLIC_ID(rsa=b""))
        case _:
            assert_never(kind)


def binding_key_template(unique: bytes, reset_count: int, restart_count: int) -> TPM2B_PUBLIC:
    """Template B of this boot's binding key: a P-256 decryption key of the null hierarchy, usable under one policy.

    `unique` is 64 secret random bytes (x || y). Without them any process with TPM access could derive the same key
    again, in this boot or after a restart that keeps the null seed; with them it still fails the counter policy.
    """
    if len(unique) != BINDING_UNIQUE_BYTES:
        raise ValueError(f"unique must be {BINDING_UNIQUE_BYTES} bytes")
    null_symmetric = TPMT_SYM_DEF_OBJECT(algorithm=TPM2_ALG.NULL)
    parameters = _ecc_parameters(TPM2_ECC.NIST_P256, null_symmetric, TPMT_ECC_SCHEME(scheme=TPM2_ALG.NULL))
    point = TPMU_PUBLIC_ID(ecc=TPMS_ECC_POINT(x=unique[:32], y=unique[32:]))
    policy = counter_policy(reset_count, restart_count)
    return _public(TPM2_ALG.ECC, TPM2_ALG.SHA256, _BINDING, policy, parameters, point)


COUNTER_OFFSET = 16
"""Where resetCount starts in TPMS_TIME_INFO (time 8 bytes, then clock 8 bytes): TPM 2.0 part 3, PolicyCounterTimer."""


def counter_operand(reset_count: int, restart_count: int) -> bytes:
    """operandB of the policy: u32 resetCount || u32 restartCount, big-endian."""
    return struct.pack(">II", reset_count, restart_count)


def counter_policy(reset_count: int, restart_count: int) -> bytes:
    """authPolicy of PolicyCounterTimer(counters, EQ, offset 16) alone, SHA-256: TPM 2.0 part 3, section 23.12."""
    equal = 0
    operation = struct.pack(">HH", COUNTER_OFFSET, equal)
    arguments = sha256(counter_operand(reset_count, restart_count) + operation).digest()
    return sha256(bytes(32) + struct.pack(">I", int(TPM2_CC.PolicyCounterTimer)) + arguments).digest()


def _aes_cfb(bits: int) -> TPMT_SYM_DEF_OBJECT:
    return TPMT_SYM_DEF_OBJECT(
        algorithm=TPM2_ALG.AES, keyBits=TPMU_SYM_KEY_BITS(aes=bits), mode=TPMU_SYM_MODE(aes=TPM2_ALG.CFB)
    )


def _ecc_parameters(curve: int, symmetric: TPMT_SYM_DEF_OBJECT, scheme: TPMT_ECC_SCHEME) -> TPMU_PUBLIC_PARMS:
    kdf = TPMT_KDF_SCHEME(scheme=TPM2_ALG.NULL)
    return TPMU_PUBLIC_PARMS(eccDetail=TPMS_ECC_PARMS(symmetric=symmetric, scheme=scheme, curveID=curve, kdf=kdf))


def _public(
    kind: int, name_alg: int, attributes: int, policy: bytes, parameters: TPMU_PUBLIC_PARMS, unique: TPMU_PUBLIC_ID
) -> TPM2B_PUBLIC:
    area = TPMT_PUBLIC(
        type=kind,
        nameAlg=name_alg,
        objectAttributes=attributes,
        authPolicy=policy,
        parameters=parameters,
        unique=unique,
    )
    return TPM2B_PUBLIC(area)
