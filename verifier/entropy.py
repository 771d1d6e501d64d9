"""Random bytes from the system, fetched a page at a time.

A system call gives up the interpreter's lock, which under load costs far more than the bytes. What waits here is not
yet anyone's nonce, and each byte is given out once.
"""

from __future__ import annotations

import os

_PAGE_BYTES = 4096


class Entropy:
    """Unpredictable bytes, each given out once. Not for use by several threads."""

    def __init__(self) -> None:
        self._page = b""
        self._position = 0

    def take(self, size: int) -> bytes:
        """`size` bytes, at most a page."""
        if not 0 < size <= _PAGE_BYTES:
            raise ValueError("from one byte to a page")
        if self._position + size > len(self._page):
            self._page = os.urandom(_PAGE_BYTES)
            self._position = 0
        self._position += size
        return self._page[self._position - size : self._position]
