"""Firmware facts: the CRTM's version text and every other measurement of the platform's code, by digest."""

from __future__ import annotations

from collections.abc import Sequence

from verifier.appraisal.boot_facts import CrtmVersion, FirmwareBlob, FirmwareFacts, Origin
from verifier.appraisal.coverage import JudgedEvent
from verifier.appraisal.event_types import IMAGE_TYPES, EventType, type_name
from verifier.evidence.uefi import image_path
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure

_CODE_PCRS = frozenset({0, 2})


def firmware_facts(events: Sequence[JudgedEvent]) -> tuple[FirmwareFacts, tuple[Failure, ...]]:
    """Version and blobs of PCR 0, and option ROMs and drivers of PCR 2.

    Everything in these PCRs but version and separator is a blob, whatever its type says: relabelling one hides nothing
    from a baseline that lists blobs. A second version is `event-not-allowed`.
    """
    version: CrtmVersion | None = None
    blobs: list[FirmwareBlob] = []
    failures: list[Failure] = []
    for judged in events:
        event = judged.event
        if event.pcr not in _CODE_PCRS or event.type == EventType.SEPARATOR:
            continue
        origin = Origin(event.pcr, event.index, judged.coverage)
        if event.type == EventType.S_CRTM_VERSION and event.pcr == 0:
            if version is not None:
                failures.append(
                    Failure(
                        ReasonCode.EVENT_NOT_ALLOWED,
                        "boot.firmware",
                        "a second EV_S_CRTM_VERSION",
                        "one",
                        0,
                        event.index,
                    )
                )
                continue
            text = None if judged.covered is None else version_text(judged.covered)
            version = CrtmVersion(text, judged.digest.hex(), origin)
        else:
            name = image_path(event.content) if event.type in IMAGE_TYPES else _blob_name(event.content)
            blobs.append(FirmwareBlob(judged.digest.hex(), type_name(event.type), origin, name))
    return FirmwareFacts(version, tuple(blobs)), tuple(failures)


def version_text(content: bytes) -> str:
    """A version as text: UTF-16 or ASCII with its NUL removed, or `hex:` and the bytes where it is neither.

    Distinct contents may give one text only by trailing NULs; OVMF's version is the empty text.
    """
    for encoding in ("utf-16-le", "ascii"):
        try:
            text = content.decode(encoding).rstrip("\0")
        except UnicodeDecodeError:
            continue
        # A GUID is valid UTF-16 by chance: only plain ASCII counts as text.
        if text.isascii() and (text.isprintable() or not text):
            return text
    return f"hex:{content.hex()}"


def _blob_name(content: bytes) -> str | None:
    text = content.rstrip(b"\0")
    return text.decode("ascii") if text.isascii() and text.decode("ascii").isprintable() and len(text) > 3 else None
