"""Pauses after failures: how a node waits before it tries again."""

from __future__ import annotations

from collections.abc import Callable

Uniform = Callable[[float, float], float]
"""A random number between two."""
_LOWEST_PAUSE_JITTER = 0.5


class Pauses:
    """Pauses after failures in a row: doubling from `first_seconds` to `longest_seconds`, each with jitter."""

    def __init__(self, first_seconds: float, longest_seconds: float, uniform: Uniform) -> None:
        self._first = first_seconds
        self._longest = longest_seconds
        self._uniform = uniform
        self._failures = 0

    def after_failure(self) -> float:
        """How long to wait now, in seconds."""
        # The exponent is bounded: a week of failures must not make a number too large for a float.
        pause = min(self._longest, self._first * 2.0 ** min(self._failures, 32))
        self._failures += 1
        # Jitter, so that a fleet does not come back at one moment after an outage.
        return pause * self._uniform(_LOWEST_PAUSE_JITTER, 1.0)

    def after_success(self) -> None:
        """The next failure is a first one."""
        self._failures = 0
