from __future__ import annotations

from dataclasses import replace

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID

from tests.appraisal.certificates import (
    CA_EXTENSIONS,
    DAY,
    EK_EXTENSIONS,
    NOW,
    Authority,
    handmade,
    make_maker,
    maker,
    name,
    plain,
    rsa_key,
    tlv,
    tpm_name,
    usage,
)
from tests.evidence.logs import VM
from tests.forge.keys import SoftKey, endorsement_key
from verifier.appraisal.context import EkEndorsement
from verifier.appraisal.ek_certificate import MAX_CERTIFICATES, verify_ek_certificate
from verifier.appraisal.endorsements import Endorsements, endorsements_from_files
from verifier.evidence.tpm import parse_public
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence, Refusal

EK = endorsement_key("rsa-2048")
TRUST = Endorsements((maker().root_der,), (maker().intermediate_der,))


def _leaf(
    extensions: tuple[x509.Extension[x509.ExtensionType], ...] = EK_EXTENSIONS,
    ek: SoftKey = EK,
    issuer: Authority | None = None,
    start: int = NOW - DAY,
    end: int = NOW + DAY,
    rsa_padding: padding.PSS | None = None,
    algorithm: hashes.SHA256 | hashes.SHA384 | None = None,
) -> bytes:
    return (issuer or maker().intermediate).issue(
        name("ek"),
        ek.private.public_key(),
        extensions,
        start=start,
        end=end,
        rsa_padding=rsa_padding,
        algorithm=algorithm,
    )


def _verified(*certificates: bytes, ek: SoftKey = EK, trust: Endorsements = TRUST, now: int = NOW) -> EkEndorsement:
    return verify_ek_certificate(parse_public(ek.tpm2b), certificates, trust, now)


def _refused(*certificates: bytes, ek: SoftKey = EK, trust: Endorsements = TRUST, now: int = NOW) -> ReasonCode:
    with pytest.raises(Refusal) as refusal:
        _verified(*certificates, ek=ek, trust=trust, now=now)
    return refusal.value.code


def _without(oid: x509.ObjectIdentifier) -> tuple[x509.Extension[x509.ExtensionType], ...]:
    return tuple(extension for extension in EK_EXTENSIONS if extension.oid != oid)


def test_a_certificate_that_leads_to_a_pinned_root_endorses_the_tpm() -> None:
    assert _verified(_leaf()) == EkEndorsement("verified", "INTC", "ADL", "id:00020001")


@pytest.mark.parametrize("case", ["sb-on-good", "uki-sb-on"])
def test_the_certificate_of_a_real_software_tpm_endorses_its_ek(case: str) -> None:
    files = {f"roots/{case}.pem": (VM / case / "ca-root.pem").read_bytes()}
    trust = endorsements_from_files(files | {"intermediates/i.pem": (VM / case / "ca-issuer.pem").read_bytes()})
    ek = parse_public((VM / case / "ek.pub").read_bytes())
    endorsement = verify_ek_certificate(ek, ((VM / case / "ekcert.der").read_bytes(),), trust, NOW + 100 * DAY)
    assert (endorsement.chain, endorsement.manufacturer, endorsement.model) == ("verified", "00001014", "swtpm")


def test_the_node_may_send_the_intermediate() -> None:
    roots_only = Endorsements((maker().root_der,))
    assert _refused(_leaf(), trust=roots_only) is ReasonCode.EK_CHAIN_UNTRUSTED
    assert _verified(_leaf(), maker().intermediate_der, trust=roots_only).chain == "verified"


def test_a_root_that_the_node_sends_is_not_trusted() -> None:
    other = make_maker("other")
    leaf = _leaf(issuer=other.intermediate)
    assert _refused(leaf, other.intermediate_der, other.root_der) is ReasonCode.EK_CHAIN_UNTRUSTED


def test_an_issuer_of_the_same_name_with_another_key_is_not_the_issuer() -> None:
    impostor = replace(maker().intermediate, key=rsa_key(9))
    assert _refused(_leaf(issuer=impostor)) is ReasonCode.EK_CHAIN_UNTRUSTED


def test_a_pinned_certificate_need_not_be_self_signed() -> None:
    assert _verified(_leaf(), trust=Endorsements((maker().intermediate_der,))).chain == "verified"


def test_no_roots_trust_nothing() -> None:
    assert _refused(_leaf(), trust=Endorsements(())) is ReasonCode.EK_CHAIN_UNTRUSTED


def test_no_certificate_and_too_many_are_refused() -> None:
    assert _refused() is ReasonCode.EK_CERTIFICATE_MISSING
    assert _refused(*[_leaf()] * (MAX_CERTIFICATES + 1)) is ReasonCode.EK_CERTIFICATE_MISSING


