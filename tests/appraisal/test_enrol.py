"""Which keys may enrol: TCG templates for EKs, one form of AK, and the node id that follows from the EK."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.forge.keys import (
    AES_128_CFB,
    AES_256_CFB,
    AK_ATTRIBUTES,
    ECDSA_SHA256,
    EK_ATTRIBUTES,
    NULL,
    POLICY_A,
    RSASSA_SHA256,
    EkKind,
    attestation_key,
    endorsement_key,
    public_area,
    sized,
)
from verifier.appraisal.attestation_key import check_ak
from verifier.appraisal.endorsement_key import check_ek_template, node_id_of
from verifier.evidence.tpm import parse_public
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Rejection

VM = Path(__file__).parent.parent / "vectors" / "vm"
EK_KINDS: list[EkKind] = ["rsa-2048", "p-256", "p-384"]
POLICY_B_SHA256 = bytes.fromhex("ca3d0a99a2b93906f7a3342414efcfb3a385d44cd1fd459089d19b5071c0b7a0")


def _refused_ek(area: bytes) -> ReasonCode:
    ek = parse_public(sized(area))
    with pytest.raises(Rejection) as caught:
        check_ek_template(ek)
    return caught.value.code


def _refused_ak(area: bytes) -> ReasonCode:
    ak = parse_public(sized(area))
    with pytest.raises(Rejection) as caught:
        check_ak(ak)
    return caught.value.code


@pytest.mark.parametrize("kind", EK_KINDS)
def test_every_template_enrols_and_names_the_node_by_its_public_key(kind: EkKind) -> None:
    key = endorsement_key(kind)
    ek = parse_public(key.tpm2b)
    check_ek_template(ek)
    der = key.private.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    assert node_id_of(ek) == sha256(der).hexdigest()


def test_the_high_range_template_enrols() -> None:
    for private in (endorsement_key("rsa-2048").private, endorsement_key("p-256").private):
        check_ek_template(parse_public(sized(public_area(private, 0x300F2, POLICY_B_SHA256, AES_128_CFB))))


@pytest.mark.parametrize("case", ["sb-on-good", "uki-sb-on"])
def test_keys_of_our_test_machines_enrol(case: str) -> None:
    check_ek_template(parse_public((VM / case / "ek.pub").read_bytes()))
    check_ak(parse_public((VM / case / "ak.pub").read_bytes()))


@pytest.mark.parametrize("bit", [1, 2, 4, 5, 7, 10, 11, 16, 17, 18])
@pytest.mark.parametrize("kind", EK_KINDS)
def test_an_ek_with_another_attribute_is_refused(kind: EkKind, bit: int) -> None:
    key = endorsement_key(kind)
    area = bytearray(key.tpmt_public)
    attributes = int.from_bytes(area[4:8], "big") ^ (1 << bit)
    area[4:8] = attributes.to_bytes(4, "big")
    assert _refused_ek(bytes(area)) is ReasonCode.EK_ATTRIBUTES_UNSUITABLE


def test_an_ek_of_no_template_is_refused() -> None:
    private = endorsement_key("p-256").private
    for area in (
        public_area(private, EK_ATTRIBUTES, b"", AES_128_CFB),
        public_area(private, EK_ATTRIBUTES, POLICY_B_SHA256, AES_128_CFB),
        public_area(private, EK_ATTRIBUTES, POLICY_A, AES_256_CFB),
        public_area(private, EK_ATTRIBUTES, POLICY_A, NULL),
        public_area(private, EK_ATTRIBUTES, POLICY_A, AES_128_CFB, ECDSA_SHA256),
        public_area(private, EK_ATTRIBUTES, POLICY_A, AES_128_CFB, name_alg="sha1"),
        public_area(private, AK_ATTRIBUTES, scheme=ECDSA_SHA256),
    ):
        assert _refused_ek(area) is ReasonCode.EK_ATTRIBUTES_UNSUITABLE


def test_an_ek_of_another_algorithm_is_refused() -> None:
    large = rsa.generate_private_key(65537, 3072)
    assert _refused_ek(public_area(large, EK_ATTRIBUTES, POLICY_A, AES_128_CFB)) is ReasonCode.EK_ALGORITHM_UNSUPPORTED
    good = endorsement_key("rsa-2048").tpmt_public
    exponent_three = good[:-262] + (3).to_bytes(4, "big") + good[-258:]
    assert _refused_ek(exponent_three) is ReasonCode.EK_ALGORITHM_UNSUPPORTED


def test_an_ek_off_its_curve_is_refused_and_names_no_node() -> None:
    good = endorsement_key("p-256").tpmt_public
    off = good[:-68] + sized(bytes(31) + b"\1") + sized(bytes(31) + b"\2")
    assert _refused_ek(off) is ReasonCode.EK_ALGORITHM_UNSUPPORTED
    with pytest.raises(Rejection) as caught:
        node_id_of(parse_public(sized(off)))
    assert caught.value.code is ReasonCode.EK_ALGORITHM_UNSUPPORTED


def test_both_kinds_of_ak_may_attest() -> None:
    check_ak(parse_public(attestation_key("p-256").tpm2b))
    check_ak(parse_public(attestation_key("rsa-2048").tpm2b))
    check_ak(parse_public(attestation_key(attributes=0x50072).tpm2b))


@pytest.mark.parametrize("bit", [1, 2, 4, 5, 6, 7, 11, 16, 17, 18])
def test_an_ak_with_another_attribute_is_refused(bit: int) -> None:
    private = attestation_key().private
    area = public_area(private, AK_ATTRIBUTES ^ (1 << bit), scheme=ECDSA_SHA256)
    assert _refused_ak(area) is ReasonCode.AK_ATTRIBUTES_UNSUITABLE


def test_an_ak_that_is_a_storage_key_is_refused() -> None:
    area = public_area(attestation_key().private, AK_ATTRIBUTES, b"", AES_128_CFB, ECDSA_SHA256)
    assert _refused_ak(area) is ReasonCode.AK_ATTRIBUTES_UNSUITABLE


def test_an_ak_of_another_algorithm_is_refused() -> None:
    p384 = ec.generate_private_key(ec.SECP384R1())
    p256, rsa_2048 = attestation_key("p-256").private, attestation_key("rsa-2048").private
    large = rsa.generate_private_key(65537, 3072)
    for area in (
        public_area(p384, AK_ATTRIBUTES, scheme=ECDSA_SHA256),
        public_area(p256, AK_ATTRIBUTES, scheme=bytes.fromhex("00180004")),
        public_area(p256, AK_ATTRIBUTES, scheme=NULL),
        public_area(p256, AK_ATTRIBUTES, scheme=ECDSA_SHA256, name_alg="sha1"),
        public_area(rsa_2048, AK_ATTRIBUTES, scheme=bytes.fromhex("0016000b")),
        public_area(large, AK_ATTRIBUTES, scheme=RSASSA_SHA256),
    ):
        assert _refused_ak(area) is ReasonCode.AK_ALGORITHM_UNSUPPORTED
