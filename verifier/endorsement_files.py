"""Manufacturers' certificates and revocation lists from a directory: roots/, intermediates/, crls/, PEM or DER."""

from __future__ import annotations

import base64
import re
from pathlib import Path

from verifier.appraisal.endorsements import Endorsements
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence, Unavailable

MAX_FILE_BYTES = 16 * 1024 * 1024
_PEM = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----(.+?)-----END \1-----", re.DOTALL)


def load_endorsements(directory: Path) -> Endorsements:
    """What is in `directory`; a subdirectory that is missing is empty, and then no chain to it is trusted.

    Raises Unavailable `file-unreadable`, MalformedEvidence `certificate-malformed` for PEM that does not decode. Does
    not parse what it reads: chain building does.
    """
    return Endorsements(
        roots=_ders(directory / "roots"),
        intermediates=_ders(directory / "intermediates"),
        crls=_ders(directory / "crls"),
    )


def _ders(directory: Path) -> tuple[bytes, ...]:
    try:
        if not directory.is_dir():
            return ()
        files = sorted(path for path in directory.iterdir() if path.is_file() and not path.name.startswith("."))
        return tuple(der for path in files for der in _decoded(path))
    except OSError as error:
        raise Unavailable(ReasonCode.FILE_UNREADABLE, str(directory), error.strerror) from error


def _decoded(path: Path) -> list[bytes]:
    with path.open("rb") as file:
        content = file.read(MAX_FILE_BYTES)
    if b"-----BEGIN " not in content:
        return [content]
    try:
        return [base64.b64decode(b"".join(body.split()), validate=True) for _, body in _PEM.findall(content)]
    except ValueError as error:
        raise MalformedEvidence(ReasonCode.CERTIFICATE_MALFORMED, str(path), "PEM that does not decode") from error
