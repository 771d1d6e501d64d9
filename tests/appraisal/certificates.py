"""A small TPM maker: a root, an intermediate and EK certificates, with every field open to a test."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID, ObjectIdentifier

NOW = 1_795_000_000
DAY = 86_400
EK_PURPOSE = ObjectIdentifier("2.23.133.8.1")
Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


def name(text: str) -> x509.Name:
    return x509.Name(
        [x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Maker"), x509.NameAttribute(NameOID.COMMON_NAME, text)]
    )


def usage(*, encipher: bool = False, agree: bool = False, sign: bool = False, certify: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=sign,
        content_commitment=False,
        key_encipherment=encipher,
        data_encipherment=False,
        key_agreement=agree,
        key_cert_sign=certify,
        crl_sign=certify,
        encipher_only=False,
        decipher_only=False,
    )


def tpm_name(
    manufacturer: str = "id:494E5443", model: str = "ADL", version: str = "id:00020001"
) -> x509.Extension[x509.ExtensionType]:
    values = {"2.23.133.2.1": manufacturer, "2.23.133.2.2": model, "2.23.133.2.3": version}
    attributes = [x509.NameAttribute(ObjectIdentifier(oid), text) for oid, text in values.items()]
    names = x509.SubjectAlternativeName([x509.DirectoryName(x509.Name(attributes))])
    return x509.Extension(names.oid, critical=True, value=names)


def plain(value: x509.ExtensionType, *, critical: bool = False) -> x509.Extension[x509.ExtensionType]:
    return x509.Extension(value.oid, critical, value)


@dataclass(frozen=True)
class Authority:
    """A CA that signs with SHA-256."""

    subject: x509.Name
    key: Key

    def issue(
        self,
        subject: x509.Name,
        public: CertificateIssuerPublicKeyTypes,
        extensions: tuple[x509.Extension[x509.ExtensionType], ...],
        *,
        serial: int = 7,
        start: int = NOW - DAY,
        end: int = NOW + DAY,
        rsa_padding: padding.PSS | None = None,
        algorithm: hashes.SHA256 | hashes.SHA384 | None = None,
    ) -> bytes:
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.subject)
            .public_key(public)
            .serial_number(serial)
            .not_valid_before(datetime.fromtimestamp(start, UTC))
            .not_valid_after(datetime.fromtimestamp(end, UTC))
        )
        for extension in extensions:
            builder = builder.add_extension(extension.value, extension.critical)
        signed = builder.sign(self.key, algorithm or hashes.SHA256(), rsa_padding=rsa_padding)
        return signed.public_bytes(Encoding.DER)

    def revoke(self, *serials: int) -> bytes:
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.subject)
            .last_update(datetime.fromtimestamp(NOW - DAY, UTC))
            .next_update(datetime.fromtimestamp(NOW + DAY, UTC))
        )
        for serial in serials:
            revoked = x509.RevokedCertificateBuilder().serial_number(serial)
            builder = builder.add_revoked_certificate(
                revoked.revocation_date(datetime.fromtimestamp(NOW - DAY, UTC)).build()
            )
        return builder.sign(self.key, hashes.SHA256()).public_bytes(Encoding.DER)


CA_EXTENSIONS = (plain(x509.BasicConstraints(ca=True, path_length=None), critical=True), plain(usage(certify=True)))
EK_EXTENSIONS = (
    plain(x509.BasicConstraints(ca=False, path_length=None), critical=True),
    plain(x509.ExtendedKeyUsage([EK_PURPOSE])),
    tpm_name(),
)


@dataclass(frozen=True)
class Maker:
    """Root and intermediate; `root_der` and `intermediate_der` are their certificates."""

    root: Authority
    intermediate: Authority
    root_der: bytes = field(repr=False)
    intermediate_der: bytes = field(repr=False)


def tlv(tag: int, *parts: bytes) -> bytes:
    """One DER element, written by hand."""
    content = b"".join(parts)
    size = len(content)
    if size < 128:
        return bytes((tag, size)) + content
    octets = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(octets))) + octets + content


SHA256_RSA = tlv(0x30, bytes.fromhex("06092a864886f70d01010b"), b"\5\0")


def handmade(
    issuer: Authority,
    spki: bytes,
    *,
    subject: bytes = tlv(0x30),
    serial: bytes = b"\7",
    times: tuple[bytes, bytes] = (tlv(0x17, b"250101000000Z"), tlv(0x18, b"99991231235959Z")),
    inner_algorithm: bytes = SHA256_RSA,
    extensions: bytes = b"",
) -> bytes:
    """A certificate as no library would write it, signed by an RSA key with SHA-256."""
    assert isinstance(issuer.key, rsa.RSAPrivateKey)
    tbs = tlv(
        0x30,
        bytes.fromhex("a003020102"),
        tlv(0x02, serial),
        inner_algorithm,
        issuer.subject.public_bytes(),
        tlv(0x30, *times),
        subject,
        spki,
        extensions,
    )
    signature = issuer.key.sign(tbs, padding.PKCS1v15(), hashes.SHA256())
    return tlv(0x30, tbs, SHA256_RSA, tlv(0x03, b"\0", signature))


def make_maker(
    text: str = "EK",
    root_extensions: tuple[x509.Extension[x509.ExtensionType], ...] = CA_EXTENSIONS,
    intermediate_extensions: tuple[x509.Extension[x509.ExtensionType], ...] = CA_EXTENSIONS,
    *,
    root_end: int = NOW + DAY,
    intermediate_end: int = NOW + DAY,
) -> Maker:
    root = Authority(name(f"{text} root"), ec.generate_private_key(ec.SECP384R1()))
    intermediate = Authority(name(f"{text} intermediate"), rsa_key())
    return Maker(
        root,
        intermediate,
        root.issue(root.subject, root.key.public_key(), root_extensions, serial=1, end=root_end),
        root.issue(
            intermediate.subject,
            intermediate.key.public_key(),
            intermediate_extensions,
            serial=2,
            end=intermediate_end,
        ),
    )


@cache
def rsa_key(which: int = 0) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


@cache
def maker() -> Maker:
    return make_maker()
