"""The one place where admission reads the time; everything else takes it as an argument."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], int]
"""Seconds since 1970."""


def system_clock() -> int:
    """Now, in whole seconds since 1970, by this machine's clock."""
    return int(time.time())  # noqa: TID251 - this is the composition root's clock
