"""What boot loaders measured: images (PCR 4), GRUB's commands and files (PCR 8, 9), EFI stub and systemd-stub.

Sources: GRUB 2.12 `grub-core/commands/tpm.c` and `grub-core/kern/efi/tpm.c`; Linux `drivers/firmware/efi/libstub`
(tags 0x8F3B22EC initrd, 0x8F3B22ED LoadOptions); systemd-stub(7) for PCR 11 and 12. Names and paths are hints.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from verifier.appraisal.boot_facts import (
    BootFile,
    BootImage,
    CommandLine,
    CommandLineSource,
    FileRole,
    ImageRole,
    LoaderCommand,
    Origin,
    StubSection,
)
from verifier.appraisal.coverage import Hash, JudgedEvent
from verifier.appraisal.event_types import IMAGE_TYPES, EventType
from verifier.evidence.uefi import image_path, load_option_arguments
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure

_TAG_INITRD = bytes.fromhex("ec223b8f")
_TAG_LOAD_OPTIONS = bytes.fromhex("ed223b8f")
_IPL = EventType.IPL.value
_LINUX = ("linux ", "linuxefi ", "linux16 ")
_CHAINLOADER = "chainloader "
MAX_COMMAND_LINES = 32
"""Kept of one log; a real boot measures at most four, and whoever is root can append more."""
_MAX_LOAD_OPTION_CANDIDATES = 64
"""Texts tried against a LoadOptions digest; a real boot has a handful."""
_STUB_SECTIONS = frozenset(
    {".linux", ".osrel", ".cmdline", ".initrd", ".ucode", ".splash", ".dtb", ".uname", ".sbat", ".pcrpkey", ".profile"}
)


@dataclass(frozen=True, slots=True)
class LoaderFacts:
    """What the loaders of one boot measured, in log order."""

    images: tuple[BootImage, ...]
    command_lines: tuple[CommandLine, ...]
    files: tuple[BootFile, ...]
    stub_sections: tuple[StubSection, ...]
    commands: tuple[LoaderCommand, ...]


def loader_facts(events: Sequence[JudgedEvent], hash_of: Hash) -> tuple[LoaderFacts, tuple[Failure, ...]]:
    """The loaders' facts; never raises, since whatever is not understood stays a digest.

    More than `MAX_COMMAND_LINES` are `event-not-allowed`: the rest is left out.
    """
    commands: list[LoaderCommand] = []
    lines: list[CommandLine] = []
    files: list[BootFile] = []
    sections = _stub_sections(events, hash_of)
    options: list[JudgedEvent] = []
    for judged in events:
        match judged.event.pcr:
            case 8:
                _take_text(judged, commands, lines)
            case 9 if judged.event.type != EventType.SEPARATOR:
                if judged.event.content[:4] == _TAG_LOAD_OPTIONS:
                    options.append(judged)
                files.append(_boot_file(judged))
            case 12 if judged.event.type != EventType.SEPARATOR:
                lines.append(_utf16_line(judged, "systemd-stub"))
            case _:
                pass
    lines = _without_repetitions(lines)
    lines += _load_options(options, events, lines, hash_of)
    lines += [CommandLine(None, s.digest, "systemd-stub", s.origin) for s in sections if s.name == ".cmdline"]
    lines.sort(key=lambda line: line.origin.event_index)
    images = _images(events, unified=any(s.name == ".linux" for s in sections))
    kept = tuple(lines[:MAX_COMMAND_LINES])
    return LoaderFacts(images, kept, tuple(files), sections, tuple(commands)), _too_many(lines[MAX_COMMAND_LINES:])


def _without_repetitions(lines: Sequence[CommandLine]) -> list[CommandLine]:
    """GRUB measures a command line as text of the `linux` command and once more by itself: one fact."""
    return list({(line.text or line.digest, line.source): line for line in reversed(lines)}.values())[::-1]


def _too_many(beyond: Sequence[CommandLine]) -> tuple[Failure, ...]:
    if not beyond:
        return ()
    where, limit = beyond[0].origin, f"at most {MAX_COMMAND_LINES} command lines"
    seen = f"{len(beyond)} more"
    return (Failure(ReasonCode.EVENT_NOT_ALLOWED, "boot.cmdline", seen, limit, where.pcr, where.event_index),)


def _images(events: Sequence[JudgedEvent], *, unified: bool) -> tuple[BootImage, ...]:
    started = [j for j in events if j.event.pcr == 4 and j.event.type in IMAGE_TYPES]
    distinct = len({j.digest for j in started})
    images = []
    for judged in started:
        is_last = judged.digest == started[-1].digest
        role: ImageRole = "loader"
        if judged.event.type != EventType.EFI_BOOT_SERVICES_APPLICATION:
            role = "driver"
        elif is_last:
            role = "kernel" if distinct > 1 or unified else "image"
        origin = Origin(4, judged.event.index, "digest-only")
        images.append(BootImage(judged.digest.hex(), role, origin, image_path(judged.event.content)))
    return tuple(images)


def _take_text(judged: JudgedEvent, commands: list[LoaderCommand], lines: list[CommandLine]) -> None:
    """One event of PCR 8: a GRUB command, a kernel command line, or systemd-boot's options."""
    if judged.covered is None or judged.event.type != _IPL:
        return
    if judged.part == "content":
        lines.append(_utf16_line(judged, "systemd-boot"))
        return
    text = judged.covered.decode("utf-8", "backslashreplace")
    arguments: str | None = text
    if judged.part == "command":
        commands.append(LoaderCommand(text, judged.event.index))
        # Attack: what follows of it (the command line's own event in PCR 8, a chain-loaded image's LoadOptions in PCR
        # 9) can be relabelled, this text cannot.
        arguments = _arguments_of(text)
    if arguments is not None:
        lines.append(CommandLine(arguments, judged.digest.hex(), "grub", Origin(8, judged.event.index, "covered")))


