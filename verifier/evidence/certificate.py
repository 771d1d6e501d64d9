"""X.509 certificates and CRLs of TPM makers, read tolerantly and kept as they are.

Source: RFC 5280; TCG EK Credential Profile 2.5, section 3. One in thirty real EK chains does not pass a strict parser
(Nuvoton writes names out of order), and rewriting it breaks its signature. Parsing trusts nothing: `appraisal.x509`
verifies.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Mapping
from dataclasses import dataclass

from verifier.evidence.der import (
    BIT_STRING,
    BOOLEAN,
    GENERALIZED_TIME,
    INTEGER,
    OCTET_STRING,
    OID,
    SEQUENCE,
    SET,
    UTC_TIME,
    DerReader,
    oid_text,
)
from verifier.evidence.tpm import EccPublic, RsaPublic
from verifier.evidence.tpm_algorithms import CURVE_BYTES, Curve
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence

MAX_CERTIFICATE_BYTES = 16 * 1024
MAX_CRL_BYTES = 1024 * 1024
OID_BASIC_CONSTRAINTS = "2.5.29.19"
OID_KEY_USAGE = "2.5.29.15"
OID_EXTENDED_KEY_USAGE = "2.5.29.37"
OID_SUBJECT_ALTERNATIVE_NAME = "2.5.29.17"
_RSA_OIDS = frozenset({"1.2.840.113549.1.1.1", "1.2.840.113549.1.1.7"})
"""rsaEncryption, and RSAES-OAEP, which old Infineon and ST certificates give for the same kind of key."""
_EC_OID = "1.2.840.10045.2.1"
_CURVES: Mapping[str, Curve] = {"1.2.840.10045.3.1.7": "P-256", "1.3.132.0.34": "P-384", "1.3.132.0.35": "P-521"}
_NV_PREFIX = b"\x10\x01\x00"
_NV_FULL_CERTIFICATE = b"\x10\x02"
"""TCG header of some NV dumps (stored certificate): tag, type, u16 size, and often the tag of a full certificate."""
_CONTEXT_0, _CONTEXT_1, _CONTEXT_2, _CONTEXT_3 = 0xA0, 0x81, 0x82, 0xA3
_DIRECTORY_NAME = 0xA4
_TIME = re.compile(rb"(\d{2}|\d{4})(\d{2})(\d{2})(\d{2})(\d{2})(\d{2})Z")
_NAME_LABELS: Mapping[str, str] = {
    "2.5.4.3": "CN",
    "2.5.4.5": "serialNumber",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "2.23.133.2.1": "tpmManufacturer",
    "2.23.133.2.2": "tpmModel",
    "2.23.133.2.3": "tpmVersion",
}
_TEXT_ENCODINGS: Mapping[int, str] = {0x1E: "utf-16-be", 0x1C: "utf-32-be", 0x14: "latin-1"}
"""BMPString, UniversalString, TeletexString; every other string type is read as UTF-8."""


@dataclass(frozen=True, slots=True)
class Extension:
    """One extension; `value` is the content of its OCTET STRING."""

    critical: bool
    value: bytes


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate as its maker wrote it, without padding. `der` is the whole, `tbs` what the signature covers.

    Times are seconds since 1970. Names are DER for comparison and text for people. `key` is None for a public key of a
    kind that no supported TPM or CA has.
    """

    der: bytes
    tbs: bytes
    signature_algorithm: bytes
    signature: bytes
    serial: int
    issuer: bytes
    subject: bytes
    not_before: int
    not_after: int
    spki: bytes
    key: RsaPublic | EccPublic | None
    extensions: Mapping[str, Extension]

    @property
    def is_ca(self) -> bool:
        """Whether basicConstraints says CA, or a version-1 certificate is self-issued, as old roots are."""
        constraints = self.extensions.get(OID_BASIC_CONSTRAINTS)
        if constraints is None:
            return not self.extensions and self.issuer == self.subject
        return basic_constraints(constraints.value)[0]


def certificate_bytes(blob: bytes) -> bytes:
    """The certificate in an NV dump: prefix and uniform padding removed. Not parsed beyond its length."""
    if blob[:3] == _NV_PREFIX:
        blob = blob[5:].removeprefix(_NV_FULL_CERTIFICATE)
    element = DerReader(blob, "certificate").next(SEQUENCE)
    padding = blob[len(element.raw) :]
    if padding.strip(padding[:1]):
        raise MalformedEvidence(ReasonCode.CERTIFICATE_MALFORMED, "certificate", "bytes behind it", "padding or none")
    return element.raw


