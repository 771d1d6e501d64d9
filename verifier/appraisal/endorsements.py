"""What the operator trusts TPM makers' statements by: pinned roots, further CA certificates, revocation lists."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from verifier.evidence.certificate import (
    Certificate,
    RevocationList,
    certificate_bytes,
    parse_certificate,
    parse_revocation_list,
)
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence

_PEM = re.compile(rb"-----BEGIN ([A-Z0-9 ]{1,40})-----([^-]*)-----END \1-----")
_LABELS: Mapping[str, frozenset[bytes]] = {
    "certificate": frozenset({b"CERTIFICATE", b"TRUSTED CERTIFICATE", b"X509 CERTIFICATE"}),
    "crl": frozenset({b"X509 CRL"}),
}


@dataclass(frozen=True, slots=True)
class Endorsements:
    """DER as the makers wrote it. `roots` are trusted by being here, self-signed or not; nothing else is."""

    roots: tuple[bytes, ...]
    intermediates: tuple[bytes, ...] = ()
    crls: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class ParsedEndorsements:
    """The same, parsed. `roots` by DER bytes."""

    roots: Mapping[bytes, Certificate]
    intermediates: tuple[Certificate, ...]
    crls: tuple[RevocationList, ...]


@lru_cache(maxsize=8)
def parse_endorsements(endorsements: Endorsements) -> ParsedEndorsements:
    """The parsed form, kept for the next call. Raises MalformedEvidence `certificate-malformed`."""
    roots = (parse_certificate(der) for der in endorsements.roots)
    return ParsedEndorsements(
        {root.der: root for root in roots},
        tuple(parse_certificate(der) for der in endorsements.intermediates),
        tuple(parse_revocation_list(der) for der in endorsements.crls),
    )


def endorsements_from_files(files: Mapping[str, bytes]) -> Endorsements:
    """Endorsements from file contents by relative path: `roots/*`, `intermediates/*` and `crls/*`, each PEM or DER.

    A PEM file may hold several. Everything is parsed once, so that a wrong file shows at start. Raises
    MalformedEvidence `certificate-malformed` for a file that holds none, or stands in no such folder.
    """
    found: dict[str, list[bytes]] = {"roots": [], "intermediates": [], "crls": []}
    for path, content in sorted(files.items()):
        folder = path.replace("\\", "/").partition("/")[0]
        if folder not in found:
            raise MalformedEvidence(
                ReasonCode.CERTIFICATE_MALFORMED, path, "another folder", "roots, intermediates or crls"
            )
        found[folder] += ders_in(content, "crl" if folder == "crls" else "certificate", path)
    endorsements = Endorsements(*(tuple(dict.fromkeys(found[name])) for name in ("roots", "intermediates", "crls")))
    parse_endorsements(endorsements)
    return endorsements


def ders_in(content: bytes, kind: Literal["certificate", "crl"], where: str) -> list[bytes]:
    """The DER objects in a PEM or DER file, at least one. Raises MalformedEvidence `certificate-malformed`."""
    if b"-----BEGIN" not in content:
        return [certificate_bytes(content) if kind == "certificate" else content]
    ders: list[bytes] = []
    for match in _PEM.finditer(content):
        if match[1] in _LABELS[kind]:
            try:
                ders.append(base64.b64decode(b"".join(match[2].split()), validate=True))
            except binascii.Error as error:
                raise MalformedEvidence(ReasonCode.CERTIFICATE_MALFORMED, where, "not base64", "PEM") from error
    if not ders:
        raise MalformedEvidence(ReasonCode.CERTIFICATE_MALFORMED, where, f"no {kind} in the PEM", "at least one")
    return ders
