"""What shim says of itself: its own lists and settings in PCR 14, and the settings among its events in PCR 7.

Source: shim's README.tpm and mok.c. PCR 14 holds the contents of MokList, MokListX and, where set, of MokSBState,
MokDBState and MokListTrusted; the log shows names only, which nothing covers. MokSBState goes into PCR 7 as well, with
its name covered.
"""

from __future__ import annotations

from collections.abc import Sequence

from verifier.appraisal.boot_facts import MokMeasurement, Origin
from verifier.appraisal.coverage import JudgedEvent
from verifier.appraisal.event_types import EventType
from verifier.evidence.uefi import UefiVariable

PCR = 14
SHIM_LOCK = bytes.fromhex("50ab5d6046e00043abb63dd810dd8b23")
"""SHIM_LOCK_GUID 605dab50-e046-4300-abb6-3dd810dd8b23, as bytes in memory."""
SBAT_LEVEL = "SbatLevel"
VALIDATION = "MokSBState"
_VALIDATION_ON = b"\0"
_SETTINGS = frozenset({SBAT_LEVEL, "MokListTrusted", VALIDATION})


def is_setting(variable: UefiVariable) -> bool:
    """Whether `variable` is one of shim's settings, which say how shim checks and never what it lets start.

    A closed list: anything else that is measured where authorities are is an authority.
    """
    return variable.guid == SHIM_LOCK and variable.name in _SETTINGS


def turns_validation_off(variable: UefiVariable) -> bool:
    """Whether `variable` says that shim starts images without checking them, whatever vendor it is of."""
    return variable.name == VALIDATION and variable.value != _VALIDATION_ON


def mok_measurements(events: Sequence[JudgedEvent]) -> tuple[MokMeasurement, ...]:
    """Everything in PCR 14 but separators, whatever its type: relabelling one hides nothing."""
    return tuple(
        MokMeasurement(
            judged.digest.hex(),
            judged.event.content.rstrip(b"\0").decode("ascii", "backslashreplace")[:64] or None,
            Origin(PCR, judged.event.index, judged.coverage),
        )
        for judged in events
        if judged.event.pcr == PCR and judged.event.type != EventType.SEPARATOR
    )
