"""What the boot log proves, against one version of a baseline. Pure; one small function per rule.

A fact counts only if its PCR replays and a digest covers it; a hint never does. Every rule that finds nothing to judge
fails: an absent measurement is no proof of absence. Each rule is a generator, so that a hostile log stops costing once
enough of it has failed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice

from policies.compiler import CompiledBaseline, CompiledBootSet, CompiledFirmware
from verifier.appraisal.boot_facts import BootFacts, BootFile, BootImage, MokMeasurement, SecureBootFacts
from verifier.appraisal.command_line import ReadCommandLine, judge_command_line, read_command_line
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure, printable

MAX_FAILURES = 64
"""Looked for: a hostile log may hold thousands of images that fail; a result carries the first."""
_MOK_PCR = 14


def judge_boot(facts: BootFacts, usable: frozenset[int], baseline: CompiledBaseline) -> tuple[Failure, ...]:
    """Why `facts` do not fit `baseline`, at most `MAX_FAILURES`; empty when they do.

    `usable` are the PCRs whose facts count: the baseline requires them, and the log accounts for their quoted values.
    The boot set is judged whole: the failures are those of the set that comes closest.
    """
    return tuple(
        islice(
            chain(
                _secure_boot(facts.secure_boot),
                _authorities(facts.secure_boot, baseline),
                _dbx(facts.secure_boot, baseline),
                _firmware(facts, baseline),
                _boot_sets(facts, usable, baseline),
            ),
            MAX_FAILURES,
        )
    )


def _secure_boot(facts: SecureBootFacts) -> Iterator[Failure]:
    claim = "boot.secure_boot"
    if facts.state == "off":
        yield Failure(ReasonCode.SECURE_BOOT_OFF, claim, facts.reason, "on", pcr=7)
    elif facts.state == "unknown":
        yield Failure(ReasonCode.SECURE_BOOT_UNKNOWN, claim, facts.reason, "on", pcr=7)
    elif facts.setup_mode is None:
        yield Failure(ReasonCode.SECURE_BOOT_UNKNOWN, f"{claim}.setup_mode", "the log does not say", "off", pcr=7)
    elif facts.setup_mode:
        yield Failure(ReasonCode.SECURE_BOOT_SETUP_MODE, f"{claim}.setup_mode", "on", "off", pcr=7)
    where = facts.shim_validation_off
    if where is not None:
        # Attack: Secure Boot stays on in the firmware, and shim starts what nobody signed; kernels do not lock down.
        code = ReasonCode.SECURE_BOOT_SHIM_VALIDATION_OFF
        yield Failure(code, f"{claim}.shim", "MokSBState is not 0", "validation on", where.pcr, where.event_index)


def _authorities(facts: SecureBootFacts, baseline: CompiledBaseline) -> Iterator[Failure]:
    """Every certificate or hash that let an image start must be listed; shim's own settings let none start."""
    if baseline.authorities is None:
        return
    code, claim = ReasonCode.SECURE_BOOT_AUTHORITY_UNTRUSTED, "boot.secure_boot.authority"
    keys = [authority for authority in facts.authorities if authority.kind != "setting"]
    if not keys:
        yield Failure(code, claim, "none measured", "a listed one", pcr=7)
    for authority in keys:
        if authority.sha256 not in baseline.authorities or authority.origin.coverage == "hint":
            seen = f"{authority.kind} {authority.sha256} of {printable(authority.variable)}"
            yield Failure(code, claim, seen, "a listed one", authority.origin.pcr, authority.origin.event_index)


def _dbx(facts: SecureBootFacts, baseline: CompiledBaseline) -> Iterator[Failure]:
    held = frozenset() if facts.dbx is None else facts.dbx.entries
    missing = sorted(baseline.dbx_required - held)
    if missing:
        index = None if facts.dbx is None else facts.dbx.origin.event_index
        seen = f"{len(missing)} of {len(baseline.dbx_required)} missing"
        yield Failure(ReasonCode.SECURE_BOOT_DBX_OUTDATED, "boot.secure_boot.dbx", seen, missing[0], 7, index)


def _closest(attempts: Iterator[Iterator[Failure]]) -> list[Failure]:
    """The shortest list of failures; an attempt is not followed beyond the best before it."""
    best: list[Failure] | None = None
    for attempt in attempts:
        failures = list(islice(attempt, MAX_FAILURES if best is None else len(best)))
        if best is None or len(failures) < len(best):
            best = failures
        if not best:
            break
    if best is None:
        raise ValueError("a baseline allows something")
    return best


def _firmware(facts: BootFacts, baseline: CompiledBaseline) -> list[Failure]:
    """One listed build must account for version, every measured volume and every option ROM at once."""
    return _closest(_firmware_entry(facts, entry) for entry in baseline.firmware)


