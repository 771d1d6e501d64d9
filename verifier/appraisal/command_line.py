"""A measured kernel command line against a baseline's closed grammar."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from policies.compiler import CompiledCommandLine
from policies.kernel_arguments import MAX_COMMAND_LINE_CHARACTERS, split_command_line
from verifier.appraisal.boot_facts import CommandLine
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure, printable

MAX_ARGUMENTS = 128
"""Different ones in one line; each is judged by every boot set of a baseline."""


@dataclass(frozen=True, slots=True)
class _Argument:
    key: str
    same_as: tuple[str, str | None]
    text: str
    plain: bool


@dataclass(frozen=True, slots=True)
class ReadCommandLine:
    """A command line taken apart once, for every rule that judges it. `unreadable` says why there is no text of it."""

    line: CommandLine
    arguments: tuple[_Argument, ...]
    unreadable: Failure | None


def read_command_line(line: CommandLine) -> ReadCommandLine:
    """The different arguments of `line` as the kernel reads it, if its digest covers a text of bounded length."""
    if line.text is None or line.origin.coverage != "covered":
        seen, wanted = f"digest {line.digest}", "a text that its digest covers"
        return ReadCommandLine(line, (), _failure(line, ReasonCode.CMDLINE_UNKNOWN, seen, wanted))
    # What GRUB measures begins with the image's path, which it hands to the kernel as BOOT_IMAGE. Attack: a path with a
    # tab in it, which GRUB takes for a name and the kernel for the end of an argument.
    text = "BOOT_IMAGE=" + line.text if line.source == "grub" else line.text
    if len(text) > MAX_COMMAND_LINE_CHARACTERS:
        seen, wanted = f"{len(text)} characters", f"at most {MAX_COMMAND_LINE_CHARACTERS}"
        return ReadCommandLine(line, (), _failure(line, ReasonCode.CMDLINE_UNKNOWN, seen, wanted))
    different = {argument.text: argument for argument in split_command_line(text)}
    if len(different) > MAX_ARGUMENTS:
        seen, wanted = f"{len(different)} arguments", f"at most {MAX_ARGUMENTS}"
        return ReadCommandLine(line, (), _failure(line, ReasonCode.CMDLINE_UNKNOWN, seen, wanted))
    return ReadCommandLine(line, tuple(_Argument(a.key, a.same_as, a.text, a.plain) for a in different.values()), None)


def judge_command_line(read: ReadCommandLine, rule: CompiledCommandLine) -> Iterator[Failure]:
    """Why a line does not fit `rule`; nothing when it does.

    Each argument must be required, allowed or of an ignored key, and each required one must be there. An argument of
    an ignored key must be plain, or a reader that splits otherwise than the kernel could see another argument in it.
    A line of GRUB has the argument BOOT_IMAGE in front, as the kernel sees it.
    Codes: `cmdline-unknown`, `cmdline-argument-forbidden`, `cmdline-argument-not-allowed`, `cmdline-argument-missing`.
    """
    line = read.line
    if read.unreadable is not None:
        by_digest = line.text is None or line.origin.coverage != "covered"
        if not (by_digest and line.origin.coverage != "hint" and line.digest in rule.digests):
            yield read.unreadable
        return
    for argument in read.arguments:
        failure = _judge(line, argument, rule)
        if failure is not None:
            yield failure
    present = {argument.same_as for argument in read.arguments}
    for required in rule.required:
        if required.same_as not in present:
            yield _failure(line, ReasonCode.CMDLINE_ARGUMENT_MISSING, "absent", required.text)


def _judge(line: CommandLine, argument: _Argument, rule: CompiledCommandLine) -> Failure | None:
    bar = rule.forbidden.get(argument.same_as) or rule.forbidden.get((argument.key, None))
    if bar is not None:
        return _failure(line, ReasonCode.CMDLINE_ARGUMENT_FORBIDDEN, argument.text, f"without {bar}")
    if argument.plain and (argument.same_as in rule.allowed or argument.key in rule.ignored_keys):
        return None
    return _failure(
        line, ReasonCode.CMDLINE_ARGUMENT_NOT_ALLOWED, argument.text, "an argument that the baseline allows"
    )


def _failure(line: CommandLine, code: ReasonCode, observed: str, expected: str) -> Failure:
    where = line.origin
    return Failure(code, "boot.cmdline", printable(observed), expected, where.pcr, where.event_index)
