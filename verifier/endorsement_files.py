"""TPM manufacturers' certificates and revocation lists, read from a directory: roots/, intermediates/, crls/."""

from __future__ import annotations

from pathlib import Path

from edges.private_files import require_unwritable
from verifier.appraisal.endorsements import Endorsements, endorsements_from_files
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence, Unavailable

MAX_FILES = 10_000
MAX_FILE_BYTES = 16 * 1024 * 1024
_FOLDERS = ("roots", "intermediates", "crls")


def load_endorsements(directory: Path) -> Endorsements:
    """What is in the three folders of `directory`, PEM or DER; a missing folder is empty, and trusts nothing.

    Raises Unavailable `file-unreadable`, Rejection `file-mode-unsafe`, MalformedEvidence `certificate-malformed` naming
    the file.
    """
    files: dict[str, bytes] = {}
    try:
        for folder in _FOLDERS:
            if (directory / folder).is_dir():
                require_unwritable(directory / folder)
                for path in sorted((directory / folder).iterdir()):
                    if path.is_file() and not path.name.startswith("."):
                        files[f"{folder}/{path.name}"] = _read(path)
    except OSError as error:
        raise Unavailable(ReasonCode.FILE_UNREADABLE, str(directory), error.strerror) from error
    if len(files) > MAX_FILES:
        raise MalformedEvidence(
            ReasonCode.CERTIFICATE_MALFORMED, str(directory), f"{len(files)} files", f"at most {MAX_FILES}"
        )
    return endorsements_from_files(files)


def _read(path: Path) -> bytes:
    require_unwritable(path)
    with path.open("rb") as file:
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise MalformedEvidence(
            ReasonCode.CERTIFICATE_MALFORMED, str(path), "too large", f"at most {MAX_FILE_BYTES} bytes"
        )
    return content
