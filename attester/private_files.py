"""Files that only the attester may read: written whole or not at all, never readable by others even for a moment."""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Rejection, Unavailable

_OTHERS = stat.S_IRWXG | stat.S_IRWXO
LOCK_SECONDS = 60.0


def require_private_directory(path: Path) -> None:
    """`path` is a directory (made with mode 0700 when absent) that is ours and that no one else may enter.

    Raises Rejection `file-mode-unsafe`, Unavailable `file-unreadable`.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.lstat()
    except OSError as error:
        raise Unavailable(ReasonCode.FILE_UNREADABLE, str(path), error.strerror) from error
    if not stat.S_ISDIR(status.st_mode) or status.st_mode & _OTHERS or status.st_uid != os.geteuid():
        raise Rejection(
            ReasonCode.FILE_MODE_UNSAFE, str(path), f"mode {status.st_mode & 0o7777:04o}", "a directory of ours, 0700"
        )


def write_private(path: Path, content: bytes) -> None:
    """`path` holds `content` with mode 0600, durably; a reader sees the old or the new file, never a part.

    Raises Unavailable `file-unreadable`.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        temporary.unlink(missing_ok=True)
        # O_EXCL: a file or link that someone put there is not followed.
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_directory(path.parent)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise Unavailable(ReasonCode.FILE_UNREADABLE, str(path), error.strerror) from error


def replace_private(source: Path, target: Path) -> None:
    """`source` is now `target`, durably. Raises Unavailable `file-unreadable`."""
    try:
        source.replace(target)
        _sync_directory(target.parent)
    except OSError as error:
        raise Unavailable(ReasonCode.FILE_UNREADABLE, str(target), error.strerror) from error


def read_private(path: Path, max_bytes: int) -> bytes | None:
    """The content of `path`, or None when there is no such file.

    Raises Rejection `file-mode-unsafe` when others may read or write it or it is not ours, Unavailable
    `file-unreadable` when it cannot be read or exceeds `max_bytes`.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_mode & _OTHERS or status.st_uid != os.geteuid():
                mode = f"mode {status.st_mode & 0o7777:04o}"
                raise Rejection(ReasonCode.FILE_MODE_UNSAFE, str(path), mode, "a file of ours, 0600")
            content = file.read(max_bytes + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Unavailable(ReasonCode.FILE_UNREADABLE, str(path), error.strerror) from error
    if len(content) > max_bytes:
        raise Unavailable(ReasonCode.FILE_UNREADABLE, str(path), f"more than {max_bytes} bytes")
    return content


def require_unforgeable(path: Path) -> None:
    """No one but the owner may write `path` (settings, CA file): it decides whom the attester trusts.

    Raises Rejection `file-mode-unsafe`, Unavailable `file-unreadable`.
    """
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise Unavailable(ReasonCode.FILE_UNREADABLE, str(path), error.strerror) from error
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise Rejection(
            ReasonCode.FILE_MODE_UNSAFE, str(path), f"mode {mode & 0o7777:04o}", "writable by its owner only"
        )


@contextmanager
def exclusive(directory: Path, wait_seconds: float | None = None) -> Iterator[None]:
    """No other attester process on this machine uses the TPM inside the block.

    Without a resource manager two processes would fill the TPM's three slots, and two could make two binding keys for
    one boot. Raises Unavailable `tpm-unavailable` after `wait_seconds`, or `LOCK_SECONDS`.
    """
    require_private_directory(directory)
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + (LOCK_SECONDS if wait_seconds is None else wait_seconds)
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    claim = f"{directory}/lock"
                    raise Unavailable(ReasonCode.TPM_UNAVAILABLE, claim, "another attester holds it") from error
                time.sleep(0.05)
        yield
    finally:
        os.close(descriptor)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
