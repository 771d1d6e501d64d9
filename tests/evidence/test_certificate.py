from __future__ import annotations

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.appraisal.certificates import EK_EXTENSIONS, SHA256_RSA, handmade, maker, name, rsa_key, tlv
from verifier.evidence.certificate import (
    MAX_CERTIFICATE_BYTES,
    name_text,
    parse_certificate,
    parse_revocation_list,
)
from verifier.evidence.der import DerReader, oid_text
from verifier.evidence.tpm import EccPublic, RsaPublic
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence

ISSUER = maker().intermediate
SPKI = rsa_key(5).public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
PLAIN = ISSUER.issue(name("ek"), rsa_key(5).public_key(), EK_EXTENSIONS, serial=0x1234)


def _refused(content: bytes) -> None:
    with pytest.raises(MalformedEvidence) as refusal:
        parse_certificate(content)
    assert refusal.value.code is ReasonCode.CERTIFICATE_MALFORMED


def test_a_certificate_parses_to_what_the_library_reads() -> None:
    library = x509.load_der_x509_certificate(PLAIN)
    parsed = parse_certificate(PLAIN)
    assert parsed.der == PLAIN
    assert parsed.tbs == library.tbs_certificate_bytes
    assert parsed.signature == library.signature
    assert parsed.serial == library.serial_number == 0x1234
    assert parsed.subject == library.subject.public_bytes()
    assert parsed.issuer == library.issuer.public_bytes()
    assert parsed.not_before == library.not_valid_before_utc.timestamp()
    assert parsed.not_after == library.not_valid_after_utc.timestamp()
    assert parsed.spki == SPKI
    assert parsed.key == RsaPublic(rsa_key(5).public_key().public_numbers().n, 2048, 65537)
    assert set(parsed.extensions) == {extension.oid.dotted_string for extension in library.extensions}
    assert not parsed.is_ca


@pytest.mark.parametrize("curve", [ec.SECP256R1(), ec.SECP384R1(), ec.SECP521R1()], ids=lambda curve: curve.name)
def test_an_elliptic_curve_key_parses_to_its_point(curve: ec.EllipticCurve) -> None:
    key = ec.generate_private_key(curve).public_key()
    parsed = parse_certificate(ISSUER.issue(name("ek"), key, EK_EXTENSIONS))
    assert isinstance(parsed.key, EccPublic)
    assert (parsed.key.x, parsed.key.y) == (key.public_numbers().x, key.public_numbers().y)


def test_a_key_of_another_kind_is_no_key_and_no_error() -> None:
    key = ec.generate_private_key(ec.SECP256K1()).public_key()
    assert parse_certificate(ISSUER.issue(name("ek"), key, EK_EXTENSIONS)).key is None


def test_a_certificate_cut_at_any_byte_or_with_content_behind_it_is_malformed() -> None:
    for size in range(len(PLAIN)):
        _refused(PLAIN[:size])
    _refused(PLAIN + b"\0\xff")
    _refused(PLAIN + PLAIN)


@pytest.mark.parametrize("padding", [b"", b"\0", b"\xff" * 300, b"\0" * 300, b"\x11" * 192])
def test_prefix_and_padding_of_the_tpms_memory_are_removed(padding: bytes) -> None:
    assert parse_certificate(PLAIN + padding).der == PLAIN
    prefix = b"\x10\x01\x00" + len(PLAIN).to_bytes(2, "big")
    assert parse_certificate(prefix + PLAIN + padding).der == PLAIN
    assert parse_certificate(prefix + b"\x10\x02" + PLAIN + padding).der == PLAIN


def test_a_certificate_above_the_limit_is_malformed() -> None:
    _refused(PLAIN + bytes(MAX_CERTIFICATE_BYTES))


def test_a_serial_with_needless_zeros_is_its_number() -> None:
    assert parse_certificate(handmade(ISSUER, SPKI, serial=b"\0\0\0\7")).serial == 7


def test_a_certificate_may_never_expire() -> None:
    assert parse_certificate(handmade(ISSUER, SPKI)).not_after == 253402300799


