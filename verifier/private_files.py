"""Files on which trust rests: keys, which nobody else may read, and rules, which nobody else may write."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence, Unavailable

MAX_PRIVATE_BYTES = 1024 * 1024


def write_private(path: Path, content: bytes) -> None:
    """A new file at `path` holds `content`, durable, mode 0600 from its first moment.

    Raises Unavailable `file-unreadable` when it cannot be made, or is there already: a key is never overwritten.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise Unavailable(ReasonCode.FILE_UNREADABLE, str(path), error.strerror) from error


def read_private(path: Path) -> bytes:
    """The content of the file at `path`, which only its owner may read (CVE-2022-23952).

    Raises MalformedEvidence `file-mode-unsafe` (group or others have any right), Unavailable `file-unreadable`.
    """
    try:
        with path.open("rb") as file:
            # The open file is checked, not the name: it cannot be exchanged in between.
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o077:
                raise MalformedEvidence(ReasonCode.FILE_MODE_UNSAFE, str(path), f"{mode:04o}", "0600")
            return file.read(MAX_PRIVATE_BYTES)
    except OSError as error:
        raise Unavailable(ReasonCode.FILE_UNREADABLE, str(path), error.strerror) from error


def require_unwritable(path: Path) -> None:
    """Nobody but its owner may write the file or directory at `path`: what it says decides who is trusted.

    On a file system that is mounted read-only the mode means nothing (Kubernetes mounts ConfigMaps with 0777). Raises
    MalformedEvidence `file-mode-unsafe`; OSError as `os.stat`. Does not check the directories above.
    """
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o022 and not os.statvfs(path).f_flag & os.ST_RDONLY:
        raise MalformedEvidence(ReasonCode.FILE_MODE_UNSAFE, str(path), f"{mode:04o}", "writable by its owner only")
