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
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error
    if not stat.S_ISREG(facts.st_mode) or stat.S_IMODE(facts.st_mode) & 0o077 or facts.st_uid not in (0, os.getuid()):
        raise Rejection(ReasonCode.FILE_MODE_UNSAFE, str(path), oct(stat.S_IMODE(facts.st_mode)), "0600, own file")


def read_private(path: Path, max_bytes: int) -> bytes:
    """The content of the private file `path`. Raises as `require_private`, and `setting-invalid` when it is larger."""
    require_private(path)
    return read_bounded(path, max_bytes)


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """The content of the regular file `path`, at most `max_bytes`.

    Raises Unavailable `file-unreadable`, MalformedEvidence `setting-invalid` when it is larger.
    """
    try:
        # Attack: a pipe under a name that is read; opening it for reading would wait for a writer for ever.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise Unavailable(ReasonCode.FILE_UNREADABLE, str(path), "no regular file")
            content = file.read(max_bytes + 1)
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error
    if len(content) > max_bytes:
        raise MalformedEvidence(ReasonCode.SETTING_INVALID, str(path), "larger", f"at most {max_bytes} bytes")
    return content


def is_there(path: Path) -> bool:
    """Whether there is anything under the name `path`; a name that cannot be one is not there."""
    try:
        path.lstat()
    except (OSError, ValueError):
        return False
    return True


def unreadable(path: Path, error: Exception) -> Unavailable:
    """`error`, from working with `path`, in our terms: also of a name that no file can have (ValueError)."""
    return Unavailable(ReasonCode.FILE_UNREADABLE, str(path), getattr(error, "strerror", None) or type(error).__name__)


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
    try:
        create_private(temporary, content)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Names in the directory `path` are on disk as they are now. Raises OSError."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
