"""What admission logs: one JSON line an event, constant names, values as fields, no secret and no token ever."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, MutableMapping
from itertools import islice
from typing import Any
from uuid import uuid4

import structlog

from admission.log_lines import LineWriter, as_line
from verifier.wire.failures import Failure, printable

_REQUEST_ID = re.compile(r"\A[A-Za-z0-9_-]{8,64}\Z")


MAX_LOGGED_REASONS = 32
"""A pod of thousands of bad images is one line of some kilobytes."""


class _Logger:
    """What structlog hands finished lines to."""

    def __init__(self, lines: LineWriter) -> None:
        self.debug = self.info = self.warning = self.error = self.critical = lines.write


def configure_logging() -> LineWriter:
    """Events go to standard error as JSON lines with a UTC time, by the writer that is returned."""
    lines = LineWriter(sys.stderr)
    logger = _Logger(lines)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _render,
        ],
        logger_factory=lambda *_: logger,
        cache_logger_on_first_use=False,
    )
    return lines


def _render(_: object, __: str, event: MutableMapping[str, Any]) -> str:
    return as_line(event)


def request_id(claimed: str | None) -> str:
    """The caller's id where it is harmless text, else a new one; it joins the log lines of one request."""
    return claimed if claimed is not None and _REQUEST_ID.match(claimed) else str(uuid4())


def reasons_of(failures: Iterable[Failure]) -> list[dict[str, str | None]]:
    """The first failures as log fields: code, claim and what was seen."""
    return [
        {
            "code": failure.code.value,
            "claim": printable(failure.claim),
            "observed": None if failure.observed is None else printable(failure.observed),
        }
        for failure in islice(failures, MAX_LOGGED_REASONS)
    ]


def report_failure(failure: Failure) -> None:
    """Logs that something was refused while the cluster view was read; the state before stays in force."""
    structlog.get_logger().warning("cluster_view_refused", reasons=reasons_of((failure,)))
