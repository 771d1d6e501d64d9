"""What certificates of a stranger's own making may cost, and that none of them meets a fault of ours."""

from __future__ import annotations

import time

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding

from tests.appraisal.certificates import EK_EXTENSIONS, NOW, maker, name, rsa_key, tlv
from tests.forge.keys import endorsement_key
from verifier.appraisal.ek_certificate import verify_ek_certificate
from verifier.appraisal.endorsements import Endorsements, ParsedEndorsements
from verifier.appraisal.x509 import MAX_SUPPLIED_CHECKS, build_path
from verifier.evidence.certificate import Certificate
from verifier.evidence.der import BIT_STRING, OID, SEQUENCE, DerReader, Element
from verifier.evidence.tpm import RsaPublic, parse_public
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Rejection

EK = endorsement_key("rsa-2048")
TRUST = Endorsements((maker().root_der,), (maker().intermediate_der,))


def _with_salt(leaf: bytes, salt: bytes) -> bytes:
    """The leaf with another salt length in its RSASSA-PSS parameters; only its algorithm, so it does not verify."""
    outer = DerReader(leaf, "leaf").inside()
    tbs, algorithm, signature = outer.next(SEQUENCE), outer.next(SEQUENCE), outer.next(BIT_STRING)
    parts = DerReader(algorithm.content, "algorithm")
    oid, parameters = parts.next(OID), parts.next(SEQUENCE)
    changed = tlv(0x30, parameters.content.replace(tlv(0xA2, tlv(2, b"\x20")), tlv(0xA2, tlv(2, salt))))
    inside = b"".join(
        tlv(0x30, oid.raw, changed) if part.raw == algorithm.raw else part.raw for part in _parts(tbs.content)
    )
    return tlv(0x30, tlv(0x30, inside), tlv(0x30, oid.raw, changed), signature.raw)


def _parts(content: bytes) -> list[Element]:
    reader, found = DerReader(content, "tbs"), []
    while not reader.at_end:
        found.append(reader.next())
    return found


@pytest.mark.parametrize("salt", [b"\x40" + bytes(8), b"\x7f\xff\xff\xff", b"\x41", b"\x81"])
def test_a_salt_longer_than_any_hash_is_refused_and_never_a_fault_of_ours(salt: bytes) -> None:
    pss = padding.PSS(padding.MGF1(hashes.SHA256()), 32)
    leaf = maker().intermediate.issue(name("ek"), EK.private.public_key(), EK_EXTENSIONS, rsa_padding=pss)
    ek = parse_public(EK.tpm2b)
    assert verify_ek_certificate(ek, (leaf,), TRUST, NOW).chain == "verified"
    with pytest.raises(Rejection) as refused:
        verify_ek_certificate(ek, (_with_salt(leaf, salt),), TRUST, NOW)
    assert refused.value.code is ReasonCode.EK_CHAIN_UNTRUSTED


def _certificate(which: int, key: RsaPublic, *, subject: bytes = b"x") -> Certificate:
    algorithm = bytes.fromhex("06092a864886f70d01010b0500")
    signature = b"\x01" * (key.bits // 8)
    return Certificate(bytes([which]), b"t", algorithm, signature, 1, b"x", subject, 0, 2**40, b"", key, {})


def test_an_issuer_whose_exponent_makes_every_check_dear_is_none() -> None:
    dear = RsaPublic(rsa_key().public_key().public_numbers().n, 2048, 2**2040 + 1)
    started = time.perf_counter()
    with pytest.raises(Rejection) as refused:
        build_path(
            _certificate(0, dear, subject=b"leaf"),
            [_certificate(which, dear) for which in range(1, 8)],
            ParsedEndorsements({}, (), ()),
            1,
        )
    assert refused.value.code is ReasonCode.EK_CHAIN_UNTRUSTED
    assert time.perf_counter() - started < 0.1


def test_keys_that_a_node_sent_are_tried_a_few_times_only(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Certificate] = []

    def signed(_signed: object, issuer: Certificate) -> bool:
        tried.append(issuer)
        return True

    monkeypatch.setattr("verifier.appraisal.x509._signed_by", signed)
    monkeypatch.setattr("verifier.appraisal.x509._may_issue", lambda *_: True)
    key = RsaPublic(rsa_key().public_key().public_numbers().n, 2048, 65537)
    with pytest.raises(Rejection):
        build_path(
            _certificate(0, key, subject=b"leaf"),
            [_certificate(which, key) for which in range(1, 8)],
            ParsedEndorsements({}, (), ()),
            1,
        )
    assert len(tried) == MAX_SUPPLIED_CHECKS
