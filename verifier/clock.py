"""The one clock of the verifier: every other module takes time as an argument."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Tells the time that enters challenges, results and audit rows."""

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        """Milliseconds since 1970 by the machine's clock."""
        return time.time_ns() // 1_000_000