def test_a_certificate_of_another_key_is_refused() -> None:
    assert _refused(_leaf(ek=endorsement_key("rsa-2048", 1))) is ReasonCode.EK_CERTIFICATE_KEY_MISMATCH
    assert _refused(_leaf(ek=endorsement_key("p-256"))) is ReasonCode.EK_CERTIFICATE_KEY_MISMATCH


@pytest.mark.parametrize("kind", ["p-256", "p-384"])
def test_elliptic_curve_eks_are_endorsed(kind: str) -> None:
    ek = endorsement_key("p-256") if kind == "p-256" else endorsement_key("p-384")
    assert _verified(_leaf((*EK_EXTENSIONS, plain(usage(agree=True))), ek=ek), ek=ek).chain == "verified"


def test_an_expired_or_future_certificate_anywhere_in_the_path_is_refused_as_expired() -> None:
    assert _refused(_leaf(end=NOW - 1)) is ReasonCode.EK_CERTIFICATE_EXPIRED
    assert _refused(_leaf(start=NOW + 1)) is ReasonCode.EK_CERTIFICATE_EXPIRED
    assert _verified(_leaf(end=NOW)).chain == "verified"
    for old in (make_maker("old", intermediate_end=NOW - 1), make_maker("old root", root_end=NOW - 1)):
        trust = Endorsements((old.root_der,), (old.intermediate_der,))
        assert _refused(_leaf(issuer=old.intermediate), trust=trust) is ReasonCode.EK_CERTIFICATE_EXPIRED


def test_a_revoked_certificate_is_refused_and_only_by_its_own_issuers_list() -> None:
    for crl, leaf_revoked in ((maker().intermediate.revoke(5, 7), True), (maker().intermediate.revoke(5), False)):
        trust = replace(TRUST, crls=(crl,))
        if leaf_revoked:
            assert _refused(_leaf(), trust=trust) is ReasonCode.EK_CERTIFICATE_REVOKED
        else:
            assert _verified(_leaf(), trust=trust).chain == "verified"
    intermediate_revoked = replace(TRUST, crls=(maker().root.revoke(2),))
    assert _refused(_leaf(), trust=intermediate_revoked) is ReasonCode.EK_CERTIFICATE_REVOKED
    forged = replace(maker().intermediate, key=rsa_key(9)).revoke(7)
    assert _verified(_leaf(), trust=replace(TRUST, crls=(forged,))).chain == "verified"


@pytest.mark.parametrize(
    "extensions",
    [
        CA_EXTENSIONS,
        (plain(x509.BasicConstraints(ca=True, path_length=0), critical=True), *EK_EXTENSIONS[1:]),
        (EK_EXTENSIONS[0], plain(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])), tpm_name()),
        (*EK_EXTENSIONS, plain(usage(sign=True))),
        (*EK_EXTENSIONS, plain(usage(agree=True))),
        (*EK_EXTENSIONS, plain(x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b"\5\0"), critical=True)),
    ],
    ids=["a CA", "a CA with an EK's purpose", "a server's", "a signing key's", "an ECC usage", "unknown critical"],
)
def test_a_certificate_that_is_not_for_an_ek_is_refused(
    extensions: tuple[x509.Extension[x509.ExtensionType], ...],
) -> None:
    assert _refused(_leaf(extensions)) is ReasonCode.EK_CERTIFICATE_UNSUITABLE


@pytest.mark.parametrize(
    "extensions",
    [
        (*EK_EXTENSIONS, plain(usage(encipher=True), critical=True)),
        _without(x509.ExtendedKeyUsage.oid),
        _without(x509.BasicConstraints.oid),
        (*EK_EXTENSIONS, plain(x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b"\5\0"))),
        (EK_EXTENSIONS[0], EK_EXTENSIONS[2]),
    ],
)
def test_what_real_makers_leave_out_or_add_is_suitable(
    extensions: tuple[x509.Extension[x509.ExtensionType], ...],
) -> None:
    assert _verified(_leaf(extensions)).manufacturer == "INTC"


def test_a_certificate_without_a_tpm_name_endorses_an_unnamed_tpm() -> None:
    leaf = _leaf(_without(x509.SubjectAlternativeName.oid))
    assert _verified(leaf) == EkEndorsement("verified", None, None, None)


@pytest.mark.parametrize(
    ("manufacturer", "shown"),
    [
        ("id:494E5443", "INTC"),
        ("id:49465800", "IFX"),
        ("id:00001014", "00001014"),
        ("id:0a0b0c0d", "0A0B0C0D"),
        ("x", "x"),
    ],
)
def test_the_manufacturer_is_four_characters_where_its_number_spells_them(manufacturer: str, shown: str) -> None:
    extensions = (*EK_EXTENSIONS[:2], tpm_name(manufacturer))
    assert _verified(_leaf(extensions)).manufacturer == shown


