"""PCR values from a log, in one bank, and the rules that make a replay mean something.

Source: TCG PC Client Platform Firmware Profile 1.06, sections 10.4.5 (StartupLocality) and 2.3.4 (separators). PCR 0 to
16 and 23 start at zero, 17 to 22 at ones, PCR 0 with the locality that started the TPM as its last byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from verifier.appraisal.coverage import Hash, JudgedEvent, judge
from verifier.appraisal.event_types import ALLOWED, BETWEEN_IMAGES, IMAGE_TYPES, EventType, type_name
from verifier.evidence.eventlog import EV_NO_ACTION, NO_PCR, BootEvent, EventLog, claimed_locality
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure

MAX_FAILURES = 50
"""Kept of a log that is wrong throughout: a crafted one must not fill answers and audit rows."""
MAX_EVENTS_PER_PCR: Mapping[int, int] = {8: 2048, 12: 64, 14: 64}
"""What facts are drawn from: GRUB measures every command (PCR 8), at most 174 in 106 real logs."""
MAX_EVENTS_OF_ANOTHER_PCR = 512
_EV_SEPARATOR = EventType.SEPARATOR.value
_LOCALITIES = frozenset({0, 3, 4})
_SEPARATOR = b"\0\0\0\0"
_SEPARATOR_ERROR = b"\xff\xff\xff\xff"
_TYPED_CONTENTS: Mapping[bytes, int] = {
    _SEPARATOR: EventType.SEPARATOR.value,
    _SEPARATOR_ERROR: EventType.SEPARATOR.value,
    b"Calling EFI Application from Boot Option": EventType.EFI_ACTION.value,
    b"Returning from EFI Application from Boot Option": EventType.EFI_ACTION.value,
    b"Exit Boot Services Invocation": EventType.EFI_ACTION.value,
    b"Exit Boot Services Returned with Success": EventType.EFI_ACTION.value,
    b"Exit Boot Services Returned with Failure": EventType.EFI_ACTION.value,
}
"""Contents that only events of one type have: their digests under another type are a forgery."""
_SEPARATOR_WINDOWS = b"WBCL"
_SEPARATED_PCRS = range(8)
"""PCR 0 to 7 belong to the firmware, which closes each with a separator before it starts the operating system."""


@dataclass(frozen=True, slots=True)
class Replay:
    """A log replayed in one bank. `events` are those that extend a PCR, judged; `failures` are in log order."""

    pcrs: Mapping[int, bytes]
    events: tuple[JudgedEvent, ...]
    failures: tuple[Failure, ...]
    separators: Mapping[int, int]
    """Index of the separator of each PCR that has one."""


def replay(log: EventLog, bank: str, hash_of: Hash) -> Replay:
    """`log` replayed in `bank`: values of exactly the PCRs that an event extended.

    Failures: `boot-log-bank-missing` (an event without a digest in this bank), `event-not-allowed` (EV_NO_ACTION with a
    digest, locality that is unknown, repeated or too late, a type outside the closed table, a second, erroneous or
    missing separator, a firmware measurement after it, a text between images that is not a known one, more events in
    one PCR than `MAX_EVENTS_PER_PCR`), `event-type-forged` (a separator's or known action's digest under another type),
    `event-digest-mismatch` (content that is not what was measured).
    """
    walk = _Walk(hash_of, log.startup_locality)
    pcrs, judged_events = walk.pcrs, walk.judged
    for event in log.events:
        if event.type == EV_NO_ACTION or event.pcr == NO_PCR:
            walk.unextended(event)
            continue
        digest = event.digests.get(bank)
        if digest is None:
            walk.fail(ReasonCode.BOOT_LOG_BANK_MISSING, event, "no digest", bank)
            continue
        pcr = event.pcr
        pcrs[pcr] = hash_of((pcrs[pcr] if pcr in pcrs else walk.first_value(pcr)) + digest)
        if walk.is_one_too_many(event):
            continue
        judged = judge(event, digest, hash_of)
        judged_events.append(judged)
        walk.check(judged)
    walk.finish()
    return Replay(pcrs, tuple(judged_events), tuple(walk.failures), walk.separators)


def _is_unknown_text(judged: JudgedEvent) -> bool:
    kind = judged.event.type
    is_text = judged.covered is not None and kind != _EV_SEPARATOR and kind not in IMAGE_TYPES
    return is_text and judged.covered not in BETWEEN_IMAGES


class _Walk:
    """State of one pass over the events."""

    __slots__ = (
        "_counts",
        "_locality",
        "_locality_seen",
        "_typed",
        "_zeros",
        "failures",
        "judged",
        "pcrs",
        "separators",
    )

    def __init__(self, hash_of: Hash, locality: int) -> None:
        self._locality = locality if locality in _LOCALITIES else 0
        self._locality_seen = False
        self._counts: dict[int, int] = {}
        self._zeros = bytes(len(hash_of(b"")))
        self._typed = {hash_of(content): kind for content, kind in _TYPED_CONTENTS.items()}
        self.pcrs: dict[int, bytes] = {}
        self.judged: list[JudgedEvent] = []
        self.failures: list[Failure] = []
        self.separators: dict[int, int] = {}

    def finish(self) -> None:
        if 0 in self.pcrs and 0 not in self.separators:
            # Without it, nothing tells the firmware's measurements from those that anybody made later.
            self.failures.append(Failure(ReasonCode.EVENT_NOT_ALLOWED, "boot.event", "no separator in PCR 0", "one", 0))

    def first_value(self, pcr: int) -> bytes:
        if pcr == 0:
            return self._zeros[:-1] + bytes((self._locality,))
        return b"\xff" * len(self._zeros) if 17 <= pcr <= 22 else self._zeros

    def is_one_too_many(self, event: BootEvent) -> bool:
        """Attack: a log full of small events, of each of which a fact is made, kept and judged."""
        count = self._counts[event.pcr] = self._counts.get(event.pcr, 0) + 1
        limit = MAX_EVENTS_PER_PCR.get(event.pcr, MAX_EVENTS_OF_ANOTHER_PCR)
        if count == limit + 1:
            self.fail(ReasonCode.EVENT_NOT_ALLOWED, event, f"more than {limit} events", f"at most {limit} in this PCR")
        return count > limit

    def unextended(self, event: BootEvent) -> None:
        """EV_NO_ACTION extends nothing, so nothing in it is vouched for and it must not look as if it were."""
        if event.pcr == NO_PCR:
            return
        if any(any(digest) for digest in event.digests.values()):
            self.fail(ReasonCode.EVENT_NOT_ALLOWED, event, "a digest that extends nothing", "zeros")
        locality = claimed_locality(event)
        if locality is None:
            return
        if event.pcr != 0 or locality not in _LOCALITIES or 0 in self.pcrs:
            self.fail(ReasonCode.EVENT_NOT_ALLOWED, event, f"locality {locality}", "0, 3 or 4 before PCR 0 is extended")
        if self._locality_seen:
            # Attack: a second locality, for a parser that takes the last one.
            self.fail(ReasonCode.EVENT_NOT_ALLOWED, event, "a second StartupLocality", "one")
        self._locality_seen = True

    def check(self, judged: JudgedEvent) -> None:
        event = judged.event
        if event.type == _EV_SEPARATOR:
            self._separator(judged)
        elif self._typed.get(judged.digest, event.type) != event.type:
            # Attack: the type is not covered, so a separator or an action could be called something else.
            own = self._typed[judged.digest]
            self.fail(ReasonCode.EVENT_TYPE_FORGED, event, type_name(event.type), type_name(own))
        elif event.pcr == 0 and 0 in self.separators:
            # Attack: root extends PCR 0 with the version that a baseline wants and writes the event to match.
            self.fail(ReasonCode.EVENT_NOT_ALLOWED, event, type_name(event.type), "nothing after the separator")
        allowed = ALLOWED.get(event.pcr)
        if allowed is not None and event.type not in allowed:
            self.fail(ReasonCode.EVENT_NOT_ALLOWED, event, type_name(event.type), "a type that belongs there")
        elif event.pcr == 4 and _is_unknown_text(judged):
            text = f"{type_name(event.type)} {event.content[:60]!r}"
            self.fail(ReasonCode.EVENT_NOT_ALLOWED, event, text, "an image, or a text that is known there")
        if not judged.consistent:
            self.fail(ReasonCode.EVENT_DIGEST_MISMATCH, event, type_name(event.type), "content that was measured")

    def _separator(self, judged: JudgedEvent) -> None:
        event = judged.event
        windows = event.content == _SEPARATOR_WINDOWS and event.pcr not in _SEPARATED_PCRS
        if event.content != _SEPARATOR and not windows:
            self.fail(ReasonCode.EVENT_NOT_ALLOWED, event, f"separator {event.content[:8].hex()}", "00000000")
        if event.pcr in self.separators and event.pcr in _SEPARATED_PCRS:
            self.fail(ReasonCode.EVENT_NOT_ALLOWED, event, "a second separator", "one")
        self.separators.setdefault(event.pcr, event.index)

    def fail(self, code: ReasonCode, event: BootEvent, observed: str, expected: str) -> None:
        if len(self.failures) < MAX_FAILURES:
            self.failures.append(Failure(code, "boot.event", observed, expected, event.pcr, event.index))
