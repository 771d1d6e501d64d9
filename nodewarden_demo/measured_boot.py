"""Which PCR extensions a boot log records, read far enough to play them into a software TPM.

For demo, tests and benchmarks only: it believes the log's digests, as firmware would have sent them. The verifier has a
parser of its own, so that one mistake here cannot hide there.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_DIGEST_BYTES: Mapping[int, tuple[str, int]] = {
    0x0004: ("sha1", 20),
    0x000B: ("sha256", 32),
    0x000C: ("sha384", 48),
    0x000D: ("sha512", 64),
}
"""TPM_ALG_ID to PCR bank and digest size (TCG Algorithm Registry)."""
_EV_NO_ACTION = 0x00000003
_SPEC_ID = b"Spec ID Event03\0"
_STARTUP_LOCALITY = b"StartupLocality\0"


@dataclass(frozen=True, slots=True)
class Extension:
    """One TPM2_PCR_Extend that firmware or boot loader made: the digest in every bank of the log."""

    pcr: int
    digests: Mapping[str, bytes]


def extensions(log: bytes) -> Iterator[Extension]:
    """The extensions that a crypto-agile boot log records, in order (TCG PC Client PFP 1.06, section 10).

    Raises ValueError for another format, a truncated log, or one whose firmware started the TPM at a locality other
    than 0 (its PCR 0 starts from another value, which this does not play).
    """
    offset = _after_header(log)
    while offset < len(log):
        pcr, kind, count = _unpack("<III", log, offset)
        offset += 12
        digests: dict[str, bytes] = {}
        for _ in range(count):
            (algorithm,) = _unpack("<H", log, offset)
            bank, size = _DIGEST_BYTES[algorithm]
            digests[bank] = log[offset + 2 : offset + 2 + size]
            offset += 2 + size
        (size,) = _unpack("<I", log, offset)
        content = log[offset + 4 : offset + 4 + size]
        offset += 4 + size
        if offset > len(log):
            raise ValueError("the boot log is truncated")
        if kind != _EV_NO_ACTION:
            yield Extension(pcr, digests)
        elif content.startswith(_STARTUP_LOCALITY) and content[-1] != 0:
            raise ValueError(f"the log's TPM was started at locality {content[-1]}")


def _after_header(log: bytes) -> int:
    pcr, kind = _unpack("<II", log, 0)
    (size,) = _unpack("<I", log, 28)
    if (pcr, kind) != (0, _EV_NO_ACTION) or not log[32 : 32 + size].startswith(_SPEC_ID):
        raise ValueError("not a crypto-agile boot log")
    return 32 + int(size)


def _unpack(layout: str, log: bytes, offset: int) -> tuple[int, ...]:
    try:
        return struct.unpack_from(layout, log, offset)
    except struct.error as error:
        raise ValueError("the boot log is truncated") from error
