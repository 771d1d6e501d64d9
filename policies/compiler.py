"""A baseline in the form that judges: canonical bytes, their digest, and its rules as sets.

Same meaning, same digest: lists that are sets are sorted, and the JSON is RFC 8785 (keys and all but `summary` and
firmware versions are ASCII; there are no numbers but integers). Everything that does not depend on evidence is worked
out here, once.
"""

from __future__ import annotations

import hashlib
import json
from calendar import timegm
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from policies.kernel_arguments import KernelArgument
from policies.schema import Baseline, BootSet, CommandLineRule, Firmware, parsed


@dataclass(frozen=True, slots=True)
class CompiledCommandLine:
    """The closed grammar of one boot set; `digests` are of whole lines that the log shows by digest only."""

    required: tuple[KernelArgument, ...]
    allowed: frozenset[tuple[str, str | None]]
    """Required and allowed arguments, as `KernelArgument.same_as`."""
    ignored_keys: frozenset[str]
    forbidden: Mapping[tuple[str, str | None], str]
    """What is forbidden, by `same_as`: an entry without value bars its key. As written."""
    digests: frozenset[str]


@dataclass(frozen=True, slots=True)
class CompiledImage:
    """One step of a chain: any of these Authenticode digests."""

    role: str
    digests: frozenset[str]


@dataclass(frozen=True, slots=True)
class CompiledBootSet:
    """One coherent chain. `files` is None where the baseline does not judge them; `mok` is empty without shim."""

    id: str
    images: tuple[CompiledImage, ...]
    files: frozenset[str] | None
    mok: tuple[str, ...]
    command_line: CompiledCommandLine


@dataclass(frozen=True, slots=True)
class CompiledFirmware:
    """One firmware build. `version_digest` stands for the version where the log's text is not what was measured."""

    version: str
    version_digest: str | None
    blobs: frozenset[str]


@dataclass(frozen=True, slots=True)
class CompiledNames:
    """Names to match: whole ones, and prefixes (patterns without their `*`)."""

    whole: frozenset[str]
    prefixes: tuple[str, ...]

    def match(self, name: str) -> bool:
        """Whether `name` is one of the whole names or begins with one of the prefixes."""
        return name in self.whole or name.startswith(self.prefixes)

    def example(self) -> str:
        """A name that matches."""
        return min(self.whole) if self.whole else self.prefixes[0]


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class CompiledBaseline:
    """One version, ready to judge. Times are seconds since 1970; compared by identity (`sha256` says sameness)."""

    name: str
    version: str
    sha256: str
    canonical: bytes
    not_before: int
    expires: int
    tenants: CompiledNames
    cohorts: CompiledNames
    max_age_seconds: int
    pcr_bank: str
    required_pcrs: frozenset[int]
    manufacturers: frozenset[str] | None
    ek_chain_required: bool
    authorities: frozenset[str] | None
    dbx_required: frozenset[str]
    firmware: tuple[CompiledFirmware, ...]
    boot_sets: tuple[CompiledBootSet, ...]

    def applies_to(self, tenant: str, cohort: str) -> bool:
        """Whether this baseline may judge a node of `tenant` and `cohort` (exact, or a prefix before `*`)."""
        return self.tenants.match(tenant) and self.cohorts.match(cohort)


def compile_baseline(baseline: Baseline) -> CompiledBaseline:
    """`baseline` with its canonical JSON and that JSON's SHA-256; deterministic."""
    canonical = _canonical(baseline)
    metadata, evidence, tpm, secure_boot = baseline.metadata, baseline.evidence, baseline.tpm, baseline.secure_boot
    return CompiledBaseline(
        name=metadata.name,
        version=metadata.version,
        sha256=hashlib.sha256(canonical).hexdigest(),
        canonical=canonical,
        not_before=seconds(metadata.not_before),
        expires=seconds(metadata.expires),
        tenants=_names(baseline.applies_to.tenants),
        cohorts=_names(baseline.applies_to.cohorts),
        max_age_seconds=evidence.max_age_seconds,
        pcr_bank=evidence.pcr_bank,
        required_pcrs=frozenset(evidence.require_pcr_replay),
        manufacturers=None
        if tpm.manufacturers is None
        else frozenset(manufacturer_text(entry.id) for entry in tpm.manufacturers),
        ek_chain_required=tpm.ek_chain == "required",
        authorities=None if secure_boot.authorities is None else frozenset(secure_boot.authorities),
        dbx_required=frozenset(secure_boot.dbx_required or ()),
        firmware=tuple(_firmware(entry) for entry in baseline.firmware.allow),
        boot_sets=tuple(_boot_set(entry) for entry in baseline.boot_sets),
    )


def seconds(text: str) -> int:
    """Seconds since 1970 of a time that the schema accepted."""
    return timegm(datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").timetuple())  # noqa: DTZ007 - the form says UTC


def manufacturer_text(identifier: str) -> str:
    """A TCG vendor id in its one spelling: `494E5443` and `INTC` are `INTC`, `49465800` and `IFX` are `IFX`.

    An id that is no text (swtpm's `00001014`) stays eight upper-case hex digits.
    """
    if len(identifier) == 8:
        text = bytes.fromhex(identifier).decode("latin-1").rstrip("\0 ")
        identifier = text if text.isascii() and text.isprintable() and text else identifier.upper()
    return identifier.rstrip(" ")


def _names(patterns: tuple[str, ...]) -> CompiledNames:
    prefixes = tuple(pattern[:-1] for pattern in patterns if pattern.endswith("*"))
    return CompiledNames(frozenset(name for name in patterns if not name.endswith("*")), prefixes)


def _firmware(entry: Firmware) -> CompiledFirmware:
    return CompiledFirmware(entry.version, entry.version_digest, frozenset(entry.blobs))


def _boot_set(entry: BootSet) -> CompiledBootSet:
    images = tuple(CompiledImage(image.role, frozenset(image.authenticode)) for image in entry.images)
    files = None if entry.files is None else frozenset(entry.files)
    return CompiledBootSet(entry.id, images, files, entry.mok or (), _command_line(entry.cmdline))


def _command_line(rule: CommandLineRule) -> CompiledCommandLine:
    required = parsed(rule.require)
    return CompiledCommandLine(
        required=required,
        allowed=frozenset(argument.same_as for argument in (*required, *parsed(rule.allow))),
        ignored_keys=frozenset(argument.key for argument in parsed(rule.ignore_keys)),
        forbidden={argument.same_as: argument.text for argument in parsed(rule.forbid)},
        digests=frozenset(rule.digests or ()),
    )


_ORDERED = frozenset({"images", "mok"})
"""The lists whose order means something: the boot chain, and what shim measures of itself."""


def _canonical(baseline: Baseline) -> bytes:
    document = _sorted(baseline.model_dump(mode="json", by_alias=True, exclude_none=True), "")
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _sorted(value: Any, key: str) -> Any:
    """`value` with every list that is a set in the order of its elements' own canonical JSON."""
    if isinstance(value, dict):
        return {name: _sorted(child, name) for name, child in value.items()}
    if isinstance(value, list):
        children = [_sorted(child, "") for child in value]
        if key in _ORDERED:
            return children
        return sorted(
            children, key=lambda child: child if isinstance(child, int) else json.dumps(child, sort_keys=True)
        )
    return value
