"""Serving an application on loopback over real TLS, with a CA of its own, for one test."""

from __future__ import annotations

import datetime as dt
import ipaddress
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from starlette.types import ASGIApp

from admission.server import TlsServer, server_of
from admission.serving_certificate import HotCertificate
from admission.settings import Listen, Tls


@dataclass(frozen=True)
class Certificate:
    """A self-signed server certificate for 127.0.0.1; `certificate` is its own CA file."""

    certificate: Path
    key: Path


def make_certificate(folder: Path) -> Certificate:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "admission test")])
    start = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + dt.timedelta(days=36500))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.KeyUsage(
                digital_signature=True,
                key_cert_sign=True,
                crl_sign=False,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                encipher_only=False,
                decipher_only=False,
            ),
            critical=True,
        )
        .sign(key, hashes.SHA256())
    )
    folder.mkdir(parents=True, exist_ok=True)
    made = Certificate(folder / "tls.pem", folder / "tls.key")
    made.certificate.write_bytes(built.public_bytes(serialization.Encoding.PEM))
    made.key.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    made.key.chmod(0o600)
    return made


@contextmanager
def served(app: ASGIApp, certificate: Certificate) -> Iterator[str]:
    """The https address of `app` while the block runs."""
    tls = Tls(certificate=certificate.certificate, key=certificate.key)
    with serving(server_of(app, Listen(port=0), HotCertificate(tls))) as address:
        yield address


@contextmanager
def serving(server: TlsServer) -> Iterator[str]:
    """The https address of `server`, which runs while the block does."""
    with running(server):
        yield f"https://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"


@contextmanager
def running(server: uvicorn.Server) -> Iterator[None]:
    """`server` serves inside the block, and has ended after it."""
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            thread.join(0.01)
            assert thread.is_alive()
        yield
    finally:
        server.should_exit = True
        thread.join(15)
        assert not thread.is_alive()


def trusting(certificate: Certificate) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificate.certificate))
