"""The embedded secret store: one sealed file beside a key file, both 0600.

File: a line of canonical JSON `{"format", "secrets": {NAME: {"version", "nonce", "ciphertext"}}}`, then a line with
the seal. Each secret is AES-256-GCM with (format, name, version) as associated data, so that no entry can be moved
to another name; the seal authenticates every byte before it. Whoever may replace both lines by older ones of the same
key can bring back an old state: restoring a backup looks the same.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from edges.private_files import (
    create_private,
    is_there,
    read_private,
    replace_private,
    require_private,
    unreadable,
)
from verifier.wire.codes import ReasonCode
from verifier.wire.encoding import canonical_json, decode_base64url, decode_json_object, encode_base64url
from verifier.wire.failures import MalformedEvidence, Refusal, Rejection, Unavailable

FORMAT = "nodewarden/sealed-secrets/1"
KEY_BYTES = 32
NONCE_BYTES = 12
"""Random per encryption (NIST SP 800-38D, 8.2.2): good for 2^32 of them under one key."""
MAX_STORE_BYTES = 4 * 1024 * 1024
MAX_SECRET_BYTES = 64 * 1024


class SecretBackend(Protocol):
    """Where secrets come from."""

    def read(self, name: str) -> bytes:
        """The secret's content. Raises Rejection `secret-unknown`, Unavailable."""
        ...

    def end_lease(self, name: str, lease_id: str) -> str:
        """What was released under the lease is worth nothing from now on, as far as the backend can see to that.

        Returns what became of it, in words for whoever must know what is left to do. Doing it again is harmless.
        Raises Refusal while it could not be done.
        """
        ...


@dataclass(frozen=True, slots=True)
class SecretVersion:
    """What may be told of a secret: never its content."""

    name: str
    version: int


