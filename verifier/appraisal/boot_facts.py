"""What a boot log says, as facts: each with how far a PCR vouches for it.

`covered`: the digest that a PCR holds is of exactly this content. `digest-only`: a PCR holds the digest, and nothing in
the log shows the content. `hint`: nothing vouches for it. A baseline may use the first two; hints (paths, names) are
in fields called `claimed_...` and are for people to read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from verifier.wire.failures import Failure

Coverage = Literal["covered", "digest-only", "hint"]
SecureBootState = Literal["on", "off", "unknown"]
ImageRole = Literal["loader", "kernel", "driver", "image"]
CommandLineSource = Literal["grub", "efi-stub", "systemd-boot", "systemd-stub"]
FileRole = Literal["initrd", "kernel", "config", "other"]


@dataclass(frozen=True, slots=True)
class Origin:
    """The event that a fact was drawn from."""

    pcr: int
    event_index: int
    coverage: Coverage


@dataclass(frozen=True, slots=True)
class KeyDatabase:
    """One Secure Boot variable (PK, KEK, db, dbx) as measured: what it holds, apart from its order and owners."""

    certificates: frozenset[str]
    """SHA-256 (hex) of each DER certificate."""
    hashes: frozenset[str]
    """Image or certificate hashes (hex) as the variable lists them."""
    origin: Origin

    @property
    def entries(self) -> frozenset[str]:
        return self.certificates | self.hashes


@dataclass(frozen=True, slots=True)
class Authority:
    """What allowed an image to run: `sha256` is of the certificate (or hash) that EV_EFI_VARIABLE_AUTHORITY names.

    `variable` is the database that held it (`db`, `Shim`, `MokList`, ...); it is covered like the value. `sha256` is of
    the certificate, of the value where it is none, or the image hash that `db` lists. `kind` is `setting` for shim's
    own settings alone (`SbatLevel`, `MokListTrusted`, `MokSBState`), which allow no image.
    """

    variable: str
    kind: Literal["certificate", "hash", "setting"]
    sha256: str
    origin: Origin


@dataclass(frozen=True, slots=True)
class SecureBootFacts:
    """Secure Boot as PCR 7 shows it. `unknown` is neither on nor off, and `reason` says why it is what it is."""

    state: SecureBootState
    reason: str
    setup_mode: bool | None
    """True with an empty PK (anybody may enrol keys); None where the log does not say."""
    pk: KeyDatabase | None
    kek: KeyDatabase | None
    db: KeyDatabase | None
    dbx: KeyDatabase | None
    authorities: tuple[Authority, ...]
    sbat_level: str | None
    """shim's minimum generations (text of SbatLevel), covered; None where shim did not measure it."""
    dma_protection_disabled: bool
    """The firmware measured that it turned DMA protection off."""
    shim_validation_off: Origin | None
    """Where shim measured that it starts images without checking them (MokSBState other than 0)."""


@dataclass(frozen=True, slots=True)
class CrtmVersion:
    """EV_S_CRTM_VERSION: `text` is the decoded version, None where the event's data is not what was measured."""

    text: str | None
    digest: str
    origin: Origin


@dataclass(frozen=True, slots=True)
class FirmwareBlob:
    """A measurement of PCR 0 or 2 (option ROMs), by digest in the bank's algorithm (hex).

    Every measurement of PCR 0 but version and separator is here, whatever its type, so that a set of allowed digests
    leaves nothing out.
    """

    digest: str
    event_type: str
    origin: Origin
    claimed_name: str | None


@dataclass(frozen=True, slots=True)
class FirmwareFacts:
    """What runs before the boot loader."""

    crtm_version: CrtmVersion | None
    blobs: tuple[FirmwareBlob, ...]


@dataclass(frozen=True, slots=True)
class BootImage:
    """A PE image that the firmware or a loader started (PCR 4): its Authenticode digest in the bank's algorithm (hex).

    `role` is guessed from the order in PCR 4, and `claimed_path` is a hint: a baseline matches every digest here, and
    says itself which of them are kernels.
    """

    digest: str
    role: ImageRole
    origin: Origin
    claimed_path: str | None


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A kernel command line that was measured. `text` is None where the log shows only its digest.

    Every one in the log must satisfy a rule, not only the last: whoever runs later can append another, and can remove
    none. In PCR 9 only the log's word says that a digest is of a command line, so such a fact is `covered` only where
    a GRUB command (PCR 8) gives the same text.
    """

    text: str | None
    digest: str
    source: CommandLineSource
    origin: Origin

    @property
    def arguments(self) -> str | None:
        """The kernel's arguments: `text` without the image path that GRUB measures in front, or None."""
        if self.text is None or self.source != "grub":
            return self.text
        return self.text.partition(" ")[2]


@dataclass(frozen=True, slots=True)
class BootFile:
    """A file or blob that a loader read (PCR 9): digest of its content in the bank's algorithm (hex).

    Name and role are hints: a rule about initrds must account for every digest here, or renaming one would hide it.
    """

    digest: str
    claimed_role: FileRole
    claimed_name: str | None
    origin: Origin


@dataclass(frozen=True, slots=True)
class StubSection:
    """A section of a unified kernel image as systemd-stub measured it (PCR 11): the name is covered."""

    name: str
    digest: str
    origin: Origin


@dataclass(frozen=True, slots=True)
class LoaderCommand:
    """A GRUB command: text that PCR 8 covers, and the index of its event.

    A `menuentry` or `function` is one command with its body as text: a definition, which runs nothing. What runs of it
    is measured as commands of its own.
    """

    text: str
    event_index: int


@dataclass(frozen=True, slots=True)
class MokMeasurement:
    """What shim measured in PCR 14: MokList, MokListX and its settings, by digest. The name is a hint."""

    digest: str
    claimed_name: str | None
    origin: Origin


@dataclass(frozen=True, slots=True)
class BootFacts:
    """All facts of one boot, in log order. Empty tuples mean that the log shows none, never that none is needed.

    A fact counts only if the quote covers the PCR in its origin.
    """

    secure_boot: SecureBootFacts
    firmware: FirmwareFacts
    images: tuple[BootImage, ...]
    command_lines: tuple[CommandLine, ...]
    files: tuple[BootFile, ...]
    stub_sections: tuple[StubSection, ...]
    loader_commands: tuple[LoaderCommand, ...]
    mok: tuple[MokMeasurement, ...]


@dataclass(frozen=True, slots=True, weakref_slot=True)
class MeasuredBoot:
    """A boot log, replayed in one bank, with its facts. A pure function of (log, bank), so it may be cached by those.

    The facts hold only if `failures` is empty and `pcrs` equal the PCR values that a verified quote covers.
    """

    log_sha256: bytes
    size: int
    bank: str
    pcrs: Mapping[int, bytes]
    """Replayed values of the PCRs that an event extended, and no others."""
    facts: BootFacts
    failures: tuple[Failure, ...]
    """Why the facts cannot be believed: contradictions between type, content and digest, in log order."""
