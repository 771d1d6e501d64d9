"""Files that only their owner may read: created so, and refused when they are not."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence, Rejection, Unavailable


def require_private(path: Path) -> None:
    """`path` is a regular file of this user (or root) that no one else can read or write.

    Raises Rejection `file-mode-unsafe`, Unavailable `file-unreadable`.
    """
    try:
        facts = path.stat()
    except OSError as error:
        raise Unavailable(ReasonCode.FILE_UNREADABLE, str(path), type(error).__name__) from error
    if not stat.S_ISREG(facts.st_mode) or stat.S_IMODE(facts.st_mode) & 0o077 or facts.st_uid not in (0, os.getuid()):
        raise Rejection(ReasonCode.FILE_MODE_UNSAFE, str(path), oct(stat.S_IMODE(facts.st_mode)), "0600, own file")


def read_private(path: Path, max_bytes: int) -> bytes:
    """The content of the private file `path`. Raises as `require_private`, and `setting-invalid` when it is larger."""
    require_private(path)
    return read_bounded(path, max_bytes)


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """The content of `path`, at most `max_bytes`. Raises Unavailable `file-unreadable`, `setting-invalid`."""
    try:
        with path.open("rb") as file:
            content = file.read(max_bytes + 1)
    except OSError as error:
        raise Unavailable(ReasonCode.FILE_UNREADABLE, str(path), type(error).__name__) from error
    if len(content) > max_bytes:
        raise MalformedEvidence(ReasonCode.SETTING_INVALID, str(path), "larger", f"at most {max_bytes} bytes")
    return content


def create_private(path: Path, content: bytes) -> None:
    """`path` is a new file with mode 0600 and `content`, on disk. Raises FileExistsError, OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace_private(path: Path, content: bytes) -> None:
    """`path` has `content` and mode 0600; after a crash it has either the old or the new content. Raises OSError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    temporary.unlink(missing_ok=True)
    create_private(temporary, content)
    temporary.replace(path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
