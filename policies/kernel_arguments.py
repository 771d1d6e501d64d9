"""The kernel command line as the kernel reads it: arguments, never substrings.

Source: Linux lib/cmdline.c `next_arg` and kernel/params.c `parameq`. White space separates, also 0xA0 (lib/ctype.c
counts it); a double quote toggles quoting; in a key, `-` and `_` are the same character.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_COMMAND_LINE_CHARACTERS = 8192
"""COMMAND_LINE_SIZE is 2,048 on x86 and at most 4,096 elsewhere."""
_SPACE = frozenset(" \t\n\v\f\r\xa0")


@dataclass(frozen=True, slots=True)
class KernelArgument:
    """One argument. `key` has `-` written as `_`; `value`, without its quotes, is None where there is no `=`."""

    key: str
    value: str | None
    text: str
    """As written."""

    @property
    def plain(self) -> bool:
        """Whether every reader splits this text alike: printable ASCII, without quotes and white space.

        Attack: `root="x init=/bin/sh"` is one argument to the kernel and two to a shell script in an initrd.
        """
        return (
            self.text.isascii() and self.text.isprintable() and not any(c in _SPACE or c in "\"'\\" for c in self.text)
        )

    @property
    def same_as(self) -> tuple[str, str | None]:
        """What two spellings of one argument have in common."""
        return self.key, self.value


def parse_argument(text: str) -> KernelArgument:
    """The argument that `text`, one argument already, spells."""
    bare = text[1:-1] if len(text) >= 2 and text[0] == text[-1] == '"' else text
    key, equals, value = bare.partition("=")
    if len(value) >= 2 and value[0] == value[-1] == '"':
        value = value[1:-1]
    return KernelArgument(key.replace("-", "_"), value if equals else None, text)


def split_command_line(text: str) -> tuple[KernelArgument, ...]:
    """The arguments of `text` in order; quoted white space stays within its argument.

    Does not cut at `--` (after which the kernel hands arguments to init): a rule must allow those too. The caller
    bounds the length.
    """
    arguments: list[KernelArgument] = []
    current: list[str] = []
    quoted = False
    for character in text:
        if character == '"':
            quoted = not quoted
        if character in _SPACE and not quoted:
            if current:
                arguments.append(parse_argument("".join(current)))
                current = []
            continue
        current.append(character)
    if current:
        arguments.append(parse_argument("".join(current)))
    return tuple(arguments)
