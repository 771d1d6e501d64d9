"""UEFI structures inside boot events: variables, signature lists, load options, device paths. Little-endian.

Sources: UEFI Specification 2.10, sections 3.1.3 (EFI_LOAD_OPTION), 10 (device paths), 32.4.1 (signature lists); TCG PC
Client Platform Firmware Profile 1.06, section 10.2.6 (UEFI_VARIABLE_DATA). Every length is bounded before it is
multiplied or used: these structures are where event-log parsers have overflowed, looped and skipped.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

GLOBAL_VARIABLE = bytes.fromhex("61dfe48bca93d211aa0d00e098032b8c")
"""EFI_GLOBAL_VARIABLE 8be4df61-93ca-11d2-aa0d-00e098032b8c, as bytes in memory: SecureBoot, PK, KEK, Boot####."""
IMAGE_SECURITY_DATABASE = bytes.fromhex("cbb219d73a3d9645a3bcdad00e67656f")
"""EFI_IMAGE_SECURITY_DATABASE_GUID d719b2cb-3d3a-4596-a3bc-dad00e67656f: db, dbx, dbt, dbr."""
_CERT_X509 = bytes.fromhex("a159c0a5e494a74a87b5ab155c2bf072")
"""EFI_CERT_X509_GUID a5c059a1-94e4-4aa7-87b5-ab155c2bf072; all other list types hold hashes or bare keys."""

_MAX_NAME_CHARACTERS = 512
_MAX_LIST_ENTRIES = 20_000
_VARIABLE = struct.Struct("<16sQQ")
_LIST = struct.Struct("<16sIII")
_OWNER_BYTES = 16


class UefiMalformed(ValueError):
    """A structure contradicts itself. The message says how; the caller decides what follows from it."""


@dataclass(frozen=True, slots=True)
class UefiVariable:
    """UEFI_VARIABLE_DATA: whether name and value can be believed depends on what the event's digest covers."""

    guid: bytes
    name: str
    value: bytes


@dataclass(frozen=True, slots=True)
class SignatureLists:
    """The contents of EFI_SIGNATURE_LISTs: SHA-256 (hex) of certificates, and other entries (hashes) as hex."""

    certificates: frozenset[str]
    hashes: frozenset[str]


def parse_variable(content: bytes, max_zeros_behind: int = 0) -> UefiVariable:
    """The variable in `content`: guid[16], u64 name characters, u64 value bytes, UTF-16 name, value; nothing else.

    `max_zeros_behind` allows as many zero bytes at the end (old shim measures five). Raises UefiMalformed.
    """
    if len(content) < _VARIABLE.size:
        raise UefiMalformed("variable ends early")
    guid, characters, value_bytes = _VARIABLE.unpack_from(content)
    # Attack: 2^62 characters, which doubles to a small number where integers wrap.
    if characters > _MAX_NAME_CHARACTERS or value_bytes > len(content):
        raise UefiMalformed(f"variable of {characters} characters and {value_bytes} bytes")
    start = _VARIABLE.size + 2 * characters
    end = start + value_bytes
    if not end <= len(content) <= end + max_zeros_behind or content[end:].strip(b"\0"):
        raise UefiMalformed(f"variable of {end} bytes in {len(content)}")
    try:
        name = content[_VARIABLE.size : start].decode("utf-16-le")
    except UnicodeDecodeError as error:
        raise UefiMalformed("variable name is not UTF-16") from error
    return UefiVariable(guid, name, content[start:end])


def parse_signature_lists(value: bytes) -> SignatureLists:
    """All entries of the EFI_SIGNATURE_LISTs that fill `value`; none for an empty value.

    List: guid type, u32 list size, u32 header size, u32 entry size, header, entries of owner guid and data. The header
    is skipped, never read as entries (GHSA-9r4w-jg96-92mv injects hashes through it). Raises UefiMalformed.
    """
    certificates: set[str] = set()
    hashes: set[str] = set()
    position, count = 0, 0
    while position < len(value):
        if len(value) - position < _LIST.size:
            raise UefiMalformed("signature list ends early")
        kind, list_size, header_size, entry_size = _LIST.unpack_from(value, position)
        if not _LIST.size <= list_size <= len(value) - position:
            raise UefiMalformed(f"signature list of {list_size} bytes")
        body = list_size - _LIST.size - header_size
        if body < 0 or entry_size <= _OWNER_BYTES or body % entry_size:
            raise UefiMalformed(f"entries of {entry_size} bytes after a header of {header_size} in {list_size}")
        count += body // entry_size
        if count > _MAX_LIST_ENTRIES:
            raise UefiMalformed(f"more than {_MAX_LIST_ENTRIES} entries")
        start = position + _LIST.size + header_size
        end = position + list_size
        if kind == _CERT_X509:
            for entry in range(start, end, entry_size):
                certificates.add(hashlib.sha256(value[entry + _OWNER_BYTES : entry + entry_size]).hexdigest())
        else:
            for entry in range(start, end, entry_size):
                hashes.add(value[entry + _OWNER_BYTES : entry + entry_size].hex())
        position = end
    return SignatureLists(frozenset(certificates), frozenset(hashes))


def certificate_in(signature: bytes) -> bytes | None:
    """The DER certificate in an EFI_SIGNATURE_DATA, or in a bare certificate as some shims measure it; else None."""
    for start in (0, _OWNER_BYTES):
        der = signature[start:]
        if der[:2] == b"\x30\x82" and len(der) == 4 + int.from_bytes(der[2:4], "big"):
            return der
    return None


def image_path(content: bytes) -> str | None:
    """The file path in the device path of a UEFI_IMAGE_LOAD_EVENT; None where there is none or it is broken.

    A hint whatever it says: no digest covers it, so nothing here is an error.
    """
    if len(content) < 32:
        return None
    path = content[32 : 32 + int.from_bytes(content[24:32], "little")]
    parts: list[str] = []
    while len(path) >= 4:
        size = int.from_bytes(path[2:4], "little")
        if size < 4 or size > len(path) or path[0] == 0x7F:
            break
        if path[:2] == b"\x04\x04":
            parts.append(path[4:size].decode("utf-16-le", "replace").rstrip("\0"))
        path = path[size:]
    return "\\".join(parts).replace("\\\\", "\\") or None


def load_option_arguments(option: bytes) -> bytes | None:
    """OptionalData of an EFI_LOAD_OPTION (what the image gets as LoadOptions); None where the option is broken.

    Layout: u32 attributes, u16 path bytes, UTF-16 description with NUL, path, optional data.
    """
    if len(option) < 6:
        return None
    path_bytes = int.from_bytes(option[4:6], "little")
    position = 6
    while option[position : position + 2] != b"\0\0":
        if position + 2 > len(option):
            return None
        position += 2
    start = position + 2 + path_bytes
    return option[start:] if start <= len(option) else None
