"""MakeCredential in software against a real TPM: what it makes activates, and nothing else does."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from attester.keys import AttestationKey, activate_credential, create_ak, read_endorsement_key
from attester.templates import AkType, EkType
from attester.tpm import open_tpm
from nodewarden_demo.software_tpm import SoftwareTpm
from tests.forge.keys import EkKind, endorsement_key
from verifier.appraisal.credential import Credential, Entropy, make_credential
from verifier.appraisal.endorsement_key import check_ek_template, node_id_of
from verifier.evidence.tpm import EccPublic, PublicArea, parse_public
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Rejection

SECRET = bytes(range(32))
EK_KINDS: list[EkKind] = ["rsa-2048", "p-256", "p-384"]
ECC_KINDS: list[tuple[EkKind, str]] = [("p-256", "P-256"), ("p-384", "P-384")]
_ORDERS = {
    "P-256": int("FFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551", 16),
    "P-384": int(
        "FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFC7634D81F4372DDF581A0DB248B0A77AECEC196ACCC52973", 16
    ),
}


@pytest.mark.swtpm
@pytest.mark.parametrize("ek_kind", list(EkType))
@pytest.mark.parametrize("ak_kind", list(AkType))
def test_a_credential_activates_in_the_tpm_for_every_kind_of_key(
    tpm: SoftwareTpm, ek_kind: EkType, ak_kind: AkType
) -> None:
    with open_tpm(tpm.tcti) as device:
        endorsement = read_endorsement_key(device, ek_kind)
        ek = parse_public(endorsement.public)
        check_ek_template(ek)
        assert node_id_of(ek) == endorsement.node_id
        ak = AttestationKey(create_ak(device, ek_kind, ak_kind))
        made = make_credential(ek, parse_public(ak.blob.public).name, SECRET, os.urandom)
        assert activate_credential(device, ak, made.blob, made.encrypted_secret) == SECRET


def _with_scalar(scalar: int, size: int) -> Entropy:
    def entropy(count: int) -> bytes:
        assert count == size + 8
        return (scalar - 1).to_bytes(count, "big")

    return entropy


def _search(ek: EccPublic, short: Callable[[bytes, bytes], bool]) -> int:
    """A scalar whose shared x-coordinate or ephemeral x-coordinate is short: one in 256 is."""
    curve: ec.EllipticCurve = ec.SECP256R1() if ek.curve == "P-256" else ec.SECP384R1()
    width = 32 if ek.curve == "P-256" else 48
    peer = ec.EllipticCurvePublicNumbers(ek.x, ek.y, curve).public_key()
    for scalar in range(1, 5000):
        private = ec.derive_private_key(scalar, curve)
        shared = private.exchange(ec.ECDH(), peer)
        if short(shared, private.public_key().public_numbers().x.to_bytes(width, "big")):
            return scalar
    raise AssertionError("no such scalar below 5000")


@pytest.mark.swtpm
@pytest.mark.parametrize("ek_kind", [EkType.P_256, EkType.P_384])
def test_coordinates_with_leading_zeros_keep_their_full_width(tpm: SoftwareTpm, ek_kind: EkType) -> None:
    with open_tpm(tpm.tcti) as device:
        ek = parse_public(read_endorsement_key(device, ek_kind).public)
        assert isinstance(ek.key, EccPublic)
        width = 32 if ek.key.curve == "P-256" else 48
        ak = AttestationKey(create_ak(device, ek_kind, AkType.P_256))
        name = parse_public(ak.blob.public).name
        for short in (lambda shared, _: shared[0] == 0, lambda _, x: x[0] == 0):
            scalar = _search(ek.key, short)
            made = make_credential(ek, name, SECRET, _with_scalar(scalar, width))
            assert activate_credential(device, ak, made.blob, made.encrypted_secret) == SECRET


@pytest.mark.swtpm
def test_a_credential_for_another_ak_or_tampered_with_does_not_activate(tpm: SoftwareTpm) -> None:
    with open_tpm(tpm.tcti) as device:
        ek = parse_public(read_endorsement_key(device, EkType.P_256).public)
        ak = AttestationKey(create_ak(device, EkType.P_256, AkType.P_256))
        other = AttestationKey(create_ak(device, EkType.P_256, AkType.P_256))
        made = make_credential(ek, parse_public(other.blob.public).name, SECRET, os.urandom)
        altered = Credential(made.blob[:-1] + bytes([made.blob[-1] ^ 1]), made.encrypted_secret)
        for key, credential in ((ak, made), (other, altered)):
            with pytest.raises(Rejection) as caught:
                activate_credential(device, key, credential.blob, credential.encrypted_secret)
            assert caught.value.code is ReasonCode.CREDENTIAL_MISMATCH
        assert activate_credential(device, other, made.blob, made.encrypted_secret) == SECRET


@pytest.mark.swtpm
def test_a_credential_does_not_activate_in_another_tpm(tpm: SoftwareTpm, other_tpm: SoftwareTpm) -> None:
    with open_tpm(other_tpm.tcti) as device:
        other_ek = parse_public(read_endorsement_key(device, EkType.P_256).public)
    with open_tpm(tpm.tcti) as device:
        ak = AttestationKey(create_ak(device, EkType.P_256, AkType.P_256))
        made = make_credential(other_ek, parse_public(ak.blob.public).name, SECRET, os.urandom)
        with pytest.raises(Rejection) as caught:
            activate_credential(device, ak, made.blob, made.encrypted_secret)
        assert caught.value.code is ReasonCode.CREDENTIAL_MISMATCH


def _repeated(draw: bytes) -> Entropy:
    return lambda count: draw * count


def _number(value: int) -> Entropy:
    return lambda count: value.to_bytes(count, "big")


@pytest.mark.parametrize("kind", EK_KINDS)
def test_two_credentials_have_nothing_in_common(kind: EkKind) -> None:
    ek = parse_public(endorsement_key(kind).tpm2b)
    first, second = (make_credential(ek, b"name", SECRET, os.urandom) for _ in range(2))
    assert first.blob != second.blob
    assert first.encrypted_secret != second.encrypted_secret


def test_only_secrets_of_32_bytes_are_taken() -> None:
    ek = parse_public(endorsement_key("p-256").tpm2b)
    for size in (0, 31, 33):
        with pytest.raises(ValueError, match="32"):
            make_credential(ek, b"name", bytes(size), os.urandom)


def test_the_smallest_and_largest_draws_give_a_key_of_the_curve() -> None:
    for kind, curve in ECC_KINDS:
        ek: PublicArea = parse_public(endorsement_key(kind).tpm2b)
        for draw in (b"\0", b"\xff"):
            assert make_credential(ek, b"name", SECRET, _repeated(draw)).blob
        order = _ORDERS[curve]
        made = make_credential(ek, b"name", SECRET, _number(order - 1))
        assert made.encrypted_secret
