"""An API server whose seats a tenant fills with slow requests: our Leases and our other requests still get theirs."""

from __future__ import annotations

import base64
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from admission.controller.heartbeat import RENEW_SECONDS
from tests.deploy.rendered import installed
from tests.e2e.control_plane import ControlPlane, Options, control_plane
from tests.e2e.controllers import Controllers, controllers
from tests.e2e.install import NAMESPACE, apply, install
from tests.e2e.installation.guards import FLOW_CONTROL, denied_by
from tests.e2e.programs import wait_until
from tests.e2e.slow_readers import ANSWER_BYTES, slow_readers
from tests.e2e.verifier_stream import verifier_stream

SEATS = ("--max-requests-inflight=20", "--max-mutating-requests-inflight=10")
READERS, ACCOUNTS = 64, 8
TENANTS_SEATS = 12
"""Of the thirty; more are lent to them by levels that are idle."""
KINDS = {"FlowSchema": "flowschemas", "PriorityLevelConfiguration": "prioritylevelconfigurations"}
TOO_MANY_REQUESTS = 429
WATCHED_SECONDS = 15.0
CONFIG_MAP_BYTES, ANNOTATION_BYTES = 1_000_000, 250_000


@pytest.fixture(scope="module")
def plane(folder: Path) -> Iterator[ControlPlane]:
    """A control plane of few seats."""
    with control_plane(folder / "flood", Options(nodes=0, apiserver_flags=SEATS)) as running:
        install(running)
        yield running


@pytest.fixture
def cluster(plane: ControlPlane, tmp_path: Path) -> Iterator[Controllers]:
    """A controller that renews the Lease."""
    with verifier_stream(tmp_path, plane.authority) as stream, controllers(plane, stream, tmp_path) as made:
        made.start()
        wait_until("the Lease is renewed", lambda: made.renewed() != "", 30)
        yield made


@pytest.fixture
def accounts(plane: ControlPlane, namespace: str) -> list[str]:
    """Tokens of ServiceAccounts that a tenant, who has every right in `namespace`, made there."""
    binding = {
        "metadata": {"name": "tenant"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [
            {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "Group",
                "name": f"system:serviceaccounts:{namespace}",
            }
        ],
    }
    plane.admin.must_create(f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings", binding)
    names = [f"flood-{number}" for number in range(ACCOUNTS)]
    for name in names:
        plane.admin.must_create(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": name}})
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    for number in range(ANSWER_BYTES // CONFIG_MAP_BYTES):
        content = base64.b64encode(os.urandom(CONFIG_MAP_BYTES * 3 // 4)).decode()
        plane.admin.must_create(path, {"metadata": {"name": f"large-{number}"}, "data": {"x": content}})
    return [plane.token(namespace, name) for name in names]


@contextmanager
def flooded(plane: ControlPlane, namespace: str, accounts: list[str]) -> Iterator[None]:
    """The tenant's requests hold all seats that they can get."""
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    with slow_readers(plane.server, plane.ca, path, accounts, count=READERS, seats=TENANTS_SEATS):
        yield


def longest_silence(cluster: Controllers, seconds: float = WATCHED_SECONDS) -> float:
    """For how long at most the Lease was not renewed within the next `seconds`."""
    began = last = time.monotonic()
    seen, longest = cluster.renewed(), 0.0
    while time.monotonic() - began < seconds:
        now = cluster.renewed()
        if now != seen:
            seen, last = now, time.monotonic()
        longest = max(longest, time.monotonic() - last)
        time.sleep(0.1)
    return longest


def status_of_a_request(plane: ControlPlane, name: str) -> int:
    """What our account is answered to what it asks all the time; a request may wait a quarter of its `timeout`."""
    with plane.as_service_account(NAMESPACE, name) as client:
        return client.get("/apis/nodewarden.dev/v1alpha1/nodeattestations?timeout=12s").status


def test_a_tenant_who_fills_the_api_server_with_slow_requests_stops_neither_leases_nor_watches(
    plane: ControlPlane, cluster: Controllers, namespace: str, accounts: list[str]
) -> None:
    with flooded(plane, namespace, accounts):
        assert longest_silence(cluster) < RENEW_SECONDS * 2
        assert [status_of_a_request(plane, f"nodewarden-{name}") for name in ("webhook", "broker")] == [200, 200]


def test_without_our_seats_the_same_flood_stops_them(
    plane: ControlPlane, cluster: Controllers, namespace: str, accounts: list[str]
) -> None:
    for plural in KINDS.values():
        assert denied_by(plane.admin.delete(f"{FLOW_CONTROL}/{plural}/nodewarden-leases"), "nodewarden-flow-control")
    with ExitStack() as after:
        for kind in reversed(KINDS):
            for name, manifest in installed(kind).items():
                after.callback(apply, plane.admin, manifest)
                assert cluster.admin.delete(f"{FLOW_CONTROL}/{KINDS[kind]}/{name}").accepted
        with flooded(plane, namespace, accounts):
            assert longest_silence(cluster, WATCHED_SECONDS + RENEW_SECONDS) > RENEW_SECONDS * 2
            assert status_of_a_request(plane, "nodewarden-webhook") == TOO_MANY_REQUESTS


def test_a_stolen_account_of_ours_takes_its_own_seats_and_no_other_s(
    plane: ControlPlane, cluster: Controllers, namespace: str
) -> None:
    for _ in range(ANSWER_BYTES // ANNOTATION_BYTES):
        content = base64.b64encode(os.urandom(ANNOTATION_BYTES * 3 // 4)).decode()
        pod = {
            "metadata": {"name": f"large-{uuid4().hex[:8]}", "annotations": {"x": content}},
            "spec": {"schedulerName": "nobody", "containers": [{"name": "main", "image": "none"}]},
        }
        plane.admin.must_create(f"/api/v1/namespaces/{namespace}/pods", pod)
    stolen = [plane.token(NAMESPACE, "nodewarden-broker")]
    with slow_readers(plane.server, plane.ca, "/api/v1/pods", stolen, count=READERS, seats=1):
        assert longest_silence(cluster) < RENEW_SECONDS * 2
        assert status_of_a_request(plane, "nodewarden-webhook") == 200
        assert status_of_a_request(plane, "nodewarden-broker") == TOO_MANY_REQUESTS
