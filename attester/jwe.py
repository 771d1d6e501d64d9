"""Opening a JWE with a key that never leaves the TPM: ECDH-ES+A256KW and A256GCM, nothing else (RFC 7516, 7518).

Written for one form, the flattened JSON serialization, because a general library wants the private key.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.keywrap import InvalidUnwrap, aes_key_unwrap

from verifier.wire.codes import ReasonCode
from verifier.wire.encoding import decode_base64url, decode_json_object
from verifier.wire.failures import MalformedEvidence, Rejection

MAX_SECRET_BYTES = 1024 * 1024
_ALGORITHM = "ECDH-ES+A256KW"
_ENCRYPTION = "A256GCM"
_KEY_BITS = 256
_MEMBERS = frozenset({"protected", "encrypted_key", "iv", "ciphertext", "tag"})
_HEADER_NAMES = frozenset({"alg", "enc", "epk", "apu", "apv", "kid", "typ", "cty"})
_MAX_HEADER_BYTES = 4096

Agreement = Callable[[bytes, bytes], bytearray]
"""From the ephemeral point (x, y) to the shared x-coordinate, 32 bytes."""


@dataclass(frozen=True, slots=True)
class _Message:
    x: bytes
    y: bytes
    apu: bytes
    apv: bytes
    wrapped_key: bytes
    iv: bytes
    ciphertext: bytes
    tag: bytes
    associated: bytes


def open_jwe(jwe: Mapping[str, Any], agree: Agreement) -> bytes:
    """The plaintext of `jwe`, whose key agreement `agree` makes in the TPM.

    Raises MalformedEvidence `jwe-malformed` (another form or algorithm, `crit`, `zip`), Rejection
    `secret-does-not-open` (it is for another key, or was changed), and what `agree` raises. Key material that we hold
    is overwritten after use as far as Python allows: `bytes` inside libraries are not.
    """
    message = _parse(jwe)
    shared = agree(message.x, message.y)
    try:
        key_encryption_key = bytearray(_concat_kdf(shared, message.apu, message.apv))
    finally:
        _overwrite(shared)
    try:
        content_key = bytearray(aes_key_unwrap(bytes(key_encryption_key), message.wrapped_key))
        try:
            cipher = AESGCM(bytes(content_key))
            return cipher.decrypt(message.iv, message.ciphertext + message.tag, message.associated)
        finally:
            _overwrite(content_key)
    except (InvalidUnwrap, InvalidTag, ValueError) as error:
        raise Rejection(ReasonCode.SECRET_DOES_NOT_OPEN, "jwe", type(error).__name__) from error
    finally:
        _overwrite(key_encryption_key)


def _concat_kdf(shared: bytearray, apu: bytes, apv: bytes) -> bytes:
    # RFC 7518, section 4.6.2: one round of SHA-256. With key wrapping, AlgorithmID is the "alg" value.
    fields = b"".join(struct.pack(">I", len(part)) + part for part in (_ALGORITHM.encode(), apu, apv))
    return hashlib.sha256(struct.pack(">I", 1) + shared + fields + struct.pack(">I", _KEY_BITS)).digest()


def _parse(jwe: Mapping[str, Any]) -> _Message:
    if not _MEMBERS <= jwe.keys() <= _MEMBERS | {"header"}:
        raise _malformed("members", ", ".join(sorted(str(name) for name in jwe)))
    if not all(type(jwe[name]) is str for name in _MEMBERS):
        raise _malformed("members", "not text")
    unprotected = jwe.get("header", {})
    if not isinstance(unprotected, Mapping):
        raise _malformed("header", type(unprotected).__name__)
    try:
        protected = decode_json_object(decode_base64url(jwe["protected"], "jwe", _MAX_HEADER_BYTES), "jwe")
        bodies = {name: decode_base64url(jwe[name], f"jwe.{name}", MAX_SECRET_BYTES) for name in _MEMBERS}
    except MalformedEvidence as error:
        raise _malformed(error.failure.claim, error.failure.observed) from error
    # Attack: a name in both headers, of which two readers take different ones; or one that we would have to honour.
    if protected.keys() & unprotected.keys() or not protected.keys() | unprotected.keys() <= _HEADER_NAMES:
        raise _malformed("header", "a name twice, or one that is not supported")
    if (protected.get("alg"), protected.get("enc")) != (_ALGORITHM, _ENCRYPTION):
        raise _malformed("protected", "alg, enc", f"{_ALGORITHM}, {_ENCRYPTION}")
    if len(bodies["encrypted_key"]) != 40 or len(bodies["iv"]) != 12 or len(bodies["tag"]) != 16:
        raise _malformed("sizes", None, "40, 12 and 16 bytes")
    header = {**unprotected, **protected}
    epk = header.get("epk")
    if type(epk) is not dict or (epk.get("kty"), epk.get("crv")) != ("EC", "P-256"):
        raise _malformed("epk", None, "a P-256 key")
    x, y = (_exact(epk.get(name), name, 32) for name in ("x", "y"))
    apu, apv = (_party(header.get(name), name) for name in ("apu", "apv"))
    return _Message(
        x, y, apu, apv, bodies["encrypted_key"], bodies["iv"], bodies["ciphertext"], bodies["tag"],
        jwe["protected"].encode("ascii"),
    )  # fmt: skip


def _exact(text: object, where: str, size: int) -> bytes:
    value = _party(text, where)
    if len(value) != size:
        raise _malformed(where, f"{len(value)} bytes", f"{size} bytes")
    return value


def _party(text: object, where: str) -> bytes:
    if text is None:
        return b""
    if type(text) is not str:
        raise _malformed(where, type(text).__name__, "base64url text")
    try:
        return decode_base64url(text, where, 512)
    except MalformedEvidence as error:
        raise _malformed(where, error.failure.observed, "base64url text") from error


def _malformed(where: str, observed: str | None = None, expected: str | None = None) -> MalformedEvidence:
    claim = where if where.startswith("jwe") else f"jwe.{where}"
    return MalformedEvidence(ReasonCode.JWE_MALFORMED, claim, observed, expected)


def _overwrite(secret: bytearray) -> None:
    secret[:] = bytes(len(secret))
