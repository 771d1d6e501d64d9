"""Writes docs/reason-codes.md from `verifier.wire.codes`: run `python -m docs.reason_codes` after adding a code."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from verifier.wire import codes
from verifier.wire.codes import ReasonCode

_SECTION = re.compile(r"^    # --- (.+?) ---$")
_MEMBER = re.compile(r"^    ([A-Z][A-Z0-9_]+) = ")


def page() -> str:
    """The page's text: each code with its remedy, under the section headings of the source."""
    lines = [
        "# Reason codes",
        "",
        "Every refusal names one of these. A code keeps its meaning for ever; new ones are added.",
        "This page is generated: `python -m docs.reason_codes`.",
    ]
    for line in inspect.getsource(codes).splitlines():
        if section := _SECTION.match(line):
            heading = section[1][0].upper() + section[1][1:]
            lines += ["", f"## {heading}", "", "| code | what to do |", "|---|---|"]
        elif member := _MEMBER.match(line):
            code = ReasonCode[member[1]]
            lines.append(f"| `{code.value}` | {code.remedy} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    Path(__file__).with_name("reason-codes.md").write_text(page())
