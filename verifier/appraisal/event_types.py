"""Event types of boot logs: their names, and which of them may occur where facts are drawn from.

Source: TCG PC Client Platform Firmware Profile 1.06, section 10.4.1. The type of an event is covered by no digest, so a
forged type must gain nothing: in every PCR that facts come from the table is closed, and types whose content is always
measured as it stands must prove it (coverage.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum


class EventType(IntEnum):
    """Types that this verifier knows."""

    POST_CODE = 0x01
    NO_ACTION = 0x03
    SEPARATOR = 0x04
    ACTION = 0x05
    EVENT_TAG = 0x06
    S_CRTM_CONTENTS = 0x07
    S_CRTM_VERSION = 0x08
    CPU_MICROCODE = 0x09
    PLATFORM_CONFIG_FLAGS = 0x0A
    TABLE_OF_DEVICES = 0x0B
    COMPACT_HASH = 0x0C
    IPL = 0x0D
    IPL_PARTITION_DATA = 0x0E
    NONHOST_CODE = 0x0F
    NONHOST_CONFIG = 0x10
    NONHOST_INFO = 0x11
    OMIT_BOOT_DEVICE_EVENTS = 0x12
    POST_CODE2 = 0x13
    EFI_VARIABLE_DRIVER_CONFIG = 0x80000001
    EFI_VARIABLE_BOOT = 0x80000002
    EFI_BOOT_SERVICES_APPLICATION = 0x80000003
    EFI_BOOT_SERVICES_DRIVER = 0x80000004
    EFI_RUNTIME_SERVICES_DRIVER = 0x80000005
    EFI_GPT_EVENT = 0x80000006
    EFI_ACTION = 0x80000007
    EFI_PLATFORM_FIRMWARE_BLOB = 0x80000008
    EFI_HANDOFF_TABLES = 0x80000009
    EFI_PLATFORM_FIRMWARE_BLOB2 = 0x8000000A
    EFI_HANDOFF_TABLES2 = 0x8000000B
    EFI_VARIABLE_BOOT2 = 0x8000000C
    EFI_GPT_EVENT2 = 0x8000000D
    EFI_HCRTM_EVENT = 0x80000010
    EFI_VARIABLE_AUTHORITY = 0x800000E0


_NAMES: Mapping[int, str] = {member.value: f"EV_{member.name}" for member in EventType}


def type_name(kind: int) -> str:
    """`EV_...`, or the number in hex for a type that is not known."""
    return _NAMES.get(kind) or f"{kind:#010x}"


IMAGE_TYPES = frozenset(
    {
        EventType.EFI_BOOT_SERVICES_APPLICATION,
        EventType.EFI_BOOT_SERVICES_DRIVER,
        EventType.EFI_RUNTIME_SERVICES_DRIVER,
    }
)
"""Digest: the image's Authenticode hash. Content: UEFI_IMAGE_LOAD_EVENT, of which nothing is covered."""

ALLOWED: Mapping[int, frozenset[int]] = {
    4: frozenset(
        {
            *IMAGE_TYPES,
            EventType.SEPARATOR,
            EventType.ACTION,
            EventType.EFI_ACTION,
            EventType.OMIT_BOOT_DEVICE_EVENTS,
        }
    ),
    7: frozenset(
        {
            EventType.SEPARATOR,
            EventType.EFI_ACTION,
            EventType.EFI_VARIABLE_DRIVER_CONFIG,
            EventType.EFI_VARIABLE_AUTHORITY,
        }
    ),
    8: frozenset({EventType.SEPARATOR, EventType.IPL}),
    9: frozenset({EventType.SEPARATOR, EventType.IPL, EventType.EVENT_TAG}),
    11: frozenset({EventType.SEPARATOR, EventType.IPL, EventType.EVENT_TAG, EventType.COMPACT_HASH}),
    12: frozenset({EventType.SEPARATOR, EventType.IPL, EventType.EVENT_TAG}),
}
"""The closed table, by PCR. PCR 0, 2 and 14 need none: whatever they hold is a firmware blob or a list of shim's, by
digest (firmware.py, shim.py). COMPACT_HASH and tags are those of Windows."""

BETWEEN_IMAGES: frozenset[bytes] = frozenset(
    {
        b"Calling EFI Application from Boot Option",
        b"Returning from EFI Application from Boot Option",
        b"Calling INT 19h",
        b"Returned INT 19h",
        b"Return via INT 18h",
        b"BOOT ATTEMPTS OMITTED",
    }
)
"""All that PCR 4 may hold beside images and separator. Attack: an image's digest covers the bytes that Authenticode
hashes, so an image relabelled as an action with those bytes as content is covered, too."""

MUST_COVER = frozenset(
    {
        EventType.SEPARATOR,
        EventType.EFI_ACTION,
        EventType.EFI_GPT_EVENT,
        EventType.EFI_GPT_EVENT2,
        EventType.EFI_VARIABLE_DRIVER_CONFIG,
        EventType.EFI_VARIABLE_AUTHORITY,
        EventType.EFI_VARIABLE_BOOT,
        EventType.EFI_VARIABLE_BOOT2,
    }
)
"""Types whose digest covered the content (or, for boot variables, the value) in every one of 106 real logs."""
MUST_COVER_IN_PCR4 = frozenset({EventType.ACTION, EventType.OMIT_BOOT_DEVICE_EVENTS})
"""Text events that legitimately stand between images: uncovered ones could be relabelled images."""
