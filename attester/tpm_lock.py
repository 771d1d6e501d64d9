"""One process of ours at the TPM at a time."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edges.private_files import require_private_directory, unreadable
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Unavailable

LOCK_SECONDS = 60.0


@contextmanager
def exclusive(directory: Path, wait_seconds: float | None = None) -> Iterator[None]:
    """No other attester process on this machine uses the TPM inside the block.

    Without a resource manager two processes would fill the TPM's three slots, and two could make two binding keys for
    one boot. Raises Unavailable `tpm-unavailable` after `wait_seconds`, or `LOCK_SECONDS`; `file-unreadable`.
    """
    require_private_directory(directory)
    path = directory / "lock"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise unreadable(path, error) from error
    try:
        deadline = time.monotonic() + (LOCK_SECONDS if wait_seconds is None else wait_seconds)
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise Unavailable(ReasonCode.TPM_UNAVAILABLE, str(path), "another attester holds it") from error
                time.sleep(0.05)
        yield
    finally:
        os.close(descriptor)
