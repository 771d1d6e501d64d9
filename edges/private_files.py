"""Files on which trust rests: secrets, which nobody else may read, and rules, which nobody else may write.

A file is judged by its open descriptor where we read it ourselves: the name cannot be given to another in between.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence, Rejection, Unavailable

MAX_PRIVATE_BYTES = 1024 * 1024
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_WRITTEN_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
# Attack: a pipe under a name that is read; opening it for reading would wait for a writer for ever.
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


# --- reading ---


def require_private(path: Path) -> None:
    """`path` is a regular file of this user (or root) that no one else can read or write. For files that a library
    reads.

    Raises Rejection `file-mode-unsafe`, Unavailable `file-unreadable`.
    """
    try:
        facts = path.stat()
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error
    _require_private(path, facts, _us_or_root())


def read_private(path: Path, max_bytes: int = MAX_PRIVATE_BYTES) -> bytes:
    """The content of `path`, which only its owner, this user or root, may read (CVE-2022-23952). Links are followed:
    an orchestrator mounts its secrets behind them.

    Raises Rejection `file-mode-unsafe`, Unavailable `file-unreadable`, MalformedEvidence `setting-invalid` when it is
    larger.
    """
    try:
        with os.fdopen(os.open(path, _READ), "rb") as file:
            _require_private(path, os.fstat(file.fileno()), _us_or_root())
            content = file.read(max_bytes + 1)
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error
    return _within(path, content, max_bytes)


def read_own(path: Path, max_bytes: int) -> bytes | None:
    """The content of `path`, a file that we wrote ourselves, or None when there is no such file. No link is followed.

    Raises Rejection `file-mode-unsafe` when others may read or write it or it is not ours, Unavailable
    `file-unreadable` when it cannot be read or exceeds `max_bytes`.
    """
    try:
        with os.fdopen(os.open(path, _READ | os.O_NOFOLLOW), "rb") as file:
            _require_private(path, os.fstat(file.fileno()), (os.geteuid(),))
            content = file.read(max_bytes + 1)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error
    if len(content) > max_bytes:
        raise Unavailable(ReasonCode.FILE_UNREADABLE, str(path), f"more than {max_bytes} bytes")
    return content


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """The content of the regular file `path`, at most `max_bytes`. Does not check who may read or write it.

    Raises Unavailable `file-unreadable`, MalformedEvidence `setting-invalid` when it is larger.
    """
    try:
        with os.fdopen(os.open(path, _READ), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise Unavailable(ReasonCode.FILE_UNREADABLE, str(path), "no regular file")
            content = file.read(max_bytes + 1)
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error
    return _within(path, content, max_bytes)


def _require_private(path: Path, facts: os.stat_result, owners: tuple[int, ...]) -> None:
    if not stat.S_ISREG(facts.st_mode) or facts.st_mode & _OTHERS or facts.st_uid not in owners:
        raise Rejection(ReasonCode.FILE_MODE_UNSAFE, str(path), _mode(facts), "a file of ours, 0600")


def _us_or_root() -> tuple[int, ...]:
    return (0, os.geteuid())


def _within(path: Path, content: bytes, max_bytes: int) -> bytes:
    if len(content) > max_bytes:
        raise MalformedEvidence(ReasonCode.SETTING_INVALID, str(path), "larger", f"at most {max_bytes} bytes")
    return content


def _mode(facts: os.stat_result) -> str:
    return f"mode {stat.S_IMODE(facts.st_mode):04o}"


# --- what others may write ---


def require_unwritable(path: Path) -> None:
    """Nobody but its owner may write the file or directory at `path`: what it says decides who is trusted.

    Of a directory on a file system that is mounted read-only the mode means nothing: Kubernetes mounts ConfigMaps with
    0777. Raises Rejection `file-mode-unsafe`, Unavailable `file-unreadable`. Does not check the directories above.
    """
    try:
        facts = path.stat()
        open_to_others = facts.st_mode & _WRITTEN_BY_OTHERS
        if open_to_others and stat.S_ISDIR(facts.st_mode) and os.statvfs(path).f_flag & os.ST_RDONLY:
            return
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error
    if open_to_others:
        raise Rejection(ReasonCode.FILE_MODE_UNSAFE, str(path), _mode(facts), "writable by its owner only")


def require_private_directory(path: Path) -> None:
    """`path` is a directory (made with mode 0700 when absent) that is ours and that no one else may enter.

    Raises Rejection `file-mode-unsafe`, Unavailable `file-unreadable`.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = path.lstat()
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error
    if not stat.S_ISDIR(facts.st_mode) or facts.st_mode & _OTHERS or facts.st_uid != os.geteuid():
        raise Rejection(ReasonCode.FILE_MODE_UNSAFE, str(path), _mode(facts), "a directory of ours, 0700")


# --- writing ---


def create_private(path: Path, content: bytes) -> None:
    """A new file at `path` holds `content`, durable, mode 0600 from its first moment.

    Raises Unavailable `file-unreadable` when it cannot be made, or is there already: a key is never overwritten.
    """
    try:
        _write_new(path, content)
        _sync_directory(path.parent)
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error


def replace_private(path: Path, content: bytes) -> None:
    """`path` holds `content` with mode 0600, durably; a reader or a crash meets the old or the new file, no part.

    Raises Unavailable `file-unreadable`.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        temporary.unlink(missing_ok=True)
        _write_new(temporary, content)
        temporary.replace(path)
        _sync_directory(path.parent)
    except (OSError, ValueError) as error:
        with suppress(OSError, ValueError):
            temporary.unlink(missing_ok=True)
        raise unreadable(path, error) from error


def rename_private(source: Path, target: Path) -> None:
    """`source` is now `target`, durably. Raises Unavailable `file-unreadable`."""
    try:
        source.replace(target)
        _sync_directory(target.parent)
    except (OSError, ValueError) as error:
        raise unreadable(target, error) from error


def _write_new(path: Path, content: bytes) -> None:
    # O_EXCL: a file or link that someone put there is not followed.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- names ---


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