def parse_certificate(blob: bytes) -> Certificate:
    """The certificate in `blob`, which may carry an NV prefix and padding.

    Raises MalformedEvidence `certificate-malformed`. Verifies no signature, time or suitability.
    """
    if len(blob) > MAX_CERTIFICATE_BYTES:
        seen = f"{len(blob)} bytes"
        raise MalformedEvidence(
            ReasonCode.CERTIFICATE_MALFORMED, "certificate", seen, f"at most {MAX_CERTIFICATE_BYTES}"
        )
    der = certificate_bytes(blob)
    outer = DerReader(der, "certificate").inside()
    tbs = outer.next(SEQUENCE)
    algorithm = outer.next(SEQUENCE).content
    signature = _bits(outer)
    outer.finish()
    fields = DerReader(tbs.content, "certificate")
    if fields.peek() == _CONTEXT_0:
        fields.next()
    serial = int.from_bytes(fields.next(INTEGER).content, "big")
    if fields.next(SEQUENCE).content != algorithm:
        # Attack: an algorithm inside the signed part that differs from the one that is used.
        raise fields.fault("two signature algorithms", "one")
    issuer = fields.next(SEQUENCE).raw
    validity = fields.inside()
    not_before, not_after = _time(validity), _time(validity)
    validity.finish()
    subject = fields.next(SEQUENCE).raw
    spki = fields.next(SEQUENCE).raw
    extensions: Mapping[str, Extension] = {}
    while not fields.at_end:
        element = fields.next(_CONTEXT_1, _CONTEXT_2, _CONTEXT_3)
        if element.tag == _CONTEXT_3:
            extensions = _extensions(DerReader(element.content, "certificate").inside())
    return Certificate(
        der,
        tbs.raw,
        algorithm,
        signature,
        serial,
        issuer,
        subject,
        not_before,
        not_after,
        spki,
        _public_key(spki),
        extensions,
    )


def _bits(reader: DerReader) -> bytes:
    content = reader.next(BIT_STRING).content
    if not content or content[0]:
        raise reader.fault("a bit string with unused bits", "whole bytes")
    return content[1:]


def _time(reader: DerReader) -> int:
    element = reader.next(UTC_TIME, GENERALIZED_TIME)
    match = _TIME.fullmatch(element.content)
    if match is None or (len(match[1]) == 2) != (element.tag == UTC_TIME):
        raise reader.fault(f"time {element.content[:20]!r}", "YYMMDDHHMMSSZ or YYYYMMDDHHMMSSZ")
    year, month, day, hour, minute, second = (int(part) for part in match.groups())
    if element.tag == UTC_TIME:
        year += 1900 if year >= 50 else 2000
    if not (year >= 1 and 1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60 and second < 61):
        raise reader.fault("a time that is none", None)
    # The year may be 9999, "no expiry" of RFC 5280; calendar arithmetic is exact there too.
    return calendar.timegm((year, month, day, hour, minute, second))


def _extensions(reader: DerReader) -> dict[str, Extension]:
    extensions: dict[str, Extension] = {}
    for element in reader.all(SEQUENCE):
        fields = DerReader(element.content, "certificate.extension")
        name = oid_text(fields.next(OID).content)
        critical = False
        if fields.peek() == BOOLEAN:
            critical = fields.next().content != b"\0"
        value = fields.next(OCTET_STRING).content
        fields.finish()
        # Attack: a second copy of an extension, for a reader that takes the other one.
        if name in extensions:
            raise fields.fault(f"extension {name} twice", "once")
        extensions[name] = Extension(critical, value)
    return extensions


def _public_key(spki: bytes) -> RsaPublic | EccPublic | None:
    outer = DerReader(spki, "certificate.key").inside()
    algorithm = outer.inside()
    kind = oid_text(algorithm.next(OID).content)
    bits = _bits(outer)
    outer.finish()
    if kind in _RSA_OIDS:
        numbers = DerReader(bits, "certificate.key").inside()
        modulus, exponent = (int.from_bytes(numbers.next(INTEGER).content, "big") for _ in range(2))
        numbers.finish()
        return RsaPublic(modulus, modulus.bit_length(), exponent)
    if kind == _EC_OID and algorithm.peek() == OID:
        curve = _CURVES.get(oid_text(algorithm.next(OID).content))
        if curve is not None and len(bits) == 1 + 2 * CURVE_BYTES[curve] and bits[0] == 4:
            size = CURVE_BYTES[curve]
            return EccPublic(curve, int.from_bytes(bits[1 : 1 + size], "big"), int.from_bytes(bits[1 + size :], "big"))
    return None


