"""Figures as a scrape reads them."""

from __future__ import annotations

import re
from pathlib import Path

DOCUMENT = Path(__file__).parents[2] / "docs/metrics.md"


def figures(text: bytes) -> dict[str, float]:
    """Value by name and labels, as they stand in the text: `name{label="value"}`."""
    lines = [line.rsplit(" ", 1) for line in text.decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


def served(text: bytes) -> set[str]:
    """The names of our figures in the text."""
    return set(re.findall(r"^# TYPE (nodewarden_\w+) ", text.decode(), re.MULTILINE))


def explained(prefix: str) -> set[str]:
    """The figures that docs/metrics.md lists under names that begin with `prefix`."""
    return set(re.findall(rf"^\| `({prefix}_\w+)`", DOCUMENT.read_text(), re.MULTILINE))
