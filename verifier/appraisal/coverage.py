"""Which part of an event the PCR vouches for: the digest recomputed, by the form that each type is measured in.

Found over 106 real logs: variables, separators, actions and partition tables are measured as they stand; old shim
leaves out the last byte of an authority; boot variables are often measured without their names; GRUB measures the text
behind a prefix of its own; image loads, firmware blobs and files never show what was measured.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from verifier.appraisal.boot_facts import Coverage
from verifier.appraisal.event_types import MUST_COVER, MUST_COVER_IN_PCR4, EventType
from verifier.evidence.eventlog import BootEvent
from verifier.evidence.uefi import UefiMalformed, parse_variable

Hash = Callable[[bytes], bytes]


_sha256 = hashlib.sha256
HASHES: Mapping[str, Hash] = {
    "sha1": lambda content: hashlib.sha1(content, usedforsecurity=False).digest(),
    "sha256": lambda content: _sha256(content).digest(),
    "sha384": lambda content: hashlib.sha384(content).digest(),
    "sha512": lambda content: hashlib.sha512(content).digest(),
}
"""The banks that we can replay."""

_UNCOVERED = frozenset({EventType.EFI_BOOT_SERVICES_APPLICATION.value, EventType.EFI_PLATFORM_FIRMWARE_BLOB.value})
"""Never of their content, over 800 real events: not even tried."""
_IPL = EventType.IPL.value
_AUTHORITY = EventType.EFI_VARIABLE_AUTHORITY.value
_BOOT = EventType.EFI_VARIABLE_BOOT.value

Part = Literal["content", "value", "command", "command-line", "none"]
_GRUB_FORMS: tuple[tuple[bytes, Literal["command", "command-line"], bool], ...] = (
    (b"grub_cmd: ", "command", False),
    (b"kernel_cmdline: ", "command-line", False),
    (b"grub_cmd ", "command", True),
    (b"grub_kernel_cmdline ", "command-line", False),
)
"""Prefix, meaning, and whether the digest covers the NUL. The prefix itself is never covered."""


_COMMAND = re.compile(rb"[A-Za-z0-9_.\[=-]+(?= |\Z)|[A-Za-z0-9_]+=[!-~]*\Z")
"""A GRUB command's name, or an assignment. A command line begins with a path: quoted, or with a slash or a device."""


@dataclass(frozen=True, slots=True)
class JudgedEvent:
    """An event with what its digest in one bank covers.

    `covered` is exactly the covered bytes, None where nothing is; `part` says of what: all the content, a variable's
    value, or the text of a GRUB command or kernel command line.
    `consistent` is False where a type that must cover its content does not: the log was altered, or is broken.
    """

    event: BootEvent
    digest: bytes
    part: Part
    covered: bytes | None
    consistent: bool

    @property
    def coverage(self) -> Coverage:
        return "digest-only" if self.covered is None else "covered"


def judge(event: BootEvent, digest: bytes, hash_of: Hash) -> JudgedEvent:
    """What `digest` covers of `event`; never raises, whatever the content."""
    content = event.content
    kind = event.type
    if kind in _UNCOVERED:
        return JudgedEvent(event, digest, "none", None, consistent=True)
    if kind == _IPL and event.pcr == 8:
        return _judge_loader_text(event, digest, hash_of)
    if hash_of(content) == digest:
        return JudgedEvent(event, digest, "content", content, consistent=True)
    if kind == _AUTHORITY and hash_of(content[:-1]) == digest:
        return JudgedEvent(event, digest, "content", content[:-1], consistent=True)
    if kind == _BOOT:
        try:
            value = parse_variable(content).value
        except UefiMalformed:
            value = None
        if value is not None and hash_of(value) == digest:
            return JudgedEvent(event, digest, "value", value, consistent=True)
    must = kind in MUST_COVER or (event.pcr == 4 and kind in MUST_COVER_IN_PCR4)
    return JudgedEvent(event, digest, "none", None, consistent=not must)


def _judge_loader_text(event: BootEvent, digest: bytes, hash_of: Hash) -> JudgedEvent:
    """PCR 8: all that GRUB and systemd-boot measure there is text, so an uncovered event is an altered one."""
    content = event.content
    for prefix, part, with_nul in _GRUB_FORMS:
        if content.startswith(prefix):
            text = content[len(prefix) :]
            stripped = text.rstrip(b"\0")
            if hash_of(text if with_nul else stripped) != digest:
                return JudgedEvent(event, digest, "none", None, consistent=False)
            # Attack: the prefix is not covered, so a command line could be called a command. What does not begin as a
            # command is a command line. One with a bare word for a path (net boot) does begin so: its text is also
            # that of the `linux` command, which loaders.py reads.
            is_command = part == "command" and _COMMAND.match(stripped) is not None
            return JudgedEvent(event, digest, "command" if is_command else "command-line", stripped, consistent=True)
    # systemd-boot before version 252: UTF-16 options in PCR 8, measured with a wide NUL of which the log has one byte.
    for measured in (content, content + b"\0"):
        if hash_of(measured) == digest:
            return JudgedEvent(event, digest, "content", content, consistent=True)
    return JudgedEvent(event, digest, "none", None, consistent=False)
