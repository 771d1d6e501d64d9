"""The verifier's own CA and server certificate, made at first start when none is given. Attesters pin the CA."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from edges.private_files import create_private, read_private
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence, Unavailable

CA_DAYS = 3650
SERVER_DAYS = 397
"""The longest that common TLS clients accept of a server certificate."""
RENEW_BEFORE_DAYS = 30


def ensure_tls(directory: Path, names: tuple[str, ...], now: int) -> tuple[Path, Path]:
    """Paths of a server certificate (PEM) for `names`, valid for 30 days and more, and of its key (mode 0600).

    `ca.pem` beside them is what clients pin. Made when absent; the server's pair is made anew when it nears its end or
    lacks a name. Raises Rejection `file-mode-unsafe`, Unavailable `file-unreadable`.
    """
    certificate_path, key_path = directory / "server.pem", directory / "server.key"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        moment = datetime.fromtimestamp(now, UTC)
        if not (directory / "ca.key").exists():
            _make_ca(directory, moment)
        if certificate_path.exists() and key_path.exists() and _serves(certificate_path, names, moment):
            read_private(key_path)
            return certificate_path, key_path
        certificate_path.unlink(missing_ok=True)
        key_path.unlink(missing_ok=True)
        _make_server(directory, names, moment)
    except OSError as error:
        raise Unavailable(ReasonCode.FILE_UNREADABLE, str(directory), error.strerror) from error
    return certificate_path, key_path


def _serves(path: Path, names: tuple[str, ...], moment: datetime) -> bool:
    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    listed = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    fresh = certificate.not_valid_after_utc - moment > timedelta(days=RENEW_BEFORE_DAYS)
    return fresh and set(_alternative_names(names)) <= set(listed)


def _alternative_names(names: tuple[str, ...]) -> list[x509.GeneralName]:
    result: list[x509.GeneralName] = []
    for name in names:
        try:
            result.append(x509.IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            result.append(x509.DNSName(name))
    return result


def _make_ca(directory: Path, moment: datetime) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Nodewarden verifier CA")])
    usage = _usage(digital_signature=False, key_cert_sign=True)
    certificate = (
        _builder(name, name, key.public_key(), moment, CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    create_private(directory / "ca.key", _pem(key))
    (directory / "ca.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def _make_server(directory: Path, names: tuple[str, ...], moment: datetime) -> None:
    ca_key = serialization.load_pem_private_key(read_private(directory / "ca.key"), password=None)
    if not isinstance(ca_key, ec.EllipticCurvePrivateKey):
        raise MalformedEvidence(ReasonCode.SETTING_INVALID, str(directory / "ca.key"), "another kind of key", "P-256")
    ca = x509.load_pem_x509_certificate((directory / "ca.pem").read_bytes())
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Nodewarden verifier")])
    certificate = (
        _builder(subject, ca.subject, key.public_key(), moment, SERVER_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True, key_cert_sign=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(_alternative_names(names)), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    create_private(directory / "server.key", _pem(key))
    (directory / "server.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, moment: datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        # A little into the past: the clocks of nodes differ.
        .not_valid_before(moment - timedelta(minutes=10))
        .not_valid_after(moment + timedelta(days=days))
    )


def _usage(*, digital_signature: bool, key_cert_sign: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=key_cert_sign,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
