"""A bounded DER reader for certificates as TPM makers wrote them.

It keeps the bytes of every element, because signatures are over the original bytes: re-encoding what a maker wrote
wrongly (set order, long integers) breaks its signature. Tolerated: sets out of order, integers and lengths longer than
needed. Refused: indefinite lengths, tags above 30, nesting that leaves its parent, anything left over.
"""

from __future__ import annotations

from dataclasses import dataclass

from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence

BOOLEAN, INTEGER, BIT_STRING, OCTET_STRING, OID = 0x01, 0x02, 0x03, 0x04, 0x06
UTC_TIME, GENERALIZED_TIME, SEQUENCE, SET = 0x17, 0x18, 0x30, 0x31
_MAX_ELEMENTS = 2000
"""In one constructed element; the largest certificate has some dozens, a CRL is read with its own bound."""


@dataclass(frozen=True, slots=True)
class Element:
    """One TLV: `raw` with its header, `content` without."""

    tag: int
    raw: bytes
    content: bytes


class DerReader:
    """Reads the elements of `content` one after another."""

    __slots__ = ("_content", "_position", "_where")

    def __init__(self, content: bytes, where: str) -> None:
        self._content = content
        self._position = 0
        self._where = where

    @property
    def at_end(self) -> bool:
        return self._position == len(self._content)

    def peek(self) -> int | None:
        """The next element's tag; None at the end."""
        return None if self.at_end else self._content[self._position]

    def next(self, *tags: int) -> Element:
        """The next element, whose tag is one of `tags` (any, if none are given)."""
        start = self._position
        if start + 2 > len(self._content):
            raise self.fault("ends early")
        tag, first = self._content[start], self._content[start + 1]
        if tag & 0x1F == 0x1F:
            raise self.fault("a tag of several bytes")
        if tags and tag not in tags:
            raise self.fault(f"tag {tag:#04x}", " or ".join(f"{t:#04x}" for t in tags))
        header = 2
        if first < 0x80:
            size = first
        else:
            octets = first & 0x7F
            # 0x80 is BER's indefinite length; no certificate needs more than three octets of length.
            if not 1 <= octets <= 3 or start + 2 + octets > len(self._content):
                raise self.fault(f"length of {octets} octets")
            header = 2 + octets
            size = int.from_bytes(self._content[start + 2 : start + header], "big")
        end = start + header + size
        if end > len(self._content):
            raise self.fault(f"element of {size} bytes", f"at most {len(self._content) - start - header}")
        self._position = end
        return Element(tag, self._content[start:end], self._content[start + header : end])

    def inside(self, *tags: int) -> DerReader:
        """A reader of the next element's content."""
        return DerReader(self.next(*(tags or (SEQUENCE,))).content, self._where)

    def all(self, *tags: int) -> list[Element]:
        """Every remaining element."""
        elements: list[Element] = []
        while not self.at_end:
            if len(elements) >= _MAX_ELEMENTS:
                raise self.fault(f"more than {_MAX_ELEMENTS} elements")
            elements.append(self.next(*tags))
        return elements

    def finish(self) -> None:
        """Returns only if everything was read."""
        if not self.at_end:
            raise self.fault(f"{len(self._content) - self._position} bytes left over", "none")

    def fault(self, observed: str, expected: str | None = None) -> MalformedEvidence:
        """The refusal, for the caller to raise."""
        return MalformedEvidence(
            ReasonCode.CERTIFICATE_MALFORMED, f"{self._where} byte {self._position}", observed, expected
        )


def oid_text(content: bytes) -> str:
    """Dotted text of an object identifier's content; empty or open-ended ones give text that equals no known one."""
    numbers: list[int] = []
    value = 0
    for octet in content[:64]:
        value = value << 7 | octet & 0x7F
        if not octet & 0x80:
            numbers.append(value)
            value = 0
    if not numbers:
        return ""
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))
