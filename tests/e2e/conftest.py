"""One control plane and one real node for the whole session; tests keep apart by namespaces of their own."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from nodewarden_demo.software_tpm import LocalCa, SoftwareTpm
from tests.e2e.client import Client
from tests.e2e.control_plane import ControlPlane, Options, control_plane
from tests.e2e.install import install
from tests.e2e.machines import VerifierService, verifier_service
from tests.e2e.real_node import RealNode, missing_ability, real_node


@pytest.fixture(scope="session")
def folder() -> Iterator[Path]:
    """A private folder with a short path: sockets' paths have at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="nw-", dir="/tmp") as made:
        yield Path(made)


@pytest.fixture(scope="session")
def plane(folder: Path) -> Iterator[ControlPlane]:
    with control_plane(folder / "cp", Options(nodes=20)) as running:
        yield running


@pytest.fixture(scope="session")
def node(plane: ControlPlane, folder: Path) -> Iterator[RealNode]:
    missing = missing_ability()
    if missing is not None:
        if os.environ.get("CI") == "true":
            pytest.fail(missing)
        pytest.skip(missing)
    with real_node(plane, folder / "n") as running:
        yield running


@pytest.fixture
def namespace(plane: ControlPlane) -> Iterator[str]:
    """A namespace for one test, with its default ServiceAccount."""
    name = f"t-{uuid4().hex[:8]}"
    plane.admin.must_create("/api/v1/namespaces", {"metadata": {"name": name}})
    account = {"metadata": {"name": "default"}}
    answer = plane.admin.create(f"/api/v1/namespaces/{name}/serviceaccounts", account)
    assert answer.status in {201, 409}
    yield name
    plane.admin.delete(f"/api/v1/namespaces/{name}")


@pytest.fixture
def tenant(plane: ControlPlane, namespace: str) -> Iterator[Client]:
    """Someone with every right in `namespace` and none elsewhere."""
    user = f"tenant-{namespace}"
    binding = {
        "metadata": {"name": "tenant"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    }
    plane.admin.must_create(f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings", binding)
    with plane.as_user(user) as client:
        yield client


@pytest.fixture(scope="session")
def installed(plane: ControlPlane) -> list[dict[str, Any]]:
    """The product's objects are in the cluster; its webhook configurations, not yet registered."""
    return install(plane)


@pytest.fixture(scope="session")
def maker(folder: Path) -> LocalCa:
    """The TPM manufacturer whose root the verifier pins."""
    ca = LocalCa.create(folder / "maker")
    # Its certificates come into being with the first TPM that it makes.
    SoftwareTpm.manufacture(folder / "first-tpm", ca, "first")
    return ca


@pytest.fixture(scope="session")
def verifier(plane: ControlPlane, installed: object, folder: Path, maker: LocalCa) -> Iterator[VerifierService]:
    with verifier_service(plane, folder / "verifier", maker) as running:
        yield running
