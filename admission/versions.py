"""Versions of baselines: MAJOR.MINOR.PATCH, compared by number and never as text (4.10.0 is above 4.9.0)."""

from __future__ import annotations

import re
from functools import lru_cache

Version = tuple[int, int, int]

_VERSION = re.compile(r"\A(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})\Z")


@lru_cache(maxsize=1024)
def parse_version(text: str) -> Version | None:
    """The version that `text` spells, or None when it spells none. Remembered by the text, which cannot be wrong."""
    match = _VERSION.match(text)
    return None if match is None else (int(match[1]), int(match[2]), int(match[3]))


def format_version(version: Version) -> str:
    """MAJOR.MINOR.PATCH."""
    return ".".join(str(part) for part in version)