class SealedStore:
    """The store at `path` under the key in `key_path`. Each call reads the files anew; writers exclude each other."""

    def __init__(self, path: Path, key_path: Path) -> None:
        self._path, self._key_path = path, key_path

    @classmethod
    def create(cls, path: Path, key_path: Path) -> SealedStore:
        """A new empty store with a new key, where neither file exists; on a fault neither exists after it.

        Raises Unavailable `file-unreadable`, MalformedEvidence `setting-invalid` when both are to be one file.
        """
        store = cls(path, key_path)
        if path.absolute() == key_path.absolute():
            raise MalformedEvidence(ReasonCode.SETTING_INVALID, str(path), "both store and key", "two files")
        create_private(key_path, os.urandom(KEY_BYTES))
        try:
            if is_there(path):
                raise unreadable(path, FileExistsError())
            replace_private(path, store._sealed({}, store._keys()))
        except Refusal:
            # A key without a store would pass for a store that lost its file, and block every later first use.
            with suppress(OSError):
                key_path.unlink()
            raise
        return store

    def exists(self) -> bool:
        """Whether store or key is there; `create` is for when neither is."""
        return is_there(self._path) or is_there(self._key_path)

    def read(self, name: str) -> bytes:
        """The content of the secret `name`.

        Raises Rejection `secret-unknown`, `secret-store-invalid` (altered, or another key), `file-mode-unsafe`;
        Unavailable `file-unreadable`.
        """
        keys = self._keys()
        entries = self._entries(keys)
        if name not in entries:
            raise Rejection(ReasonCode.SECRET_UNKNOWN, f"secrets.{name}")
        return _opened(keys, name, entries[name])

    def end_lease(self, name: str, lease_id: str) -> str:  # noqa: ARG002 - a static content knows no leases
        """Nothing is left to do here: the content is static, and no later release of it is under this lease."""
        return f"nothing is released under it again; what was read before is good until {name} is given a new content"

    def names(self) -> tuple[SecretVersion, ...]:
        """Names and versions, sorted. Raises as `read`."""
        entries = self._entries(self._keys())
        return tuple(SecretVersion(name, int(entry["version"])) for name, entry in sorted(entries.items()))

    def put(self, name: str, content: bytes) -> SecretVersion:
        """`name` holds `content`, as its next version, durably. Raises as `read`, `body-too-large` when too large."""
        require_secret_size(name, content)
        with self._writing():
            keys = self._keys()
            entries = dict(self._entries(keys))
            version = int(entries[name]["version"]) + 1 if name in entries else 1
            nonce = os.urandom(NONCE_BYTES)
            ciphertext = keys.entries.encrypt(nonce, content, _associated(name, version))
            entries[name] = {
                "version": version,
                "nonce": encode_base64url(nonce),
                "ciphertext": encode_base64url(ciphertext),
            }
            self._replace(entries, keys)
        return SecretVersion(name, version)

    def delete(self, name: str) -> None:
        """`name` is gone, durably. Raises as `read`."""
        with self._writing():
            keys = self._keys()
            entries = dict(self._entries(keys))
            if name not in entries:
                raise Rejection(ReasonCode.SECRET_UNKNOWN, f"secrets.{name}")
            del entries[name]
            self._replace(entries, keys)

    def _replace(self, entries: Mapping[str, Any], keys: _Keys) -> None:
        sealed = self._sealed(entries, keys)
        if len(sealed) > MAX_STORE_BYTES:
            raise MalformedEvidence(ReasonCode.BODY_TOO_LARGE, str(self._path), f"{len(sealed)} bytes")
        replace_private(self._path, sealed)

    def _sealed(self, entries: Mapping[str, Any], keys: _Keys) -> bytes:
        line = canonical_json({"format": FORMAT, "secrets": entries}) + b"\n"
        nonce = os.urandom(NONCE_BYTES)
        return line + encode_base64url(nonce + keys.seal.encrypt(nonce, b"", line)).encode() + b"\n"

    def _keys(self) -> _Keys:
        try:
            key = read_private(self._key_path, KEY_BYTES + 1)
        except Unavailable as error:
            raise Unavailable(ReasonCode.FILE_UNREADABLE, str(self._key_path), "the store's key") from error
        if len(key) != KEY_BYTES:
            raise Rejection(ReasonCode.SECRET_STORE_INVALID, str(self._key_path), f"{len(key)} bytes", f"{KEY_BYTES}")
        return _Keys(AESGCM(_derived(key, b"entries")), AESGCM(_derived(key, b"seal")))

    def _entries(self, keys: _Keys) -> Mapping[str, Any]:
        sealed = read_private(self._path, MAX_STORE_BYTES)
        line, end, seal = sealed.partition(b"\n")
        try:
            if not end or not seal.endswith(b"\n"):
                raise Rejection(ReasonCode.SECRET_STORE_INVALID, str(self._path), "cut short")
            tag = decode_base64url(seal[:-1].decode("ascii"), "seal", 64)
            keys.seal.decrypt(tag[:NONCE_BYTES], tag[NONCE_BYTES:], line + b"\n")
            fields = decode_json_object(line, "secrets", MAX_STORE_BYTES)
        except (InvalidTag, ValueError, MalformedEvidence) as error:
            raise Rejection(ReasonCode.SECRET_STORE_INVALID, str(self._path), "altered, or another key") from error
        if fields.get("format") != FORMAT:
            raise Rejection(ReasonCode.SECRET_STORE_INVALID, str(self._path), str(fields.get("format")), FORMAT)
        entries: Mapping[str, Any] = fields["secrets"]
        return entries

    @contextmanager
    def _writing(self) -> Iterator[None]:
        # The key file is the lock: it is never replaced, unlike the store.
        require_private(self._key_path)
        with self._key_path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


@dataclass(frozen=True, slots=True)
class _Keys:
    entries: AESGCM
    seal: AESGCM


def require_secret_size(name: str, content: bytes) -> None:
    """`content` may be stored under `name`. Raises MalformedEvidence `body-too-large`."""
    if not 0 < len(content) <= MAX_SECRET_BYTES:
        raise MalformedEvidence(
            ReasonCode.BODY_TOO_LARGE, f"secrets.{name}", f"{len(content)} bytes", f"1 to {MAX_SECRET_BYTES}"
        )


def _derived(key: bytes, purpose: bytes) -> bytes:
    return HKDF(hashes.SHA256(), 32, salt=None, info=FORMAT.encode() + b"\0" + purpose).derive(key)


def _associated(name: str, version: int) -> bytes:
    return canonical_json([FORMAT, name, version])


def _opened(keys: _Keys, name: str, entry: Mapping[str, Any]) -> bytes:
    try:
        nonce = decode_base64url(entry["nonce"], "nonce", NONCE_BYTES)
        ciphertext = decode_base64url(entry["ciphertext"], "ciphertext", MAX_SECRET_BYTES + 16)
        return keys.entries.decrypt(nonce, ciphertext, _associated(name, entry["version"]))
    except (InvalidTag, KeyError, TypeError, ValueError, Refusal) as error:
        raise Rejection(ReasonCode.SECRET_STORE_INVALID, f"secrets.{name}", "does not open") from error
