"""A first draft of a baseline from evidence that verified: every fact with the event that it comes from.

A draft says what was there, not what should be. So it leaves out what only a person can say, marked FILL, and does not
load until that is filled in.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from policies.kernel_arguments import split_command_line
from policies.lint import FILES_PCR, LOCKDOWN, MAX_VALIDITY_SECONDS, SHIM_PCR, STUB_PCRS
from policies.loader import PLACEHOLDER as FILL
from verifier.appraisal.boot_facts import BootFacts, CommandLine, Origin
from verifier.appraisal.verify import FIRMWARE_PCRS, VerifiedBundle
from verifier.wire.challenge import DEFAULT_PCRS
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Rejection
from verifier.wire.messages import format_time

_DRAFT_VALIDITY_SECONDS = MAX_VALIDITY_SECONDS // 2


@dataclass(frozen=True, slots=True)
class Observed:
    """Verified evidence and where it came from, for the comments."""

    source: str
    verified: VerifiedBundle

    @property
    def facts(self) -> BootFacts:
        return self.verified.boot.facts


@dataclass(frozen=True, slots=True)
class _Fact:
    """A value and the events that showed it."""

    value: str
    origin: str


def draft_baseline(observed: tuple[Observed, ...], name: str, version: str, now: int) -> str:
    """The YAML of a draft that, once filled in, accepts each of `observed` as one coherent set.

    Raises Rejection where no baseline could accept one: `secure-boot-off`, `secure-boot-unknown`, `cmdline-unknown`,
    `cmdline-argument-not-allowed` (an argument that readers split differently), `boot-image-missing`,
    `firmware-not-allowed` (nothing measured), `pcr-selection-mismatch` (another bank, or too few PCRs).
    """
    if not observed:
        raise ValueError("a draft needs evidence")
    for one in observed:
        _require_usable(one, observed[0].verified.boot.bank)
    nodes = [one.verified.authentic.node for one in observed]
    endorsed = all(node.endorsement.chain == "verified" for node in nodes)
    makers = sorted({node.endorsement.manufacturer for node in nodes if node.endorsement.manufacturer is not None})
    lines = [
        f"# Draft from {_comment(', '.join(one.source for one in observed))}.",
        f"# Replace every {FILL}, then run policy lint.",
        "apiVersion: nodewarden.dev/v1",
        "kind: Baseline",
        "metadata:",
        f"  name: {_text(name)}",
        f"  version: {_text(version)}",
        f"  summary: {FILL} # what this version is for",
        f"  notBefore: {_text(_utc(now))}",
        f"  expires: {_text(_utc(now + _DRAFT_VALIDITY_SECONDS))}",
        "appliesTo:",
        f"  tenants: [{FILL}] # from the inventory",
        f"  cohorts: [{FILL}]",
        "evidence:",
        "  maxAgeSeconds: 300",
        f"  pcrBank: {observed[0].verified.boot.bank}",
        f"  requirePcrReplay: {_required_pcrs(observed)}",
        "tpm:",
        f"  ekChain: {'required' if endorsed else 'inventory'}",
    ]
    if endorsed and makers:
        lines.append(f"  manufacturers: [{', '.join('{id: ' + _text(maker) + '}' for maker in makers)}]")
    lines += ["secureBoot:", "  enabled: required", "  setupMode: forbidden"]
    authorities = _authorities(observed)
    if authorities:
        lines += ["  authorities:", *_list(authorities, 4)]
    lines += ["  # dbxRequired is not drafted: list the revocations that you rely on.", "firmware:", "  allow:"]
    lines += _firmware(observed)
    lines.append("bootSets:")
    lines += _boot_sets(observed)
    return "\n".join(lines) + "\n"


def _require_usable(one: Observed, bank: str) -> None:
    facts = one.facts
    if facts.secure_boot.state != "on":
        code = ReasonCode.SECURE_BOOT_OFF if facts.secure_boot.state == "off" else ReasonCode.SECURE_BOOT_UNKNOWN
        raise Rejection(code, one.source, facts.secure_boot.reason, "on", pcr=7)
    if facts.firmware.crtm_version is None or not facts.firmware.blobs:
        raise Rejection(ReasonCode.FIRMWARE_NOT_ALLOWED, one.source, "no firmware measured", None, pcr=0)
    if not facts.images:
        raise Rejection(ReasonCode.BOOT_IMAGE_MISSING, one.source, "no image measured", None, pcr=4)
    if not facts.command_lines:
        raise Rejection(ReasonCode.CMDLINE_UNKNOWN, one.source, "no command line measured")
    if one.verified.boot.bank != bank or not one.verified.authentic.pcrs.keys() >= FIRMWARE_PCRS:
        seen = f"{one.verified.boot.bank} {sorted(one.verified.authentic.pcrs)}"
        raise Rejection(ReasonCode.PCR_SELECTION_MISMATCH, one.source, seen, f"{bank}, PCRs 0 to 7 at least")


def _required_pcrs(observed: tuple[Observed, ...]) -> str:
    wanted = {*DEFAULT_PCRS, FILES_PCR, SHIM_PCR}
    for one in observed:
        wanted |= {line.origin.pcr for line in one.facts.command_lines}
        if len({image.digest for image in one.facts.images}) == 1 or any(
            line.text is None or line.origin.coverage != "covered" for line in one.facts.command_lines
        ):
            wanted |= STUB_PCRS
    for one in observed:
        wanted &= one.verified.replayed
    return json.dumps(sorted(wanted))


def _authorities(observed: tuple[Observed, ...]) -> list[_Fact]:
    return _distinct(
        _Fact(authority.sha256, f"{authority.variable}, {_where(one, authority.origin)}")
        for one in observed
        for authority in one.facts.secure_boot.authorities
        if authority.kind != "setting"
    )


def _firmware(observed: tuple[Observed, ...]) -> list[str]:
    """One entry for each firmware that was seen."""
    entries: dict[tuple[str, ...], list[str]] = {}
    for one in observed:
        version = one.facts.firmware.crtm_version
        if version is None:
            continue  # Refused before.
        blobs = _distinct(
            _Fact(blob.digest, f"{blob.event_type}, {_where(one, blob.origin)}") for blob in one.facts.firmware.blobs
        )
        text = FILL if version.text is None else version.text
        key = (text, version.digest, *sorted(blob.value for blob in blobs))
        lines = [f"    - version: {_text(text)} # {_comment(_where(one, version.origin))}"]
        if version.text is None:
            lines.append(f"      versionDigest: {_text(version.digest)} # the log's text is not what was measured")
        entries.setdefault(key, [*lines, "      blobs:", *_list(blobs, 8)])
    return [line for lines in entries.values() for line in lines]


def _boot_sets(observed: tuple[Observed, ...]) -> list[str]:
    """One set for each combination of images, files and command line that was seen: never a mixture of two."""
    sets: dict[tuple[object, ...], list[str]] = {}
    for one in observed:
        facts = one.facts
        images = [i for i, before in zip(facts.images, (None, *facts.images), strict=False) if i != before]
        chain = [image for k, image in enumerate(images) if k == 0 or image.digest != images[k - 1].digest]
        files = _distinct(
            _Fact(file.digest, f"{file.claimed_name or file.claimed_role}, {_where(one, file.origin)}")
            for file in facts.files
            if file.origin.pcr in one.verified.replayed
        )
        mok = [_Fact(m.digest, f"{m.claimed_name or 'no name'}, {_where(one, m.origin)}") for m in facts.mok]
        command_line = _command_line(one)
        key = (
            tuple(i.digest for i in chain),
            tuple(sorted(f.value for f in files)),
            tuple(m.value for m in mok),
            tuple(command_line),
        )
        if key in sets:
            continue
        lines = [f"  - id: boot-{len(sets) + 1}", "    images:"]
        for position, image in enumerate(chain):
            role = "kernel" if position == len(chain) - 1 else "loader"
            origin = _comment(f"{image.claimed_path or 'no path'}, {_where(one, image.origin)}")
            lines.append(f"      - {{role: {role}, authenticode: [{_text(image.digest)}]}} # {origin}")
        if files:
            lines += ["    files:", *_list(files, 6)]
        if mok:
            lines += ["    mok: # what shim measures of itself, in order", *_list(mok, 6)]
        lines += ["    cmdline:", *command_line]
        lines.append(f"    lockdown: {FILL} # cmdline (an argument above locks down) or kernel (these kernels do)")
        sets[key] = lines
    return [line for lines in sets.values() for line in lines]


def _command_line(one: Observed) -> list[str]:
    require: list[_Fact] = []
    allow: list[_Fact] = []
    digests: list[_Fact] = []
    grub = False
    for line in one.facts.command_lines:
        where = _where(one, line.origin)
        if line.text is None or line.origin.coverage != "covered":
            if line.origin.pcr not in one.verified.replayed:
                raise Rejection(ReasonCode.CMDLINE_UNKNOWN, one.source, "the quote does not cover it", None)
            digests.append(_Fact(line.digest, f"{line.source}, {where}"))
            continue
        grub = grub or line.source == "grub"
        for argument, text, plain in _arguments(line):
            if not plain:
                raise Rejection(ReasonCode.CMDLINE_ARGUMENT_NOT_ALLOWED, one.source, text, "plain arguments")
            (require if argument in LOCKDOWN else allow).append(_Fact(text, f"{line.source}, {where}"))
    lines: list[str] = []
    for key, facts in (("require", require), ("allow", allow), ("digests", digests)):
        if facts:
            lines += [f"      {key}:", *_list(_distinct(facts), 8)]
    if grub:
        lines.append("      ignoreKeys: [BOOT_IMAGE] # the kernel's path, which GRUB puts in front")
    return lines


def _arguments(line: CommandLine) -> list[tuple[tuple[str, str | None], str, bool]]:
    arguments = split_command_line(line.text or "")
    if line.source == "grub":
        arguments = arguments[1:]
    return [(argument.same_as, argument.text, argument.plain) for argument in arguments]


def _where(one: Observed, origin: Origin) -> str:
    return f"{one.source} event {origin.event_index} PCR {origin.pcr} ({origin.coverage})"


def _distinct(facts: Iterable[_Fact]) -> list[_Fact]:
    found: dict[str, _Fact] = {}
    for fact in facts:
        found.setdefault(fact.value, fact)
    return list(found.values())


def _list(facts: list[_Fact], indent: int) -> list[str]:
    return [f"{' ' * indent}- {_text(fact.value)} # {_comment(fact.origin)}" for fact in facts]


def _text(value: str) -> str:
    """A quoted YAML scalar: JSON strings are YAML."""
    return json.dumps(value)


def _comment(text: str) -> str:
    """Attack: a file name with a line break, which would end the comment and add a line to the baseline."""
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in text)[:160]


def _utc(seconds: int) -> str:
    return format_time(datetime.fromtimestamp(seconds, UTC))
