"""The container of the firmware's event log. What an event means, and whether it can be believed, is not judged here.

Source: TCG PC Client Platform Firmware Profile 1.06, section 10 (TCG_PCR_EVENT, TCG_PCR_EVENT2, Spec ID event).
Little-endian. A log is crypto-agile exactly if its first event is the Spec ID event; anything else, a short or foreign
first EV_NO_ACTION included, makes it a legacy SHA-1 log. CCEL logs (TDX) share the crypto-agile layout, count RTMRs
where others count PCRs, and may be padded.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from verifier.wire.bundle import MAX_BOOT_LOG_BYTES
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence

LogFormat = Literal["crypto-agile", "legacy", "ccel"]

MAX_EVENTS = 10_000
"""The largest real log that we know has a few hundred events; this bounds the time that a crafted one can take."""
MAX_ALGORITHMS = 8
NO_PCR = 0xFFFFFFFF
"""Windows writes events of its own into the log under this index; they extend nothing."""
HIGHEST_PCR = 23

EV_NO_ACTION = 0x00000003
SPEC_ID_SIGNATURE = b"Spec ID Event03\0"
LOCALITY_SIGNATURE = b"StartupLocality\0"
EV_EFI_HCRTM_EVENT = 0x80000010

_ALGORITHMS: Mapping[int, tuple[str, int]] = {
    0x0004: ("sha1", 20),
    0x000B: ("sha256", 32),
    0x000C: ("sha384", 48),
    0x000D: ("sha512", 64),
    0x0012: ("sm3_256", 32),
}
_HIGHEST_RTMR_INDEX = 4
"""CCEL indices: 0 is MRTD, 1 to 4 are RTMR 0 to 3."""

_PADDING_HEADS = frozenset(fill * size for fill in (b"\0", b"\xff") for size in range(1, 9))
"""How padding begins; shorter ones only at the very end."""

_LEGACY = struct.Struct("<II20sI")
_EVENT2 = struct.Struct("<III")
_SPEC_ID = struct.Struct("<16sIBBBBI")
_U16 = struct.Struct("<H")
_U16_PAIR = struct.Struct("<HH")
_U32 = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class BootEvent:
    """One event. PCRs hold `digests`, never `type` or `content`: those are believed only after recomputation.

    `index` counts from 0 and includes the Spec ID event. `digests` maps algorithm to digest.
    """

    index: int
    pcr: int
    type: int
    digests: Mapping[str, bytes]
    content: bytes


@dataclass(frozen=True, slots=True)
class EventLog:
    """A log whose container holds together. `startup_locality` is what the log claims for PCR 0's first value."""

    format: LogFormat
    algorithms: tuple[str, ...]
    events: tuple[BootEvent, ...]
    startup_locality: int


def parse_event_log(log: bytes) -> EventLog:
    """The events in `log`, read to its last byte.

    Raises MalformedEvidence: `body-too-large`; `boot-log-malformed` for a log that is empty or ends within an event, an
    algorithm that is unknown, duplicated, undeclared or of the wrong size, more than `MAX_EVENTS` events, a PCR above
    23, or bytes after the last event other than uniform padding. Believes nothing: neither types nor contents.
    """
    if len(log) > MAX_BOOT_LOG_BYTES:
        raise MalformedEvidence(
            ReasonCode.BODY_TOO_LARGE, "boot_log", f"{len(log)} bytes", f"at most {MAX_BOOT_LOG_BYTES} bytes"
        )
    if not log:
        raise _malformed(0, "empty", "at least one event")
    first, position = _legacy_event(log, 0, 0)
    if first.type != EV_NO_ACTION or not first.content.startswith(SPEC_ID_SIGNATURE):
        return _legacy_log(log, first, position)
    algorithms = _declared_algorithms(first.content)
    events = [first]
    position, padded = _read_events(log, position, algorithms, events)
    names = tuple(name for name, _ in algorithms.values())
    rtmrs = names == ("sha384",) and len(events) > 1 and all(e.pcr <= _HIGHEST_RTMR_INDEX for e in events)
    kind: LogFormat = "ccel" if padded or rtmrs else "crypto-agile"
    return EventLog(kind, names, tuple(events), _locality(events))


def _legacy_log(log: bytes, first: BootEvent, position: int) -> EventLog:
    events = [first]
    while position < len(log):
        if len(events) >= MAX_EVENTS:
            raise _malformed(position, f"more than {MAX_EVENTS} events", None)
        event, position = _legacy_event(log, position, len(events))
        events.append(event)
    return EventLog("legacy", ("sha1",), tuple(events), _locality(events))


def _legacy_event(log: bytes, position: int, index: int) -> tuple[BootEvent, int]:
    """TCG_PCR_EVENT: u32 pcr, u32 type, u8 sha1[20], u32 size, data."""
    start = position + _LEGACY.size
    if start > len(log):
        raise _malformed(position, "ends within an event", None, index)
    pcr, kind, digest, size = _LEGACY.unpack_from(log, position)
    if size > len(log) - start:
        raise _malformed(position, f"{size} bytes of event data", f"at most {len(log) - start}", index)
    _check_pcr(pcr, position, index)
    return BootEvent(index, pcr, kind, {"sha1": digest}, log[start : start + size]), start + size