@pytest.mark.parametrize(
    ("text", "seconds"), [(b"491231235959Z", 2524607999), (b"500101000000Z", -631152000), (b"991231235959Z", 946684799)]
)
def test_two_digit_years_are_of_1950_to_2049(text: bytes, seconds: int) -> None:
    times = (tlv(0x17, text), tlv(0x18, b"99991231235959Z"))
    assert parse_certificate(handmade(ISSUER, SPKI, times=times)).not_before == seconds


@pytest.mark.parametrize(
    "time",
    [
        tlv(0x17, b"2501010000Z"),
        tlv(0x17, b"20250101000000Z"),
        tlv(0x18, b"250101000000Z"),
        tlv(0x17, b"250101000000+0100"),
        tlv(0x17, b"251301000000Z"),
        tlv(0x17, b"250101250000Z"),
        tlv(0x18, b"00000101000000Z"),
        tlv(0x04, b"250101000000Z"),
    ],
)
def test_a_time_in_another_form_is_malformed(time: bytes) -> None:
    _refused(handmade(ISSUER, SPKI, times=(time, tlv(0x18, b"99991231235959Z"))))


def test_two_signature_algorithms_in_one_certificate_are_malformed() -> None:
    other = SHA256_RSA.replace(b"\x01\x0b", b"\x01\x05")
    _refused(handmade(ISSUER, SPKI, inner_algorithm=other))


def test_an_extension_that_occurs_twice_is_malformed() -> None:
    one = tlv(0x30, bytes.fromhex("0603551d13"), tlv(0x04, b"\x30\0"))
    assert parse_certificate(handmade(ISSUER, SPKI, extensions=tlv(0xA3, tlv(0x30, one)))).extensions
    _refused(handmade(ISSUER, SPKI, extensions=tlv(0xA3, tlv(0x30, one, one))))


def test_names_are_shown_in_the_order_in_which_they_were_written() -> None:
    assert name_text(parse_certificate(PLAIN).subject) == "O=Maker, CN=ek"
    wide = tlv(0x30, tlv(0x31, tlv(0x30, bytes.fromhex("0603550403"), tlv(0x1E, "\u00e9k".encode("utf-16-be")))))
    assert name_text(wide) == "CN=\u00e9k"


def test_a_revocation_list_parses_to_its_serials() -> None:
    der = ISSUER.revoke(5, 0x1234)
    parsed = parse_revocation_list(der)
    assert parsed.revoked == {5, 0x1234}
    assert parsed.issuer == ISSUER.subject.public_bytes()
    assert parse_revocation_list(ISSUER.revoke()).revoked == frozenset()
    for broken in (*(der[:size] for size in range(len(der))), der + b"\0"):
        with pytest.raises(MalformedEvidence) as refusal:
            parse_revocation_list(broken)
        assert refusal.value.code is ReasonCode.CERTIFICATE_MALFORMED


@pytest.mark.parametrize(
    "content", [b"\x30\x80\0\0", b"\x30\x84\0\0\0\1a", b"\x1f\x81\1\0", b"\x30", b"", b"\x30\x82\1"]
)
def test_lengths_and_tags_that_no_certificate_needs_are_malformed(content: bytes) -> None:
    with pytest.raises(MalformedEvidence):
        DerReader(content, "test").next()


def test_an_element_longer_than_its_parent_is_malformed() -> None:
    with pytest.raises(MalformedEvidence):
        DerReader(b"\x30\x02\x04\x05abcde", "test").inside().next()


def test_object_identifiers_are_dotted_text() -> None:
    assert oid_text(bytes.fromhex("551d0f")) == "2.5.29.15"
    assert oid_text(bytes.fromhex("2a864886f70d01010b")) == "1.2.840.113549.1.1.11"
    assert oid_text(b"") == oid_text(b"\x80") == ""


@given(st.binary(max_size=200), st.integers(0, len(PLAIN)))
@settings(max_examples=400, deadline=None)
def test_arbitrary_bytes_raise_only_malformed_evidence(noise: bytes, position: int) -> None:
    for candidate in (noise, PLAIN[:position] + noise + PLAIN[position + len(noise) :]):
        for parser in (parse_certificate, parse_revocation_list):
            try:
                parser(candidate)
            except MalformedEvidence as refusal:
                assert refusal.code is ReasonCode.CERTIFICATE_MALFORMED
