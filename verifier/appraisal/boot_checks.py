"""What the boot log proves, against one version of a baseline. Pure; one small function per rule.

A fact counts only if its PCR replays and a digest covers it; a hint never does. Every rule that finds nothing to judge
fails: an absent measurement is no proof of absence.
"""

from __future__ import annotations

from policies.compiler import CompiledBaseline, CompiledBootSet, CompiledFirmware
from verifier.appraisal.boot_facts import BootFacts, BootFile, BootImage, CommandLine, SecureBootFacts
from verifier.appraisal.command_line import judge_command_line
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure


def judge_boot(facts: BootFacts, replayed: frozenset[int], baseline: CompiledBaseline) -> tuple[Failure, ...]:
    """Why `facts` do not fit `baseline`; empty when they do. `replayed` are the PCRs whose facts may be used.

    The boot set is judged whole: the failures are those of the set that comes closest.
    """
    return (
        *_secure_boot(facts.secure_boot),
        *_authorities(facts.secure_boot, baseline),
        *_dbx(facts.secure_boot, baseline),
        *_firmware(facts, baseline),
        *_boot_sets(facts, replayed, baseline),
    )


def _secure_boot(facts: SecureBootFacts) -> list[Failure]:
    if facts.state == "off":
        return [Failure(ReasonCode.SECURE_BOOT_OFF, "boot.secure_boot", facts.reason, "on", pcr=7)]
    if facts.state == "unknown":
        return [Failure(ReasonCode.SECURE_BOOT_UNKNOWN, "boot.secure_boot", facts.reason, "on", pcr=7)]
    if facts.setup_mode is None:
        seen = "the log does not say"
        return [Failure(ReasonCode.SECURE_BOOT_UNKNOWN, "boot.secure_boot.setup_mode", seen, "off", pcr=7)]
    if facts.setup_mode:
        return [Failure(ReasonCode.SECURE_BOOT_SETUP_MODE, "boot.secure_boot.setup_mode", "on", "off", pcr=7)]
    return []


def _authorities(facts: SecureBootFacts, baseline: CompiledBaseline) -> list[Failure]:
    """Every certificate or hash that let an image start must be listed; settings that shim measures there are not."""
    if baseline.authorities is None:
        return []
    claim = "boot.secure_boot.authority"
    keys = [authority for authority in facts.authorities if authority.kind != "setting"]
    if not keys:
        return [Failure(ReasonCode.SECURE_BOOT_AUTHORITY_UNTRUSTED, claim, "none measured", "a listed one", pcr=7)]
    return [
        Failure(
            ReasonCode.SECURE_BOOT_AUTHORITY_UNTRUSTED,
            claim,
            f"{authority.kind} {authority.sha256} of {authority.variable}",
            "a listed one",
            authority.origin.pcr,
            authority.origin.event_index,
        )
        for authority in keys
        if authority.sha256 not in baseline.authorities or authority.origin.coverage == "hint"
    ]


def _dbx(facts: SecureBootFacts, baseline: CompiledBaseline) -> list[Failure]:
    if not baseline.dbx_required:
        return []
    held = frozenset() if facts.dbx is None else facts.dbx.entries
    missing = sorted(baseline.dbx_required - held)
    if not missing:
        return []
    index = None if facts.dbx is None else facts.dbx.origin.event_index
    seen = f"{len(missing)} of {len(baseline.dbx_required)} missing"
    return [Failure(ReasonCode.SECURE_BOOT_DBX_OUTDATED, "boot.secure_boot.dbx", seen, missing[0], 7, index)]


def _firmware(facts: BootFacts, baseline: CompiledBaseline) -> list[Failure]:
    """One listed build must account for version, every measured volume and every option ROM at once."""
    attempts = [_firmware_entry(facts, entry) for entry in baseline.firmware]
    return min(attempts, key=len)


