"""Reading files whose size says nothing: those of securityfs and procfs report 0 and grow while they are read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Unavailable

_CHUNK_BYTES = 64 * 1024


def read_to_end(path: Path, max_bytes: int) -> bytes:
    """The content of `path` up to the first read that returns nothing; never empty.

    Raises Unavailable `log-unreadable` (absent, no permission, not a regular file, empty: none is an empty success),
    `log-too-large` (more than `max_bytes`, or it grows faster than we read).
    """
    try:
        # O_NONBLOCK: a pipe put in the file's place must not make us wait.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise Unavailable(ReasonCode.LOG_UNREADABLE, str(path), error.strerror) from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise Unavailable(ReasonCode.LOG_UNREADABLE, str(path), "not a regular file")
        content = _read(descriptor, path, max_bytes)
    except OSError as error:
        raise Unavailable(ReasonCode.LOG_UNREADABLE, str(path), error.strerror) from error
    finally:
        os.close(descriptor)
    if not content:
        raise Unavailable(ReasonCode.LOG_UNREADABLE, str(path), "empty")
    return content


def _read(descriptor: int, path: Path, max_bytes: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    while chunk := os.read(descriptor, _CHUNK_BYTES):
        size += len(chunk)
        if size > max_bytes:
            raise Unavailable(ReasonCode.LOG_TOO_LARGE, str(path), None, f"at most {max_bytes} bytes")
        chunks.append(chunk)
    return b"".join(chunks)