def test_an_intermediate_that_may_not_certify_is_no_issuer() -> None:
    not_ca = plain(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    unknown = plain(x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b"\5\0"), critical=True)
    for extensions in ((not_ca,), (CA_EXTENSIONS[0], plain(usage(sign=True))), (), (*CA_EXTENSIONS, unknown)):
        bad = make_maker("bad", intermediate_extensions=extensions)
        trust = Endorsements((bad.root_der,), (bad.intermediate_der,))
        assert _refused(_leaf(issuer=bad.intermediate), trust=trust) is ReasonCode.EK_CHAIN_UNTRUSTED


def test_an_issuer_above_its_path_length_is_no_issuer() -> None:
    short = plain(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    bad = make_maker("short", root_extensions=(short,))
    trust = Endorsements((bad.root_der,), (bad.intermediate_der,))
    assert _refused(_leaf(issuer=bad.intermediate), trust=trust) is ReasonCode.EK_CHAIN_UNTRUSTED
    fine = make_maker("fine", intermediate_extensions=(short,))
    trust = Endorsements((fine.root_der,), (fine.intermediate_der,))
    assert _verified(_leaf(issuer=fine.intermediate), trust=trust).chain == "verified"


def test_signatures_by_pss_and_by_longer_hashes_are_verified() -> None:
    pss = padding.PSS(padding.MGF1(hashes.SHA256()), 32)
    assert _verified(_leaf(rsa_padding=pss)).chain == "verified"
    assert _verified(_leaf(algorithm=hashes.SHA384())).chain == "verified"


def test_every_flipped_bit_of_the_signed_part_is_refused() -> None:
    leaf = _leaf()
    for position in range(4, len(leaf)):
        for flip in (1, 128):
            changed = leaf[:position] + bytes((leaf[position] ^ flip,)) + leaf[position + 1 :]
            with pytest.raises(Refusal):
                _verified(changed)


def test_a_certificate_whose_name_is_out_of_order_is_verified_as_it_was_written() -> None:
    attribute = [tlv(0x30, bytes.fromhex("0603550403"), tlv(0x0C, text)) for text in (b"zz", b"a")]
    unordered = tlv(0x30, tlv(0x31, *attribute))
    spki = EK.private.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    leaf = handmade(maker().intermediate, spki, subject=unordered)
    with pytest.raises(ValueError, match="InvalidSetOrdering"):
        str(x509.load_der_x509_certificate(leaf).subject)
    assert _verified(leaf).chain == "verified"


def test_a_certificate_padded_by_the_tpms_memory_is_verified() -> None:
    leaf = _leaf()
    dump = b"\x10\x01\x00" + len(leaf).to_bytes(2, "big") + leaf + b"\xff" * 40
    assert _verified(dump).chain == "verified"


def test_a_key_called_oaep_is_the_same_rsa_key() -> None:
    plain_spki = EK.private.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    rsa_oid, oaep_oid = bytes.fromhex("06092a864886f70d010101"), bytes.fromhex("06092a864886f70d010107")
    leaf = handmade(maker().intermediate, plain_spki.replace(rsa_oid, oaep_oid))
    assert _verified(leaf).chain == "verified"


def test_certificates_of_one_name_cost_a_bounded_number_of_checks() -> None:
    loops = []
    authority = Authority(name("loop"), ec.generate_private_key(ec.SECP256R1()))
    for serial in range(1, MAX_CERTIFICATES):
        loops.append(authority.issue(authority.subject, authority.key.public_key(), CA_EXTENSIONS, serial=serial))
    assert _refused(_leaf(issuer=authority), *loops) is ReasonCode.EK_CHAIN_UNTRUSTED


def test_endorsement_files_are_sorted_by_folder_and_split() -> None:
    pem = x509.load_der_x509_certificate(maker().root_der).public_bytes(Encoding.PEM)
    other = x509.load_der_x509_certificate(maker().intermediate_der).public_bytes(Encoding.PEM)
    crl = maker().root.revoke(9)
    found = endorsements_from_files(
        {"roots/a.pem": b"# comment\n" + pem + other, "intermediates/b.der": maker().intermediate_der, "crls/c": crl}
    )
    assert found == Endorsements((maker().root_der, maker().intermediate_der), (maker().intermediate_der,), (crl,))


@pytest.mark.parametrize(
    "files",
    [
        {"other/a.der": b"x"},
        {"roots/a.der": b"x"},
        {"roots/a.pem": b"-----BEGIN CERTIFICATE-----\n!!\n-----END CERTIFICATE-----"},
        {"roots/a.pem": b"-----BEGIN RSA KEY-----\nAA==\n-----END RSA KEY-----"},
        {"crls/a.crl": b"\x30\x00"},
    ],
)
def test_a_file_that_holds_no_endorsement_is_malformed(files: dict[str, bytes]) -> None:
    with pytest.raises(MalformedEvidence) as refusal:
        endorsements_from_files(files)
    assert refusal.value.code is ReasonCode.CERTIFICATE_MALFORMED