def _firmware_entry(facts: BootFacts, entry: CompiledFirmware) -> list[Failure]:
    failures: list[Failure] = []
    version, blobs = facts.firmware.crtm_version, facts.firmware.blobs
    claim = "boot.firmware.version"
    if version is None or version.origin.coverage == "hint":
        failures.append(Failure(ReasonCode.FIRMWARE_NOT_ALLOWED, claim, "not measured", entry.version, pcr=0))
    elif version.text != entry.version and version.digest != entry.version_digest:
        seen = f"not covered, digest {version.digest}" if version.text is None else version.text
        index = version.origin.event_index
        failures.append(Failure(ReasonCode.FIRMWARE_NOT_ALLOWED, claim, seen, entry.version, 0, index))
    if not blobs:
        seen = "none measured"
        failures.append(Failure(ReasonCode.FIRMWARE_NOT_ALLOWED, "boot.firmware.blob", seen, "a listed one", pcr=0))
    failures += [
        Failure(
            ReasonCode.FIRMWARE_NOT_ALLOWED,
            "boot.firmware.blob",
            blob.digest,
            "a listed one",
            blob.origin.pcr,
            blob.origin.event_index,
        )
        for blob in blobs
        if blob.digest not in entry.blobs or blob.origin.coverage == "hint"
    ]
    return failures


def _boot_sets(facts: BootFacts, replayed: frozenset[int], baseline: CompiledBaseline) -> list[Failure]:
    attempts = [_boot_set(facts, replayed, boot_set) for boot_set in baseline.boot_sets]
    return min(attempts, key=len)


def _boot_set(facts: BootFacts, replayed: frozenset[int], boot_set: CompiledBootSet) -> list[Failure]:
    return [
        *_chain(facts.images, boot_set),
        *_files(facts.files, replayed, boot_set),
        *_command_lines(facts.command_lines, replayed, boot_set),
    ]


def _chain(images: tuple[BootImage, ...], boot_set: CompiledBootSet) -> list[Failure]:
    """Images and steps must match one to one and in order: an image more is as bad as another image.

    The same image twice running is one step: shim measures a kernel once for itself and once for the firmware.
    """
    chain = [image for image, before in zip(images, (None, *images), strict=False) if _is_new(image, before)]
    failures: list[Failure] = []
    for position, step in enumerate(boot_set.images):
        claim = f"boot.{boot_set.id}.{step.role}"
        if position >= len(chain):
            failures.append(Failure(ReasonCode.BOOT_IMAGE_MISSING, claim, "not measured", "a listed image", pcr=4))
        elif chain[position].digest not in step.digests or chain[position].origin.coverage == "hint":
            failures.append(_image_failure(chain[position], claim))
    failures += [_image_failure(image, f"boot.{boot_set.id}.extra") for image in chain[len(boot_set.images) :]]
    return failures


def _is_new(image: BootImage, before: BootImage | None) -> bool:
    return before is None or image.digest != before.digest


def _image_failure(image: BootImage, claim: str) -> Failure:
    path = "" if image.claimed_path is None else f" (claims {image.claimed_path})"
    origin = image.origin
    return Failure(
        ReasonCode.BOOT_IMAGE_NOT_ALLOWED, claim, image.digest + path, "a listed image", origin.pcr, origin.event_index
    )


def _files(files: tuple[BootFile, ...], replayed: frozenset[int], boot_set: CompiledBootSet) -> list[Failure]:
    if boot_set.files is None:
        return []
    claim = f"boot.{boot_set.id}.file"
    if not files:
        return [Failure(ReasonCode.INITRD_NOT_ALLOWED, claim, "none measured", "a listed one", pcr=9)]
    return [
        Failure(
            ReasonCode.INITRD_NOT_ALLOWED, claim, file.digest, "a listed one", file.origin.pcr, file.origin.event_index
        )
        for file in files
        if file.digest not in boot_set.files or file.origin.coverage == "hint" or file.origin.pcr not in replayed
    ]


def _command_lines(
    lines: tuple[CommandLine, ...], replayed: frozenset[int], boot_set: CompiledBootSet
) -> list[Failure]:
    """Each measured line must fit: which of two the kernel took is not for the log to say."""
    if not lines:
        return [Failure(ReasonCode.CMDLINE_UNKNOWN, "boot.cmdline", "none measured", "a measured command line")]
    failures: list[Failure] = []
    for line in lines:
        if line.origin.pcr not in replayed:
            seen = f"PCR {line.origin.pcr} does not replay"
            failures.append(
                Failure(
                    ReasonCode.CMDLINE_UNKNOWN, "boot.cmdline", seen, None, line.origin.pcr, line.origin.event_index
                )
            )
        else:
            failures += judge_command_line(line, boot_set.command_line)
    return failures
