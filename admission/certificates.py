"""The webhook's own certificates: two CAs that overlap, and the serving certificate that one of them signed.

Pure but for the making of keys. A new CA is published half a life before the old one ends, and signs nothing in its
first day: whoever checks our certificate knows its CA before it meets it.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence

DAY_SECONDS = 86_400
CA_SECONDS = 365 * DAY_SECONDS
PUBLISH_SECONDS = DAY_SECONDS
SERVING_SECONDS = 30 * DAY_SECONDS
RENEW_SECONDS = 10 * DAY_SECONDS
_WANTED = "ca.crt, ca.key, tls.crt and tls.key that belong together"
BACKDATE_SECONDS = 300
"""For API servers whose clock is a little behind ours."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate with its private key; the same certificate is the same pair, wherever its key was read from."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey = field(compare=False, repr=False)

    @property
    def not_before(self) -> int:
        return int(self.certificate.not_valid_before_utc.timestamp())

    @property
    def not_after(self) -> int:
        return int(self.certificate.not_valid_after_utc.timestamp())


@dataclass(frozen=True, slots=True)
class Bundle:
    """One or two CAs, the older first, and the serving certificate that one of them signed."""

    authorities: tuple[Pair, ...]
    serving: Pair

    @property
    def ca_bundle(self) -> bytes:
        """PEM of every CA: what a webhook configuration's `caBundle` must hold."""
        return b"".join(_pem(pair.certificate) for pair in self.authorities)

    def as_files(self) -> dict[str, bytes]:
        """The PEM files under which a Secret keeps the bundle, as `read_bundle` reads them."""
        return {
            "ca.crt": self.ca_bundle,
            "ca.key": b"".join(_key_pem(pair.key) for pair in self.authorities),
            "tls.crt": _pem(self.serving.certificate),
            "tls.key": _key_pem(self.serving.key),
        }


def read_bundle(files: dict[str, bytes]) -> Bundle:
    """The bundle in the PEM `files`. Raises MalformedEvidence `setting-invalid`; repeats nothing of a key."""
    try:
        certificates = x509.load_pem_x509_certificates(files["ca.crt"])
        end = b"-----END PRIVATE KEY-----\n"
        keys = [_key(part + end) for part in files["ca.key"].split(end) if part.strip()]
        authorities = tuple(Pair(cert, key) for cert, key in zip(certificates, keys, strict=True))
        serving = Pair(x509.load_pem_x509_certificate(files["tls.crt"]), _key(files["tls.key"]))
    except (KeyError, ValueError, TypeError) as error:
        raise MalformedEvidence(ReasonCode.SETTING_INVALID, "certificates", type(error).__name__, _WANTED) from error
    for pair in (*authorities, serving):
        if pair.certificate.public_key() != pair.key.public_key():
            raise MalformedEvidence(ReasonCode.SETTING_INVALID, "certificates", "a key of another", _WANTED)
    return Bundle(authorities, serving)


def renewed_bundle(bundle: Bundle | None, names: tuple[str, ...], now: int) -> Bundle:
    """The bundle for `names` that should be in force at `now`: `bundle` itself while nothing of it is due."""
    old = () if bundle is None else tuple(pair for pair in bundle.authorities if now < pair.not_after)
    newest = old[-1] if old else None
    if newest is None or now - newest.not_before > CA_SECONDS // 2:
        old = (*old, _authority(now))
    authorities = old[-2:]
    published = [pair for pair in authorities if now - pair.not_before >= PUBLISH_SECONDS]
    signer = published[-1] if published else authorities[0]
    serving = None if bundle is None else bundle.serving
    if serving is None or not _still_good(serving, signer, names, now):
        serving = _serving(signer, names, now)
    made = Bundle(authorities, serving)
    return bundle if bundle is not None and made == bundle else made


def _still_good(serving: Pair, signer: Pair, names: tuple[str, ...], now: int) -> bool:
    alternative = serving.certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    try:
        serving.certificate.verify_directly_issued_by(signer.certificate)
    except Exception:  # noqa: BLE001 - whichever way it does not verify: it is made again
        return False
    known = tuple(alternative.get_values_for_type(x509.DNSName))
    return known == names and serving.not_after - now > RENEW_SECONDS


def _authority(now: int) -> Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"nodewarden admission CA {now}")])
    builder = _builder(name, name, key, now, CA_SECONDS).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    return Pair(builder.add_extension(_usage(signs=True), critical=True).sign(key, hashes.SHA256()), key)


def _serving(signer: Pair, names: tuple[str, ...], now: int) -> Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "nodewarden-webhook")])
    issuer_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.key.public_key())
    builder = (
        _builder(name, signer.certificate.subject, key, now, SERVING_SECONDS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False)
        .add_extension(issuer_key, critical=False)
    )
    return Pair(builder.sign(signer.key, hashes.SHA256()), key)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: int, seconds: int
) -> x509.CertificateBuilder:
    start = dt.datetime.fromtimestamp(now - BACKDATE_SECONDS, dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(dt.datetime.fromtimestamp(now + seconds, dt.UTC))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(pem, None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise TypeError("a key of another kind")
    return key
