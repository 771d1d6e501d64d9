"""Counters of the process, in the Prometheus text format. Labels are reason codes and verdicts: never names."""

from __future__ import annotations

from collections import Counter


class Metrics:
    """Counts since the process started."""

    def __init__(self) -> None:
        self._refused: Counter[str] = Counter()
        self._verdicts: Counter[str] = Counter()
        self._unreported: Counter[str] = Counter()

    def count(self, code: str) -> None:
        """One more refusal for `code`."""
        self._refused[code] += 1
        self._unreported[code] += 1

    def verdict(self, verdict: str) -> None:
        """One more verdict."""
        self._verdicts[verdict] += 1

    def take_unreported(self) -> dict[str, int]:
        """Refusals since the last call, by code: what the audit log is told of strangers, in one row."""
        taken = dict(self._unreported)
        self._unreported.clear()
        return taken

    def text(self) -> str:
        """The counters, one a line."""
        lines = ["# TYPE nodewarden_refusals_total counter"]
        lines += [f'nodewarden_refusals_total{{code="{code}"}} {n}' for code, n in sorted(self._refused.items())]
        lines.append("# TYPE nodewarden_verdicts_total counter")
        lines += [f'nodewarden_verdicts_total{{verdict="{v}"}} {n}' for v, n in sorted(self._verdicts.items())]
        return "\n".join(lines) + "\n"
