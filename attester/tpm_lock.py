"""One process of ours at the TPM at a time."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edges.private_files import require_private_directory, unreadable
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Unavailable

LOCK_SECONDS = 60.0
POLL_SECONDS = 0.005
_QUEUES: dict[Path, threading.Lock] = {}


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
        with _turn(path, deadline):
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError as error:
                    if time.monotonic() > deadline:
                        raise _held(path) from error
                    time.sleep(POLL_SECONDS)
            yield
    finally:
        os.close(descriptor)


@contextmanager
def _turn(path: Path, deadline: float) -> Iterator[None]:
    """No other thread of this process asks for the lock at `path`, and other processes had a chance before.

    Attack: pods whose mounts are refused one after the other. Each needs the TPM first, and sixty of them against the
    one daemon would keep it from attesting until its node is verified no more.
    """
    queue = _QUEUES.setdefault(path, threading.Lock())
    if not queue.acquire(blocking=False):
        if not queue.acquire(timeout=max(deadline - time.monotonic(), 0.0)):
            raise _held(path)
        time.sleep(2 * POLL_SECONDS)
    try:
        yield
    finally:
        queue.release()


def _held(path: Path) -> Unavailable:
    return Unavailable(ReasonCode.TPM_UNAVAILABLE, str(path), "another attester holds it")
