from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from tests.evidence.logs import VM
from tests.forge.keys import attestation_key
from verifier.appraisal.signatures import verify_signature
from verifier.evidence.attest import EcdsaSignature, RsaSignature, TpmSignature, parse_signature
from verifier.evidence.tpm import EccPublic, PublicArea, SignatureScheme, parse_public
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Rejection

MESSAGE = b"message"
CODE = ReasonCode.BINDING_KEY_SIGNATURE_INVALID


def _refused(public: PublicArea, signature: TpmSignature, message: bytes = MESSAGE) -> None:
    with pytest.raises(Rejection) as refusal:
        verify_signature(public, message, signature, CODE, "test")
    assert refusal.value.code is CODE


@cache
def _key(kind: str) -> PublicArea:
    return parse_public((attestation_key("p-256") if kind == "p-256" else attestation_key("rsa-2048")).tpm2b)


@pytest.mark.parametrize("case", ["sb-on-good", "uki-sb-on"])
def test_the_quote_of_a_real_tpm_verifies_and_no_changed_byte_of_it_does(case: str) -> None:
    files = [(VM / case / name).read_bytes() for name in ("ak.pub", "quote.attest", "quote.sig")]
    public, attest, signature = parse_public(files[0]), files[1], parse_signature(files[2])
    verify_signature(public, attest, signature, CODE, "quote")
    for position in range(len(attest)):
        changed = attest[:position] + bytes((attest[position] ^ 1,)) + attest[position + 1 :]
        _refused(public, signature, changed)


def test_no_changed_byte_of_a_signature_verifies() -> None:
    for name in ("p-256", "rsa-2048"):
        soft = attestation_key("p-256") if name == "p-256" else attestation_key("rsa-2048")
        signature = parse_signature(soft.sign(MESSAGE))
        verify_signature(_key(name), MESSAGE, signature, CODE, "test")
        match signature:
            case EcdsaSignature(r=r, s=s):
                for bit in range(0, 256, 8):
                    _refused(_key(name), replace(signature, r=r ^ 1 << bit))
                    _refused(_key(name), replace(signature, s=s ^ 1 << bit))
            case RsaSignature(value=value):
                for position in range(len(value)):
                    changed = value[:position] + bytes((value[position] ^ 1,)) + value[position + 1 :]
                    _refused(_key(name), replace(signature, value=changed))


def test_another_key_does_not_verify() -> None:
    signature = parse_signature(attestation_key("p-256").sign(MESSAGE))
    _refused(parse_public(attestation_key("p-256", 1).tpm2b), signature)
    _refused(_key("rsa-2048"), signature)


def test_a_signature_of_the_other_type_of_key_is_refused() -> None:
    _refused(_key("p-256"), RsaSignature(SignatureScheme("rsassa", "sha256"), bytes(256)))


@pytest.mark.parametrize(("r", "s"), [(0, 0), (0, 1), (1, 0), (2**256, 1), (1, 2**528)])
def test_degenerate_ecdsa_signatures_are_refused(r: int, s: int) -> None:
    _refused(_key("p-256"), EcdsaSignature(SignatureScheme("ecdsa", "sha256"), r, s))


def test_a_point_off_its_curve_verifies_nothing() -> None:
    public = _key("p-256")
    assert isinstance(public.key, EccPublic)
    off = replace(public, key=replace(public.key, y=public.key.y ^ 1))
    _refused(off, parse_signature(attestation_key("p-256").sign(MESSAGE)))


@pytest.mark.parametrize("salt", [padding.PSS.DIGEST_LENGTH, padding.PSS.MAX_LENGTH])
def test_pss_salts_of_both_customary_lengths_verify(salt: object) -> None:
    private = attestation_key("rsa-2048").private
    assert isinstance(private, rsa.RSAPrivateKey)
    mask = padding.MGF1(hashes.SHA256())
    scheme = SignatureScheme("rsapss", "sha256")
    value = private.sign(MESSAGE, padding.PSS(mask, salt), hashes.SHA256())  # type: ignore[arg-type]  # a private type
    verify_signature(_key("rsa-2048"), MESSAGE, RsaSignature(scheme, value), CODE, "test")
    _refused(_key("rsa-2048"), RsaSignature(scheme, value), b"other")
    short = private.sign(MESSAGE, padding.PSS(mask, 8), hashes.SHA256())
    _refused(_key("rsa-2048"), RsaSignature(scheme, short))


def test_the_scheme_and_hash_of_the_signature_are_those_that_are_verified() -> None:
    signature = parse_signature(attestation_key("rsa-2048").sign(MESSAGE))
    for scheme in (SignatureScheme("rsapss", "sha256"), SignatureScheme("rsassa", "sha384")):
        _refused(_key("rsa-2048"), replace(signature, scheme=scheme))
    _refused(_key("rsa-2048"), replace(signature, scheme=SignatureScheme("rsassa", None)))


def test_longer_hashes_verify() -> None:
    private = attestation_key("rsa-2048").private
    assert isinstance(private, rsa.RSAPrivateKey)
    for name, algorithm in (("sha384", hashes.SHA384()), ("sha512", hashes.SHA512())):
        value = private.sign(MESSAGE, padding.PKCS1v15(), algorithm)
        scheme = SignatureScheme("rsassa", "sha384" if name == "sha384" else "sha512")
        verify_signature(_key("rsa-2048"), MESSAGE, RsaSignature(scheme, value), CODE, "test")