def basic_constraints(value: bytes) -> tuple[bool, int | None]:
    """CA flag and path length of a basicConstraints extension. Raises `certificate-malformed`."""
    reader = DerReader(value, "certificate.basicConstraints").inside()
    is_ca = False
    path_length: int | None = None
    if reader.peek() == BOOLEAN:
        is_ca = reader.next().content != b"\0"
    if reader.peek() == INTEGER:
        path_length = int.from_bytes(reader.next().content, "big")
    reader.finish()
    return is_ca, path_length


def key_usage(value: bytes) -> int:
    """The bits of a keyUsage extension, bit 0 (digitalSignature) highest of 16. Raises `certificate-malformed`."""
    content = DerReader(value, "certificate.keyUsage").next(BIT_STRING).content
    return int.from_bytes(content[1:3].ljust(2, b"\0"), "big")


def extended_key_usage(value: bytes) -> frozenset[str]:
    """The purposes of an extendedKeyUsage extension. Raises `certificate-malformed`."""
    reader = DerReader(value, "certificate.extendedKeyUsage").inside()
    return frozenset(oid_text(element.content) for element in reader.all(OID))


def name_text(name: bytes) -> str:
    """A distinguished name for people, first RDN first: `C=US, O=Maker, CN=...`."""
    return ", ".join(f"{_NAME_LABELS.get(oid, oid)}={text}" for oid, text in name_attributes(name))


def name_attributes(name: bytes) -> tuple[tuple[str, str], ...]:
    """(OID, text) of every attribute of a DER Name. Raises `certificate-malformed`."""
    attributes: list[tuple[str, str]] = []
    for rdn in DerReader(name, "certificate.name").inside().all(SET):
        for attribute in DerReader(rdn.content, "certificate.name").all(SEQUENCE):
            fields = DerReader(attribute.content, "certificate.name")
            oid = oid_text(fields.next(OID).content)
            element = fields.next()
            encoding = _TEXT_ENCODINGS.get(element.tag, "utf-8")
            attributes.append((oid, element.content.decode(encoding, "backslashreplace")))
    return tuple(attributes)


def directory_names(value: bytes) -> tuple[tuple[str, str], ...]:
    """Attributes of the directoryNames in a subjectAltName extension. Raises `certificate-malformed`."""
    attributes: list[tuple[str, str]] = []
    for element in DerReader(value, "certificate.subjectAltName").inside().all():
        if element.tag == _DIRECTORY_NAME:
            attributes += name_attributes(element.content)
    return tuple(attributes)


@dataclass(frozen=True, slots=True)
class RevocationList:
    """A CRL: who issued it, and which serials it revokes."""

    tbs: bytes
    signature_algorithm: bytes
    signature: bytes
    issuer: bytes
    revoked: frozenset[int]


def parse_revocation_list(der: bytes) -> RevocationList:
    """The CRL in `der` (RFC 5280, section 5.1). Raises MalformedEvidence `certificate-malformed`."""
    if len(der) > MAX_CRL_BYTES:
        raise MalformedEvidence(
            ReasonCode.CERTIFICATE_MALFORMED, "crl", f"{len(der)} bytes", f"at most {MAX_CRL_BYTES}"
        )
    top = DerReader(der, "crl")
    outer = top.inside()
    top.finish()
    tbs = outer.next(SEQUENCE)
    algorithm = outer.next(SEQUENCE).content
    signature = _bits(outer)
    outer.finish()
    fields = DerReader(tbs.content, "crl")
    if fields.peek() == INTEGER:
        fields.next()
    fields.next(SEQUENCE)
    issuer = fields.next(SEQUENCE).raw
    _time(fields)
    if fields.peek() in (UTC_TIME, GENERALIZED_TIME):
        _time(fields)
    revoked: set[int] = set()
    if fields.peek() == SEQUENCE:
        entries = fields.inside()
        while not entries.at_end:
            revoked.add(int.from_bytes(entries.inside().next(INTEGER).content, "big"))
    return RevocationList(tbs.raw, algorithm, signature, issuer, frozenset(revoked))
