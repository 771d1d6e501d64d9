"""The firmware's event log."""

from __future__ import annotations

import hashlib
from pathlib import Path

from attester.collectors.securityfs import read_to_end
from verifier.wire.bundle import MAX_BOOT_LOG_BYTES, BootLog, KnownBody


def collect_boot_log(path: Path, known_sha256: str | None) -> BootLog:
    """The boot log, or its digest and size when the verifier said that it knows exactly this one.

    Raises Unavailable `log-unreadable`, `log-too-large`. It is sent as read: whether it is well-formed the verifier
    says.
    """
    log = read_to_end(path, MAX_BOOT_LOG_BYTES)
    digest = hashlib.sha256(log).digest()
    if known_sha256 is not None and digest.hex() == known_sha256:
        return BootLog(0, KnownBody(digest, len(log)))
    return BootLog(0, log)
