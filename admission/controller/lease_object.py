"""Leases (coordination.k8s.io/v1) as this controller writes them."""

from __future__ import annotations

from datetime import UTC, datetime


def lease_path(namespace: str, name: str = "") -> str:
    """The address of the Lease `name` in `namespace`, or of all of them."""
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
    return f"{path}/{name}" if name else path


def lease_times() -> str:
    """Now as a MicroTime. For people and their tools only: whoever relies on a Lease uses a monotonic clock."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")  # noqa: TID251 - shown, and never compared
