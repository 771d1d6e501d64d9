"""metav1.Condition as all our kinds show them: pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

Status = Literal["True", "False", "Unknown"]
MAX_MESSAGE_CHARACTERS = 4096


def condition(
    before: Mapping[str, Any], kind: str, status: Status, reason: str, message: str, now: int
) -> dict[str, Any]:
    """A condition; its transition time is that of the status `before`, as long as its status is the same."""
    since = condition_since(before, kind, status)
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message[:MAX_MESSAGE_CHARACTERS],
        "lastTransitionTime": datetime.fromtimestamp(now if since is None else since, UTC).strftime(
            "%Y-%m-%dT%H:%M:%SZ"
        ),
    }


def condition_since(status: Mapping[str, Any], kind: str, value: Status) -> int | None:
    """Since when the condition `kind` has been `value` in `status`; None when it is not."""
    for part in status.get("conditions") or []:
        if isinstance(part, dict) and (part.get("type"), part.get("status")) == (kind, value):
            try:
                return int(datetime.fromisoformat(str(part.get("lastTransitionTime"))).timestamp())
            except ValueError:
                return None
    return None


def condition_reason(code: str) -> str:
    """A reason code (`result-expired`) in the form that Kubernetes wants (`ResultExpired`)."""
    return "".join(word.capitalize() for word in code.split("-"))
