"""The verifier's signing keys, and the compact JWS that it signs with them.

ES256 (RFC 7518, section 3.4) by hand: a header that is computed once, a payload that is encoded once, one signature.
Keys are PEM files in one directory; the newest signs, all are published, so that a rotation overlaps. A key's id is
its RFC 7638 thumbprint.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from pydantic_core import to_json

from edges.private_files import create_private, read_private
from verifier.wire.codes import ReasonCode
from verifier.wire.encoding import canonical_json, encode_base64url
from verifier.wire.failures import MalformedEvidence, Unavailable

AUDIT_TYPE = "nodewarden-audit-head+jwt"
"""`typ` of a signed audit head: never taken for a result, nor a result for it (RFC 8725, section 3.11)."""

_ECDSA = ec.ECDSA(hashes.SHA256())
_P256_BYTES = 32


@dataclass(frozen=True, slots=True)
class SigningKey:
    """One ES256 key: its private half, its public JWK and its id."""

    private: ec.EllipticCurvePrivateKey
    jwk: Mapping[str, str]
    kid: str


class Signer:
    """Signs with the newest key and publishes all of them."""

    def __init__(self, keys: tuple[SigningKey, ...]) -> None:
        if not keys:
            raise MalformedEvidence(ReasonCode.SETTING_INVALID, "keys", "none", "at least one signing key")
        self._key = keys[-1]
        self._headers: dict[str, str] = {}
        self.jwks: dict[str, Any] = {"keys": [dict(key.jwk) for key in keys]}

    def sign(self, claims: Mapping[str, Any], typ: str) -> str:
        """The compact JWS over the JSON of `claims`, with header `alg`, `kid` and `typ`."""
        # pydantic's encoder: the standard library's takes five times as long.
        return self.sign_payload(to_json(claims), typ)

    def sign_payload(self, payload: bytes, typ: str) -> str:
        """As `sign`, over claims that are encoded already."""
        header = self._headers.get(typ)
        if header is None:
            fields = {"alg": "ES256", "kid": self._key.kid, "typ": typ}
            header = self._headers[typ] = encode_base64url(canonical_json(fields))
        message = f"{header}.{encode_base64url(payload)}"
        r, s = decode_dss_signature(self._key.private.sign(message.encode("ascii"), _ECDSA))
        signature = r.to_bytes(_P256_BYTES, "big") + s.to_bytes(_P256_BYTES, "big")
        return f"{message}.{encode_base64url(signature)}"


def public_jwk(key: ec.EllipticCurvePublicKey) -> tuple[dict[str, str], str]:
    """The public JWK of a P-256 key with `kid`, `alg` and `use`, and its RFC 7638 thumbprint."""
    numbers = key.public_numbers()
    required = {
        "crv": "P-256",
        "kty": "EC",
        "x": encode_base64url(numbers.x.to_bytes(_P256_BYTES, "big")),
        "y": encode_base64url(numbers.y.to_bytes(_P256_BYTES, "big")),
    }
    kid = encode_base64url(hashlib.sha256(canonical_json(required)).digest())
    return {**required, "alg": "ES256", "kid": kid, "use": "sig"}, kid


def signing_key(private: ec.EllipticCurvePrivateKey) -> SigningKey:
    """`private` with its JWK and id."""
    jwk, kid = public_jwk(private.public_key())
    return SigningKey(private, jwk, kid)


def create_key(path: Path) -> SigningKey:
    """A new P-256 key, kept at `path` with mode 0600. Raises Unavailable `file-unreadable` when it exists."""
    private = ec.generate_private_key(ec.SECP256R1())
    pem = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    create_private(path, pem)
    return signing_key(private)


def load_signer(directory: Path) -> Signer:
    """A signer over every `*.pem` in `directory`; the last by name signs. One is made when there is none.

    Raises Rejection `file-mode-unsafe`, MalformedEvidence `setting-invalid` (no P-256 key), Unavailable
    `file-unreadable`.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        paths = sorted(directory.glob("*.pem"))
    except OSError as error:
        raise Unavailable(ReasonCode.FILE_UNREADABLE, str(directory), error.strerror) from error
    if not paths:
        return Signer((create_key(directory / "0001.pem"),))
    return Signer(tuple(_load_key(path) for path in paths))


def _load_key(path: Path) -> SigningKey:
    try:
        private = serialization.load_pem_private_key(read_private(path), password=None)
    except (ValueError, TypeError) as error:
        raise MalformedEvidence(ReasonCode.SETTING_INVALID, str(path), "no PEM key", "a P-256 private key") from error
    if not isinstance(private, ec.EllipticCurvePrivateKey) or not isinstance(private.curve, ec.SECP256R1):
        raise MalformedEvidence(ReasonCode.SETTING_INVALID, str(path), "another kind of key", "a P-256 private key")
    return signing_key(private)