def _arguments_of(command: str) -> str | None:
    """Path and arguments of a command that starts Linux, or of a `chainloader` that has arguments; else None."""
    for linux in _LINUX:
        if command.startswith(linux):
            return command.removeprefix(linux)
    if not command.startswith(_CHAINLOADER):
        return None
    arguments = command.removeprefix(_CHAINLOADER)
    while arguments.startswith("--"):
        arguments = arguments.partition(" ")[2]
    return arguments if " " in arguments else None


def _utf16_line(judged: JudgedEvent, source: CommandLineSource) -> CommandLine:
    """Options in UTF-16. Without a text where they are not covered, or end in half a character that is no NUL.

    Attack: type and content of an event can be changed; all that cannot is that something was measured there.
    """
    covered = judged.covered
    text = None
    if covered is not None and (len(covered) % 2 == 0 or covered.endswith(b"\0")):
        text = covered[: len(covered) & ~1].decode("utf-16-le", "backslashreplace").rstrip("\0")
    origin = Origin(judged.event.pcr, judged.event.index, judged.coverage)
    return CommandLine(text, judged.digest.hex(), source, origin)


def _boot_file(judged: JudgedEvent) -> BootFile:
    """One event of PCR 9. GRUB measures the file's bytes and logs its name; the Linux stub logs a tag."""
    content = judged.event.content
    role: FileRole = "other"
    name: str | None
    if judged.event.type == EventType.EVENT_TAG:
        name = content[8:].rstrip(b"\0").decode("ascii", "backslashreplace")
        if content[:4] == _TAG_INITRD:
            role = "initrd"
    else:
        name = content.rstrip(b"\0").decode("utf-8", "backslashreplace")
        role = _role_of(name)
    return BootFile(judged.digest.hex(), role, name or None, Origin(9, judged.event.index, judged.coverage))


def _role_of(name: str) -> FileRole:
    leaf = name.rpartition("/")[2].lower()
    if leaf.startswith(("initrd", "initramfs")):
        return "initrd"
    if leaf.startswith(("vmlinuz", "bzimage", "linux")):
        return "kernel"
    if leaf.endswith((".cfg", ".conf", "grubenv")):
        return "config"
    return "other"


def _load_options(
    options: Sequence[JudgedEvent],
    events: Sequence[JudgedEvent],
    lines: Sequence[CommandLine],
    hash_of: Hash,
) -> list[CommandLine]:
    """The EFI stub's command lines. The log has no text for them: covered texts are tried until one has the digest.

    GRUB hands on `BOOT_IMAGE=` and its command line without NUL; a chainloader's arguments and a boot option's optional
    data come with one.
    """
    if not options:
        return []
    grub_texts = [line.text for line in lines if line.text is not None and line.source == "grub"]
    by_grub = {_wide(text): text for text in _with_boot_image(grub_texts)}
    by_option = _boot_option_texts(events)
    candidates = (by_grub | by_option).items()
    found: dict[bytes, tuple[str, bool]] = {}
    for measured, text in list(candidates)[:_MAX_LOAD_OPTION_CANDIDATES]:
        for form in (measured, measured + b"\0\0"):
            found[hash_of(form)] = (text, measured in by_grub)
    result = []
    for judged in options:
        resolved = found.get(judged.digest)
        origin = Origin(9, judged.event.index, "covered" if resolved and resolved[1] else "digest-only")
        result.append(CommandLine(resolved[0] if resolved else None, judged.digest.hex(), "efi-stub", origin))
    return result


def _with_boot_image(texts: Iterable[str]) -> Iterable[str]:
    for text in texts:
        yield text
        yield f"BOOT_IMAGE={text}"
        yield text.partition(" ")[2]


def _wide(text: str) -> bytes:
    return text.encode("utf-16-le", "surrogatepass")


def _boot_option_texts(events: Sequence[JudgedEvent]) -> dict[bytes, str]:
    """Optional data of the boot options that PCR 1 covers (names of boot variables are not covered, nor needed)."""
    texts: dict[bytes, str] = {}
    for judged in events:
        if judged.event.type == EventType.EFI_VARIABLE_BOOT and judged.covered is not None:
            # Either the value alone was measured, or the whole structure, whose value begins behind its name.
            option = judged.covered
            if judged.part == "content":
                option = option[32 + 2 * int.from_bytes(option[16:24], "little") :]
            arguments = load_option_arguments(option)
            if arguments:
                wide = arguments.removesuffix(b"\0\0")
                texts[wide] = wide.decode("utf-16-le", "backslashreplace")
    return texts


def _stub_sections(events: Sequence[JudgedEvent], hash_of: Hash) -> tuple[StubSection, ...]:
    """systemd-stub measures each section as two events: the name with its NUL, then the content."""
    names = {hash_of(name.encode() + b"\0"): name for name in _STUB_SECTIONS}
    sections: list[StubSection] = []
    name: str | None = None
    for judged in events:
        if judged.event.pcr != 11:
            continue
        if name is not None:
            origin = Origin(11, judged.event.index, "digest-only")
            sections.append(StubSection(name, judged.digest.hex(), origin))
            name = None
        else:
            name = names.get(judged.digest)
    return tuple(sections)
