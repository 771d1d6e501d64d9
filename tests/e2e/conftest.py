"""One control plane and one real node for the whole session; tests keep apart by namespaces of their own."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from nodewarden_demo.software_tpm import LocalCa, SoftwareTpm
from tests.e2e.api_server_client import ApiServerClient
from tests.e2e.client import Client
from tests.e2e.control_plane import ControlPlane, Options, control_plane
from tests.e2e.governed import GROUP, Fleet, Governed, attested_fleet, governed_namespace
from tests.e2e.install import install
from tests.e2e.machines import VerifierService
from tests.e2e.pods import pods_path
from tests.e2e.programs import wait_until
from tests.e2e.real_node import RealNode, missing_ability, real_node
from tests.e2e.system import System, running_system
from tests.e2e.watched import POLICY as LIVE_POLICY
from tests.e2e.watched import Watched, watched_namespace


@pytest.fixture(scope="session")
def folder() -> Iterator[Path]:
    """A private folder with a short path: sockets' paths have at most 107 bytes.

    With NODEWARDEN_E2E_LOGS the logs of every program end up in the folder of that name.
    """
    with tempfile.TemporaryDirectory(prefix="nw-", dir="/tmp") as made:
        yield Path(made)
        kept = os.environ.get("NODEWARDEN_E2E_LOGS")
        if kept:
            Path(kept).mkdir(parents=True, exist_ok=True)
            for log in Path(made).rglob("*.log"):
                shutil.copyfile(log, Path(kept) / f"{log.parent.name}-{log.name}")


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


@pytest.fixture(scope="session")
def api_server_client(folder: Path) -> ApiServerClient:
    """How the API server of `live_plane` proves to a webhook who it is."""
    return ApiServerClient.create(folder / "ac")


@pytest.fixture(scope="session")
def live_plane(folder: Path, api_server_client: ApiServerClient) -> Iterator[ControlPlane]:
    """A control plane with the installation's objects and none of its processes: tests do what those would."""
    options = Options(nodes=2, admission_config=api_server_client.admission_config)
    with control_plane(folder / "live", options) as running:
        install(running)
        running.admin.must_create(f"{GROUP}/nodetrustpolicies", LIVE_POLICY)
        yield running


@pytest.fixture
def watched(live_plane: ControlPlane, namespace: str) -> Iterator[Watched]:
    with watched_namespace(live_plane, namespace) as made:
        yield made


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
        # The API server's authoriser follows a new RoleBinding after a moment.
        wait_until("the tenant's rights hold", lambda: client.get(pods_path(namespace)).accepted, 20)
        yield client


@pytest.fixture(scope="session")
def maker(folder: Path) -> LocalCa:
    """The TPM manufacturer whose root the verifier pins."""
    ca = LocalCa.create(folder / "maker")
    # Its certificates come into being with the first TPM that it makes.
    SoftwareTpm.manufacture(folder / "first-tpm", ca, "first")
    return ca


@pytest.fixture(scope="session")
def system(plane: ControlPlane, folder: Path, maker: LocalCa) -> Iterator[System]:
    """The whole product, installed and at work."""
    with running_system(plane, folder / "s", maker) as running:
        yield running


@pytest.fixture(scope="session")
def verifier(system: System) -> VerifierService:
    return system.verifier


@pytest.fixture(scope="session")
def maybe_node(request: pytest.FixtureRequest) -> RealNode | None:
    """The real node where this machine can run one."""
    if missing_ability() is not None and os.environ.get("CI") != "true":
        return None
    running: RealNode = request.getfixturevalue("node")
    return running


@pytest.fixture(scope="session")
def fleet(system: System, folder: Path, maybe_node: RealNode | None) -> Iterator[Fleet]:
    with attested_fleet(system, folder / "m", maybe_node) as machines:
        yield machines


@pytest.fixture
def governed(system: System, fleet: Fleet, namespace: str) -> Iterator[Governed]:
    """A namespace with sensitive pods, beside nodes that are verified and one that is not."""
    with governed_namespace(system, namespace) as made:
        yield made


@pytest.fixture
def governed_on_real_node(system: System, fleet: Fleet, node: RealNode, namespace: str) -> Iterator[Governed]:
    """The same, with the image that really runs on the real node."""
    with governed_namespace(system, namespace, images=(node.app_image,)) as made:
        yield made
