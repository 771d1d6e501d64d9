"""A measured kernel command line against a baseline's closed grammar."""

from __future__ import annotations

from policies.compiler import CompiledCommandLine
from policies.kernel_arguments import MAX_COMMAND_LINE_CHARACTERS, KernelArgument, split_command_line
from policies.schema import forbids
from verifier.appraisal.boot_facts import CommandLine
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure

MAX_FAILURES = 16
"""One line may hold thousands of arguments that fail; a person needs the first few."""


def judge_command_line(line: CommandLine, rule: CompiledCommandLine) -> tuple[Failure, ...]:
    """Why `line` does not fit `rule`; empty when it does.

    Each argument must be required, allowed or of an ignored key, and each required one must be there. An argument of
    an ignored key must be plain, or a reader that splits otherwise than the kernel could see another argument in it.
    A line of GRUB has the argument BOOT_IMAGE in front, as the kernel sees it.
    Codes: `cmdline-unknown`, `cmdline-argument-forbidden`, `cmdline-argument-not-allowed`, `cmdline-argument-missing`.
    """
    if line.text is None or line.origin.coverage != "covered":
        if line.origin.coverage != "hint" and line.digest in rule.digests:
            return ()
        return (_failure(line, ReasonCode.CMDLINE_UNKNOWN, f"digest {line.digest}", "a text that its digest covers"),)
    # What GRUB measures begins with the image's path, which it hands to the kernel as BOOT_IMAGE. Attack: a path with a
    # tab in it, which GRUB takes for a name and the kernel for the end of an argument.
    text = "BOOT_IMAGE=" + line.text if line.source == "grub" else line.text
    if len(text) > MAX_COMMAND_LINE_CHARACTERS:
        seen = f"{len(text)} characters"
        return (_failure(line, ReasonCode.CMDLINE_UNKNOWN, seen, f"at most {MAX_COMMAND_LINE_CHARACTERS}"),)
    arguments = split_command_line(text)
    failures = [failure for argument in arguments if (failure := _judge(line, argument, rule)) is not None]
    present = {argument.same_as for argument in arguments}
    for required in rule.required:
        if required.same_as not in present:
            failures.append(_failure(line, ReasonCode.CMDLINE_ARGUMENT_MISSING, "absent", required.text))
    return tuple(failures[:MAX_FAILURES])


def _judge(line: CommandLine, argument: KernelArgument, rule: CompiledCommandLine) -> Failure | None:
    for bar in rule.forbidden:
        if forbids(bar, argument):
            return _failure(line, ReasonCode.CMDLINE_ARGUMENT_FORBIDDEN, argument.text, f"without {bar.text}")
    if argument.plain and (argument.same_as in rule.allowed or argument.key in rule.ignored_keys):
        return None
    return _failure(
        line, ReasonCode.CMDLINE_ARGUMENT_NOT_ALLOWED, argument.text, "an argument that the baseline allows"
    )


def _failure(line: CommandLine, code: ReasonCode, observed: str, expected: str) -> Failure:
    return Failure(code, "boot.cmdline", observed, expected, line.origin.pcr, line.origin.event_index)