def _firmware_entry(facts: BootFacts, entry: CompiledFirmware) -> Iterator[Failure]:
    version, blobs = facts.firmware.crtm_version, facts.firmware.blobs
    code, claim = ReasonCode.FIRMWARE_NOT_ALLOWED, "boot.firmware.version"
    if version is None or version.origin.coverage == "hint":
        yield Failure(code, claim, "not measured", entry.version, pcr=0)
    elif version.text != entry.version and version.digest != entry.version_digest:
        seen = f"not covered, digest {version.digest}" if version.text is None else printable(version.text)
        yield Failure(code, claim, seen, entry.version, 0, version.origin.event_index)
    claim = "boot.firmware.blob"
    if not blobs:
        yield Failure(code, claim, "none measured", "a listed one", pcr=0)
    for blob in blobs:
        if blob.digest not in entry.blobs or blob.origin.coverage == "hint":
            yield Failure(code, claim, blob.digest, "a listed one", blob.origin.pcr, blob.origin.event_index)


def _boot_sets(facts: BootFacts, usable: frozenset[int], baseline: CompiledBaseline) -> list[Failure]:
    lines = [read_command_line(line) for line in facts.command_lines]
    return _closest(
        chain(
            _chain(facts.images, boot_set),
            _files(facts.files, usable, boot_set),
            _mok(facts.mok, usable, boot_set),
            _command_lines(lines, usable, boot_set),
        )
        for boot_set in baseline.boot_sets
    )


def _chain(images: tuple[BootImage, ...], boot_set: CompiledBootSet) -> Iterator[Failure]:
    """Images and steps must match one to one and in order: an image more is as bad as another image.

    The same image twice running is one step: shim measures a kernel once for itself and once for the firmware.
    """
    started = [image for image, before in zip(images, (None, *images), strict=False) if _is_new(image, before)]
    for position, step in enumerate(boot_set.images):
        claim = f"boot.{boot_set.id}.{step.role}"
        if position >= len(started):
            yield Failure(ReasonCode.BOOT_IMAGE_MISSING, claim, "not measured", "a listed image", pcr=4)
        elif started[position].digest not in step.digests or started[position].origin.coverage == "hint":
            yield _image_failure(started[position], claim)
    for image in started[len(boot_set.images) :]:
        yield _image_failure(image, f"boot.{boot_set.id}.extra")


def _is_new(image: BootImage, before: BootImage | None) -> bool:
    return before is None or image.digest != before.digest


def _image_failure(image: BootImage, claim: str) -> Failure:
    seen = image.digest + _claims(image.claimed_path)
    origin = image.origin
    return Failure(ReasonCode.BOOT_IMAGE_NOT_ALLOWED, claim, seen, "a listed image", origin.pcr, origin.event_index)


def _claims(name: str | None) -> str:
    return "" if name is None else f" (claims {printable(name)})"


def _files(files: tuple[BootFile, ...], usable: frozenset[int], boot_set: CompiledBootSet) -> Iterator[Failure]:
    if boot_set.files is None:
        return
    code, claim = ReasonCode.BOOT_FILE_NOT_ALLOWED, f"boot.{boot_set.id}.file"
    if not files:
        yield Failure(code, claim, "none measured", "a listed one", pcr=9)
    for file in files:
        if file.digest not in boot_set.files or file.origin.coverage == "hint" or file.origin.pcr not in usable:
            seen = file.digest + _claims(file.claimed_name)
            yield Failure(code, claim, seen, "a listed one", file.origin.pcr, file.origin.event_index)


def _mok(found: tuple[MokMeasurement, ...], usable: frozenset[int], boot_set: CompiledBootSet) -> Iterator[Failure]:
    """What shim measures of itself, all and in order: the kernel trusts the keys in it for modules and kexec.

    Attack: MokListTrusted and MokSBState may both be 1 and have one digest, and the log's names are hints. So their
    number counts; and MokSBState is in PCR 7 with its name, where `_secure_boot` looks.
    """
    code, claim = ReasonCode.MOK_NOT_ALLOWED, f"boot.{boot_set.id}.mok"
    if _MOK_PCR not in usable:
        yield Failure(code, claim, f"PCR {_MOK_PCR} is not required, or does not replay", pcr=_MOK_PCR)
        return
    for position, wanted in enumerate(boot_set.mok):
        if position >= len(found):
            yield Failure(code, claim, "not measured", wanted, pcr=_MOK_PCR)
        elif found[position].digest != wanted:
            yield _mok_failure(found[position], claim, wanted)
    for measurement in found[len(boot_set.mok) :]:
        yield _mok_failure(measurement, claim, "nothing more")


def _mok_failure(measurement: MokMeasurement, claim: str, wanted: str) -> Failure:
    seen, origin = measurement.digest + _claims(measurement.claimed_name), measurement.origin
    return Failure(ReasonCode.MOK_NOT_ALLOWED, claim, seen, wanted, origin.pcr, origin.event_index)


def _command_lines(
    lines: Sequence[ReadCommandLine], usable: frozenset[int], boot_set: CompiledBootSet
) -> Iterator[Failure]:
    """Each measured line must fit: which of two the kernel took is not for the log to say."""
    code, claim = ReasonCode.CMDLINE_UNKNOWN, "boot.cmdline"
    if not lines:
        yield Failure(code, claim, "none measured", "a measured command line")
    for read in lines:
        origin = read.line.origin
        if origin.pcr not in usable:
            seen = f"PCR {origin.pcr} is not required, or does not replay"
            yield Failure(code, claim, seen, None, origin.pcr, origin.event_index)
        else:
            yield from judge_command_line(read, boot_set.command_line)
