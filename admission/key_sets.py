"""Public keys of an issuer by key id: a JWK Set read from a file, or fetched over TLS from a pinned CA.

A token's header chooses among these keys and does nothing else: it brings no key, no address and no algorithm.
"""

from __future__ import annotations

import hashlib
import json
import socket
import ssl
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import jwt
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from edges.private_files import read_bounded
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence, Unavailable

MAX_JWKS_BYTES = 256 * 1024
MAX_KEYS = 64
FETCH_TIMEOUT_SECONDS = 5.0
"""For each part of an exchange."""
EXCHANGE_SECONDS = 10.0
"""For the whole of one, from its TLS on."""


@dataclass(frozen=True, slots=True)
class KeySet:
    """Keys by `kid`, each good for the one algorithm that its own JWK fixes."""

    keys: Mapping[str, jwt.PyJWK]

    @property
    def thumbprints(self) -> tuple[tuple[str, str], ...]:
        """Each key's id and the SHA-256 of its SubjectPublicKeyInfo, sorted: another key under an old id shows."""
        return tuple((key_id, hashlib.sha256(_spki(key.key)).hexdigest()) for key_id, key in sorted(self.keys.items()))


def parse_key_set(text: str, algorithms: frozenset[str], where: str) -> KeySet:
    """The key set in the JWKS `text`; every key has a `kid` of its own and one of `algorithms`.

    Raises MalformedEvidence `setting-invalid`: no key, a key twice, a private key, another algorithm.
    """
    if len(text) > MAX_JWKS_BYTES:
        raise _invalid(where, f"{len(text)} bytes", f"at most {MAX_JWKS_BYTES}")
    try:
        entries = json.loads(text)["keys"]
        if not isinstance(entries, list) or not 0 < len(entries) <= MAX_KEYS:
            raise _invalid(where, "no list of keys", f"1 to {MAX_KEYS} keys")
        keys: dict[str, jwt.PyJWK] = {}
        for entry in entries:
            key_id, key = _key(entry, algorithms, where)
            if key_id in keys:
                raise _invalid(where, f"the key id {key_id} twice")
            keys[key_id] = key
    except (ValueError, KeyError, TypeError, RecursionError, jwt.PyJWTError) as error:
        raise _invalid(where, type(error).__name__, "a JWK Set") from error
    return KeySet(keys)


def _key(entry: Any, algorithms: frozenset[str], where: str) -> tuple[str, jwt.PyJWK]:
    if not isinstance(entry, dict):
        raise _invalid(where, type(entry).__name__, "a key")
    if entry.keys() & {"d", "k", "p", "q"}:
        # A private key in a public place is not a key of anyone any more.
        raise _invalid(where, "private or symmetric key material", "public keys")
    key_id = entry["kid"]
    if type(key_id) is not str or not key_id:
        raise _invalid(where, "a key without kid")
    key = jwt.PyJWK(entry)
    if key.algorithm_name not in algorithms:
        raise _invalid(where, str(key.algorithm_name), " or ".join(sorted(algorithms)))
    return key_id, key


def _spki(key: Any) -> bytes:
    encoded: bytes = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return encoded


def load_key_set(path: Path, algorithms: frozenset[str]) -> KeySet:
    """The key set in the file `path`. Raises `setting-invalid`, Unavailable `file-unreadable`."""
    try:
        return parse_key_set(read_bounded(path, MAX_JWKS_BYTES).decode("utf-8"), algorithms, str(path))
    except UnicodeDecodeError as error:
        raise _invalid(str(path), "not UTF-8") from error


def fetch_key_set(url: str, ca_file: Path, algorithms: frozenset[str]) -> KeySet:
    """The key set at the https `url`, whose server `ca_file` alone vouches for.

    Raises `setting-invalid`, Unavailable `verifier-unreachable`. Redirects are not followed.
    """
    connected: list[socket.socket] = []

    def watch(event: str, found: dict[str, Any]) -> None:
        if event == "connection.start_tls.complete":
            connected.append(found["return_value"].get_extra_info("socket"))
            timer.start()

    def cut() -> None:
        with suppress(OSError):
            socket.socket.shutdown(connected[0], socket.SHUT_RDWR)

    # Attack: an answer that comes a byte now and then, for ever. Whoever waits for keys does nothing else meanwhile.
    timer = threading.Timer(EXCHANGE_SECONDS, cut)
    timer.daemon = True
    if not url.startswith("https://"):
        raise _invalid("jwks_url", url, "an https address")
    try:
        trust = ssl.create_default_context(cafile=str(ca_file))
        with (
            httpx.Client(verify=trust, timeout=FETCH_TIMEOUT_SECONDS, trust_env=False) as client,
            # Compressed, a few bytes unpack to any number of them.
            client.stream("GET", url, headers={"accept-encoding": "identity"}, extensions={"trace": watch}) as answer,
        ):
            if answer.status_code != 200:
                raise Unavailable(ReasonCode.VERIFIER_UNREACHABLE, url, f"status {answer.status_code}")
            body = b""
            for part in answer.iter_raw():
                body += part
                if len(body) > MAX_JWKS_BYTES:
                    raise _invalid(url, "more bytes", f"at most {MAX_JWKS_BYTES}")
    except (httpx.InvalidURL, UnicodeError) as error:
        raise _invalid("jwks_url", url, "an https address") from error
    except (httpx.HTTPError, httpx.StreamError, OSError, ValueError) as error:
        raise Unavailable(ReasonCode.VERIFIER_UNREACHABLE, url, type(error).__name__) from error
    finally:
        timer.cancel()
    return parse_key_set(body.decode("utf-8", "replace"), algorithms, url)


def _invalid(where: str, observed: str, expected: str | None = None) -> MalformedEvidence:
    return MalformedEvidence(ReasonCode.SETTING_INVALID, where, observed, expected)
