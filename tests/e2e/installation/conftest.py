"""A control plane of its own with the installation's objects and none of our processes: what the objects do alone."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest

from tests.e2e.client import Client
from tests.e2e.control_plane import ControlPlane, Options, control_plane
from tests.e2e.install import install
from tests.e2e.installation.guards import LABEL, denied_by
from tests.e2e.programs import wait_until

BREAK_GLASS = "nodewarden:break-glass"


@pytest.fixture(scope="session")
def bare(folder: Path) -> Iterator[ControlPlane]:
    """Installed, without webhook configurations."""
    with control_plane(folder / "bare", Options(nodes=2)) as running:
        install(running)
        # The API server takes a moment to enforce new policies.
        wait_until("the policies are in force", partial(_refuses_labels, running.admin), 30)
        yield running


def _refuses_labels(admin: Client) -> bool:
    # Tried only: once the label is there, the same label is no change that a policy could refuse.
    answer = admin.request(
        "PATCH",
        "/api/v1/nodes/fake-0",
        {"metadata": {"labels": {LABEL: "true"}}},
        parameters={"dryRun": "All"},
        content_type="application/merge-patch+json",
    )
    return denied_by(answer, "nodewarden-nodes")


@pytest.fixture(scope="session")
def controller(bare: ControlPlane) -> Iterator[Client]:
    with bare.as_service_account("nodewarden-system", "nodewarden-controller") as client:
        yield client


@pytest.fixture(scope="session")
def breaker(bare: ControlPlane) -> Iterator[Client]:
    """An administrator who breaks the glass."""
    with bare.as_user("breaker", "system:masters", BREAK_GLASS) as client:
        yield client


@pytest.fixture
def space(bare: ControlPlane, breaker: Client) -> Iterator[str]:
    name = f"t-{uuid4().hex[:8]}"
    bare.admin.must_create("/api/v1/namespaces", {"metadata": {"name": name}})
    bare.admin.create(f"/api/v1/namespaces/{name}/serviceaccounts", {"metadata": {"name": "default"}})
    yield name
    breaker.delete(f"/api/v1/namespaces/{name}")
