"""A bounded reader for big-endian structures: it never reads past its end, and `finish` refuses what is left over.

Python slices shorten silently, which has turned a truncated structure into a shorter valid one in other verifiers.
Every read here goes through one length check instead.
"""

from __future__ import annotations

import struct

from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence

_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")


class Reader:
    """Reads `content` from its start to its end; every fault raises MalformedEvidence with `code` at `where`."""

    __slots__ = ("_code", "_content", "_position", "_size", "_where")

    def __init__(self, content: bytes, code: ReasonCode, where: str) -> None:
        self._content = content
        self._size = len(content)
        self._position = 0
        self._code = code
        self._where = where

    def take(self, size: int, field: str) -> bytes:
        """The next `size` bytes."""
        end = self._position + size
        if end > self._size:
            raise self.fault(field, f"{self._size - self._position} bytes left", f"{size} bytes")
        value = self._content[self._position : end]
        self._position = end
        return value

    def u8(self, field: str) -> int:
        """The next byte."""
        return self.take(1, field)[0]

    def u16(self, field: str) -> int:
        """The next two bytes as an unsigned integer."""
        start = self._position
        if start + 2 > self._size:
            raise self.fault(field, f"{self._size - start} bytes left", "2 bytes")
        self._position = start + 2
        value: int = _U16.unpack_from(self._content, start)[0]
        return value

    def u32(self, field: str) -> int:
        """The next four bytes as an unsigned integer."""
        start = self._position
        if start + 4 > self._size:
            raise self.fault(field, f"{self._size - start} bytes left", "4 bytes")
        self._position = start + 4
        value: int = _U32.unpack_from(self._content, start)[0]
        return value

    def sized(self, field: str, max_bytes: int) -> bytes:
        """The contents of the next TPM2B: a two-byte size, at most `max_bytes`, and as many bytes."""
        size = self.u16(field)
        if size > max_bytes:
            raise self.fault(field, f"{size} bytes", f"at most {max_bytes} bytes")
        return self.take(size, field)

    def finish(self) -> None:
        """Returns only if everything was read: a trailing byte is content that nobody judged."""
        left = len(self._content) - self._position
        if left:
            raise self.fault("end", f"{left} trailing bytes", "none")

    def fault(self, field: str, observed: str | None = None, expected: str | None = None) -> MalformedEvidence:
        """The refusal of `field`, for the caller to raise."""
        return MalformedEvidence(self._code, f"{self._where}.{field}", observed, expected)
