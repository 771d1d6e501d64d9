"""The kernel's binary IMA log.

`collect` keeps it beside the recorded evidence; the verifier does not judge it yet, so nothing else sends it.
"""

from __future__ import annotations

from pathlib import Path

from attester.collectors.securityfs import read_to_end

MAX_IMA_LOG_BYTES = 64 * 1024 * 1024
"""A busy node logs tens of thousands of entries of some hundred bytes in one boot."""


def collect_ima_log(path: Path) -> bytes:
    """The whole log as it is now. Raises Unavailable `log-unreadable`, `log-too-large`."""
    return read_to_end(path, MAX_IMA_LOG_BYTES)
