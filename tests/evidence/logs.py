"""Boot logs to change one thing of: a real log taken apart into drafts, and put together again by hand."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

VM = Path(__file__).parent.parent / "vectors" / "vm"
SIZES = {"sha1": (0x0004, 20), "sha256": (0x000B, 32), "sha384": (0x000C, 48)}
BANKS = ("sha1", "sha256")
SPEC_ID, SEPARATOR, ACTION, TAG, VERSION, IPL = 0x03, 0x04, 0x05, 0x06, 0x08, 0x0D
VARIABLE, BOOT_VARIABLE, APPLICATION, EFI_ACTION, BLOB = 0x80000001, 0x80000002, 0x80000003, 0x80000007, 0x80000008
AUTHORITY = 0x800000E0
GLOBAL = bytes.fromhex("61dfe48bca93d211aa0d00e098032b8c")
SECURITY = bytes.fromhex("cbb219d73a3d9645a3bcdad00e67656f")
X509 = bytes.fromhex("a159c0a5e494a74a87b5ab155c2bf072")
SHA256_HASH = bytes.fromhex("2616c4c14c509240aca941f936934328")


@dataclass(frozen=True)
class Draft:
    """One event to be written: `digests` by bank."""

    pcr: int
    type: int
    digests: dict[str, bytes]
    content: bytes

    def with_content(self, content: bytes) -> Draft:
        """Other content under the same digests: what an editor of the log can do."""
        return replace(self, content=content)


def event(pcr: int, kind: int, content: bytes, covered: bytes | None = None) -> Draft:
    """An event measured honestly: its digests are of `covered`, or of all its content."""
    measured = content if covered is None else covered
    return Draft(pcr, kind, {bank: hashlib.new(bank, measured).digest() for bank in BANKS}, content)


def no_action(content: bytes, pcr: int = 0) -> Draft:
    return Draft(pcr, SPEC_ID, {bank: bytes(SIZES[bank][1]) for bank in BANKS}, content)


def header(banks: Sequence[str] = BANKS) -> bytes:
    """The Spec ID event."""
    table = b"".join(struct.pack("<HH", *SIZES[bank]) for bank in banks)
    spec = b"Spec ID Event03\0" + struct.pack("<IBBBBI", 0, 0, 2, 0, 2, len(banks)) + table + b"\0"
    return struct.pack("<II20sI", 0, SPEC_ID, bytes(20), len(spec)) + spec


def encoded(draft: Draft) -> bytes:
    """TCG_PCR_EVENT2."""
    digests = b"".join(struct.pack("<H", SIZES[bank][0]) + value for bank, value in draft.digests.items())
    head = struct.pack("<III", draft.pcr, draft.type, len(draft.digests)) + digests
    return head + struct.pack("<I", len(draft.content)) + draft.content


def log_of(drafts: Sequence[Draft]) -> bytes:
    return header() + b"".join(encoded(draft) for draft in drafts)


@cache
def vm_log(case: str = "sb-on-good") -> bytes:
    return (VM / case / "eventlog.bin").read_bytes()


@cache
def vm_drafts(case: str = "sb-on-good") -> tuple[Draft, ...]:
    """The events of a real log after the Spec ID event, read with nothing of the product."""
    log = vm_log(case)
    position = 32 + int.from_bytes(log[28:32], "little")
    drafts = []
    while position < len(log):
        pcr, kind, count = struct.unpack_from("<III", log, position)
        position += 12
        digests = {}
        for _ in range(count):
            identifier = int.from_bytes(log[position : position + 2], "little")
            bank, size = next((name, size) for name, (number, size) in SIZES.items() if number == identifier)
            digests[bank] = log[position + 2 : position + 2 + size]
            position += 2 + size
        size = int.from_bytes(log[position : position + 4], "little")
        drafts.append(Draft(pcr, kind, digests, log[position + 4 : position + 4 + size]))
        position += 4 + size
    return tuple(drafts)


def position_of(drafts: Sequence[Draft], pcr: int, kind: int, start: bytes = b"", which: int = 0) -> int:
    """Index in `drafts` of the nth event of this kind whose content begins so."""
    found = [i for i, d in enumerate(drafts) if (d.pcr, d.type) == (pcr, kind) and d.content.startswith(start)]
    return found[which]


def changed(drafts: Sequence[Draft], index: int, draft: Draft | None) -> bytes:
    """The log with one event replaced, or left out."""
    middle = [] if draft is None else [draft]
    return log_of([*drafts[:index], *middle, *drafts[index + 1 :]])


def inserted(drafts: Sequence[Draft], index: int, *extra: Draft) -> bytes:
    return log_of([*drafts[:index], *extra, *drafts[index:]])


def variable(name: str, value: bytes, guid: bytes = GLOBAL) -> bytes:
    """UEFI_VARIABLE_DATA."""
    return guid + struct.pack("<QQ", len(name), len(value)) + name.encode("utf-16-le") + value


def signature_list(entries: Sequence[bytes], kind: bytes = SHA256_HASH, vendor_header: bytes = b"") -> bytes:
    """EFI_SIGNATURE_LIST of entries of one size, each behind an owner."""
    size = 16 + len(entries[0])
    body = b"".join(bytes(16) + entry for entry in entries)
    total = 28 + len(vendor_header) + len(body)
    return kind + struct.pack("<III", total, len(vendor_header), size) + vendor_header + body
