"""A control plane for all tests of the controller: here controllers come and go, and one cluster has one leader."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.e2e.control_plane import ControlPlane, Options, control_plane
from tests.e2e.controllers import OURS, Controllers, controllers
from tests.e2e.install import install
from tests.e2e.verifier_stream import VerifierStream, verifier_stream


@pytest.fixture(scope="package")
def plane(folder: Path) -> Iterator[ControlPlane]:
    """Installed, with none of the installation's processes."""
    with control_plane(folder / "controller", Options(nodes=0)) as running:
        install(running)
        yield running


@pytest.fixture
def stream(plane: ControlPlane, tmp_path: Path) -> Iterator[VerifierStream]:
    with verifier_stream(tmp_path, plane.authority) as running:
        yield running


@pytest.fixture
def cluster(plane: ControlPlane, stream: VerifierStream, tmp_path: Path) -> Iterator[Controllers]:
    """A policy, and no controller yet."""
    with controllers(plane, stream, tmp_path) as made:
        made.policy()
        yield made
        made.stop_all()
        kinds = ("sensitiveworkloads", "nodetrustpolicies", "nodeattestations", "secretreleases")
        for path in (*(f"{OURS}/{plural}" for plural in kinds), "/api/v1/nodes"):
            for item in made.admin.must_get(path)["items"]:
                made.admin.delete(f"{path}/{item['metadata']['name']}")


@pytest.fixture
def gpu(cluster: Controllers) -> dict[str, Any]:
    """A node of a name of its own."""
    return cluster.node(f"gpu-{uuid4().hex[:8]}")


@pytest.fixture
def verified(cluster: Controllers, gpu: dict[str, Any]) -> str:
    """The name of a node that a running controller labelled."""
    cluster.start()
    cluster.stream.publish(gpu)
    cluster.wait_labelled(gpu["metadata"]["name"])
    return str(gpu["metadata"]["name"])
