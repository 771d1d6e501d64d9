"""TPMS_ATTEST written out by hand (TPM 2.0 Library, Part 2, 10.12.8), every field open to a test."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping, Sequence

from tests.forge.keys import ALG, sized

MAGIC = 0xFF544347
QUOTE, CERTIFY, TIME = 0x8018, 0x8017, 0x8019
ENDORSEMENT = struct.pack(">I", 0x4000000B)
NULL_HIERARCHY = struct.pack(">I", 0x40000007)
OWNER = struct.pack(">I", 0x40000001)


def attest(
    kind: int,
    body: bytes,
    *,
    signer: bytes,
    extra_data: bytes,
    clock_ms: int,
    reset_count: int,
    restart_count: int,
    magic: int = MAGIC,
    safe: int = 1,
) -> bytes:
    """Any attestation structure around `body`."""
    head = struct.pack(">IH", magic, kind) + sized(signer) + sized(extra_data)
    return head + struct.pack(">QIIBQ", clock_ms, reset_count, restart_count, safe, 0x2019102300163636) + body


def selection(banks: Iterable[tuple[str, Sequence[int]]]) -> bytes:
    """TPML_PCR_SELECTION with three bytes a bank."""
    entries = list(banks)
    out = struct.pack(">I", len(entries))
    for bank, pcrs in entries:
        bits = sum(1 << pcr for pcr in pcrs)
        out += struct.pack(">HB", ALG[bank], 3) + bits.to_bytes(3, "little")
    return out


def quote_body(bank: str, pcrs: Mapping[int, bytes]) -> bytes:
    """TPMS_QUOTE_INFO over `pcrs`, digest by SHA-256 (the signing scheme's hash)."""
    digest = hashlib.sha256(b"".join(pcrs[index] for index in sorted(pcrs))).digest()
    return selection([(bank, sorted(pcrs))]) + sized(digest)


def certify_body(name: bytes, qualified_name: bytes) -> bytes:
    """TPMS_CERTIFY_INFO."""
    return sized(name) + sized(qualified_name)
