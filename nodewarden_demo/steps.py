"""What the demo shows: steps with what was promised, what happened, why, and how long it took."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import typer

from verifier.wire.failures import printable

_WIDTH = 110


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step observed; `reasons` are (code, what was seen, remedy)."""

    observed: str
    reasons: tuple[tuple[str, str, str], ...] = ()
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Promise:
    """A step before it ran: `expected` must be observed, and `code`, where there is one, must be among the reasons."""

    name: str
    says: str
    expected: str
    code: str | None = None


@dataclass(slots=True)
class Story:
    """Runs steps in order and keeps their outcomes; prints them for people unless `quiet`."""

    quiet: bool
    steps: list[dict[str, Any]] = field(default_factory=list)

    def heading(self, text: str) -> None:
        """A chapter's title, for people."""
        if not self.quiet:
            typer.echo(f"\n{text}\n{'-' * len(text)}")

    def note(self, text: str) -> None:
        """An explanation, for people."""
        if not self.quiet:
            typer.echo(text)

    def show(self, promise: Promise, act: Callable[[], Outcome]) -> Outcome:
        """Run `act` and hold it against `promise`; a broken promise is recorded, not raised."""
        started = time.perf_counter()
        outcome = act()
        elapsed_ms = round((time.perf_counter() - started) * 1000, 1)
        codes = [code for code, _, _ in outcome.reasons]
        kept = outcome.observed == promise.expected and (promise.code is None or promise.code in codes)
        step = {"name": promise.name, "expected": promise.expected, "observed": outcome.observed}
        self.steps.append(step | {"reasons": codes, "ms": elapsed_ms, "ok": kept})
        if not self.quiet:
            self._print(promise, outcome, elapsed_ms, kept=kept)
        return outcome

    @property
    def ok(self) -> bool:
        """Whether there were steps and each went as promised."""
        return bool(self.steps) and all(step["ok"] for step in self.steps)

    def _print(self, promise: Promise, outcome: Outcome, elapsed_ms: float, *, kept: bool) -> None:
        mark = "ok  " if kept else "FAIL"
        typer.echo(f"{mark} {promise.says:<68} {outcome.observed:>16} {elapsed_ms:8.0f} ms")
        if outcome.detail:
            typer.echo(f"       {outcome.detail}")
        shown = [reason for reason in outcome.reasons if reason[0] == promise.code] or list(outcome.reasons[:1])
        for code, seen, remedy in shown[:1]:
            typer.echo(_wrapped("why:", f"{code}: {printable(seen)}"))
            typer.echo(_wrapped("do:", remedy))
        others = [code for code, _, _ in outcome.reasons if not shown or code != shown[0][0]]
        if others:
            typer.echo(_wrapped("also:", ", ".join(dict.fromkeys(others))))
        if not kept:
            wanted = promise.expected if promise.code is None else f"{promise.expected} with {promise.code}"
            typer.echo(f"       PROMISED: {wanted}")


def _wrapped(label: str, text: str) -> str:
    return textwrap.fill(
        text, _WIDTH, initial_indent=f"       {label:<6}", subsequent_indent=" " * 13, break_on_hyphens=False
    )