def _declared_algorithms(spec_id: bytes) -> dict[int, tuple[str, int]]:
    """The algorithm table of TCG_EfiSpecIDEventStruct, whose declared sizes must be the known ones.

    Layout: signature[16], u32 class, u8 minor, u8 major, u8 errata, u8 uintnSize, u32 n, n x {u16 alg, u16 size},
    u8 vendorSize, vendor.
    """
    position = _SPEC_ID.size
    if len(spec_id) < position:
        raise _malformed(0, "Spec ID event ends early", None, 0)
    count: int = _SPEC_ID.unpack_from(spec_id)[-1]
    if not 1 <= count <= MAX_ALGORITHMS or len(spec_id) < position + 4 * count + 1:
        raise _malformed(0, f"{count} algorithms in {len(spec_id)} bytes", f"1 to {MAX_ALGORITHMS}", 0)
    declared: dict[int, tuple[str, int]] = {}
    for _ in range(count):
        identifier, size = _U16_PAIR.unpack_from(spec_id, position)
        position += _U16_PAIR.size
        known = _ALGORITHMS.get(identifier)
        if known is None or known[1] != size or identifier in declared:
            raise _malformed(0, f"algorithm {identifier:#06x} of {size} bytes", "a known one, once, of its size", 0)
        declared[identifier] = known
    if len(spec_id) != position + 1 + spec_id[position]:
        raise _malformed(0, "vendor information of another size", str(spec_id[position]), 0)
    return declared


def _read_events(
    log: bytes, position: int, algorithms: Mapping[int, tuple[str, int]], events: list[BootEvent]
) -> tuple[int, bool]:
    """Appends every TCG_PCR_EVENT2 from `position` on; returns the end, and whether padding followed."""
    end = len(log)
    # Nearly every event has one digest per declared algorithm, in the declared order: those are read in one step.
    usual = struct.Struct("<III" + "".join(f"H{size}s" for _, size in algorithms.values()) + "I")
    names = tuple(name for name, _ in algorithms.values())
    identifiers = tuple(algorithms)
    while position < end:
        if log[position : position + 8] in _PADDING_HEADS:
            _require_padding(log, position)
            return position, True
        index = len(events)
        if index >= MAX_EVENTS:
            raise _malformed(position, f"more than {MAX_EVENTS} events", None)
        start = position
        if position + usual.size <= end:
            pcr, kind, count, *fields, size = usual.unpack_from(log, position)
        else:
            count = 0
        if count == len(names) and tuple(fields[::2]) == identifiers:
            digests = dict(zip(names, fields[1::2], strict=True))
            position += usual.size
        else:
            pcr, kind, digests, size, position = _unusual_head(log, position, algorithms, index)
        if pcr > HIGHEST_PCR:
            _check_pcr(pcr, start, index)
        if size > end - position:
            raise _malformed(start, f"{size} bytes of event data", f"at most {end - position}", index)
        events.append(BootEvent(index, pcr, kind, digests, log[position : position + size]))
        position += size
    return position, False


def _unusual_head(
    log: bytes, position: int, algorithms: Mapping[int, tuple[str, int]], index: int
) -> tuple[int, int, dict[str, bytes], int, int]:
    """PCR, type, digests, size of the data and where it starts, for an event with digests in any number and order."""
    start, end = position, len(log)
    if position + _EVENT2.size > end:
        raise _malformed(start, "ends within an event", None, index)
    pcr, kind, count = _EVENT2.unpack_from(log, position)
    position += _EVENT2.size
    if count > len(algorithms):
        raise _malformed(start, f"{count} digests", f"at most {len(algorithms)}", index)
    digests: dict[str, bytes] = {}
    for _ in range(count):
        if position + 2 > end:
            raise _malformed(start, "ends within an event", None, index)
        (identifier,) = _U16.unpack_from(log, position)
        declared = algorithms.get(identifier)
        if declared is None or declared[0] in digests:
            raise _malformed(start, f"digest algorithm {identifier:#06x}", "a declared one, once", index)
        name, size = declared
        digests[name] = log[position + 2 : position + 2 + size]
        position += 2 + size
    # Only this check makes the slices above whole: every digest ends before the size field.
    if position + 4 > end:
        raise _malformed(start, "ends within an event", None, index)
    (size,) = _U32.unpack_from(log, position)
    return pcr, kind, digests, size, position + 4


def _require_padding(log: bytes, position: int) -> None:
    """Returns if all bytes from `position`, which begin like padding, are the same; anything else is an error.

    No event begins with eight zero bytes or eight 0xFF: type 0 (EV_PREBOOT_CERT) is reserved, and 0xFFFFFFFF no type.
    """
    if log[position:].strip(log[position : position + 1]):
        raise _malformed(position, "padding with something in it", "uniform padding to the end")


def _check_pcr(pcr: int, position: int, index: int) -> None:
    # Attack: an index that no TPM has is skipped by some replays, so its event would look harmless.
    if pcr > HIGHEST_PCR and pcr != NO_PCR:
        raise _malformed(position, f"PCR {pcr}", f"0 to {HIGHEST_PCR}", index)


def claimed_locality(event: BootEvent) -> int | None:
    """The locality that a StartupLocality event claims; None for any other event. coreboot pads the event."""
    if event.type != EV_NO_ACTION or not event.content.startswith(LOCALITY_SIGNATURE):
        return None
    return event.content[16] if len(event.content) > len(LOCALITY_SIGNATURE) else None


def _locality(events: list[BootEvent]) -> int:
    """What PCR 0 starts with: 4 after an H-CRTM event, else the first claimed locality, else 0."""
    for event in events:
        if event.pcr == 0:
            if event.type == EV_EFI_HCRTM_EVENT:
                return 4
            claimed = claimed_locality(event)
            if claimed is not None:
                return claimed
            if event.type != EV_NO_ACTION:
                return 0
    return 0


def _malformed(position: int, observed: str, expected: str | None, index: int | None = None) -> MalformedEvidence:
    return MalformedEvidence(
        ReasonCode.BOOT_LOG_MALFORMED, f"boot_log byte {position}", observed, expected, event_index=index
    )
