"""The cluster's certificate authority, and kubeconfigs for the identities that it names."""

from __future__ import annotations

import base64
import datetime as dt
import ipaddress
import json
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFE = dt.timedelta(days=36500)
_START = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True)
class Certificate:
    """PEM files of a certificate and its private key, which is 0600."""

    certificate: Path
    key: Path


class Authority:
    """A certificate authority in `folder`: `ca.crt` for everyone, `NAME.crt` and `NAME.key` for what it issues."""

    def __init__(self, folder: Path, name: str = "cluster-ca") -> None:
        self._folder, self._key, self._name = folder, ec.generate_private_key(ec.SECP256R1()), _subject(name, ())
        basic = x509.BasicConstraints(ca=True, path_length=None)
        usage = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=True,
            crl_sign=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        built = self._builder(self._name, self._key.public_key()).add_extension(basic, critical=True)
        self._certificate = built.add_extension(usage, critical=True).sign(self._key, hashes.SHA256())
        self.ca = folder / "ca.crt"
        self.ca.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def _builder(self, subject: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder(self._name, subject, public, x509.random_serial_number(), _START, _START + _LIFE)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )

    def server(self, file: str, *names: str) -> Certificate:
        """A server certificate for loopback and `names`, of which some may be addresses."""
        alternatives: list[x509.GeneralName] = []
        for name in ("localhost", *names, "127.0.0.1"):
            try:
                alternatives.append(x509.IPAddress(ipaddress.ip_address(name)))
            except ValueError:
                alternatives.append(x509.DNSName(name))
        return self._issue(
            file, _subject(file, ()), ExtendedKeyUsageOID.SERVER_AUTH, x509.SubjectAlternativeName(alternatives)
        )

    def client(self, file: str, user: str, *groups: str) -> Certificate:
        """A client certificate: Kubernetes takes `user` and `groups` from its subject."""
        return self._issue(file, _subject(user, groups), ExtendedKeyUsageOID.CLIENT_AUTH, None)

    def _issue(
        self,
        file: str,
        subject: x509.Name,
        usage: x509.ObjectIdentifier,
        names: x509.SubjectAlternativeName | None,
    ) -> Certificate:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(subject, key.public_key()).add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        if names is not None:
            builder = builder.add_extension(names, critical=False)
        made = Certificate(self._folder / f"{file}.crt", self._folder / f"{file}.key")
        signed = builder.sign(self._key, hashes.SHA256())
        made.certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        made.key.touch(mode=0o600)
        made.key.write_bytes(private_pem(key))
        return made


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """`key` as unencrypted PKCS #8."""
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, form, plain)


def _subject(name: str, groups: tuple[str, ...]) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, name)])


def write_kubeconfig(path: Path, server: str, ca: Path, user: dict[str, str]) -> Path:
    """A kubeconfig (0600) for `server` in which `user` is the only user."""
    cluster = {"server": server, "certificate-authority-data": base64.b64encode(ca.read_bytes()).decode()}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "nodewarden",
        "clusters": [{"name": "nodewarden", "cluster": cluster}],
        "users": [{"name": "nodewarden", "user": user}],
        "contexts": [{"name": "nodewarden", "context": {"cluster": "nodewarden", "user": "nodewarden"}}],
    }
    path.touch(mode=0o600)
    path.write_text(json.dumps(config))
    return path


def certificate_user(certificate: Certificate) -> dict[str, str]:
    """The kubeconfig's user of a client certificate."""
    return {
        "client-certificate-data": base64.b64encode(certificate.certificate.read_bytes()).decode(),
        "client-key-data": base64.b64encode(certificate.key.read_bytes()).decode(),
    }
