"""Silence, age, replays, re-created nodes: what is missing or old is a denial, and the cluster still comes up."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nodewarden_demo.stage import OTHER_CMDLINE
from tests.e2e.client import Answer, Client
from tests.e2e.control_plane import fake_node
from tests.e2e.governed import (
    GOOD_NODES,
    GROUP,
    UNKNOWN_NODE,
    Governed,
    a_policy,
    governed_namespace,
    is_labelled,
)
from tests.e2e.install import NAMESPACE
from tests.e2e.machines import Machine, machine
from tests.e2e.pods import a_pod, pods_path, wait_for_phase
from tests.e2e.programs import wait_until
from tests.e2e.system import System
from verifier.wire.codes import ReasonCode

UNSCHEDULED = {"schedulerName": "nobody"}
BRIEF_POLICY, BRIEF_SECONDS = "e2e-brief", 20
CONTROLLER = "nodewarden-controller"


@contextmanager
def spare_machine(system: System, folder: Path, node: str) -> Iterator[Machine]:
    """A machine behind `node` that has attested once, well, and does not by itself again."""
    plane = system.plane
    with machine(plane, system.verifier, system.maker, folder, node) as made:
        made.attest()
        wait_until(f"{node} is labelled", lambda: is_labelled(plane.admin, node), 20)
        yield made


@pytest.fixture
def waiting(governed: Governed, tenant: Client) -> Governed:
    """A sensitive pod `p` that no scheduler takes."""
    tenant.must_create(governed.path(), governed.pod("p", **UNSCHEDULED))
    governed.ungated("p")
    return governed


def bind(client: Client, governed: Governed, node: str) -> Answer:
    """What comes of binding `p` to the node by hand."""
    return client.create(governed.path("p", "binding"), governed.binding("p", node))


def attestation(admin: Client, node: str) -> dict[str, Any]:
    found: dict[str, Any] = admin.must_get(f"{GROUP}/nodeattestations/{node}")
    return found


def write_result(client: Client, node: str, result: str) -> None:
    """The NodeAttestation of the node embeds `result`, written as `client`."""
    path = f"{GROUP}/nodeattestations/{node}/status"
    client.must_patch(path, {"status": {"result": result}})


def test_a_result_without_the_verifier_s_signature_counts_for_nothing_even_from_the_controller(
    system: System, waiting: Governed, tenant: Client
) -> None:
    admin = system.plane.admin
    uid = admin.must_get(f"/api/v1/nodes/{UNKNOWN_NODE}")["metadata"]["uid"]
    genuine = attestation(admin, GOOD_NODES[0])["status"]["result"]
    header, claims, signature = genuine.split(".")
    forged = f"{header}.{claims}.{signature[:-4]}AAAA"
    body = {
        "apiVersion": "nodewarden.dev/v1alpha1",
        "kind": "NodeAttestation",
        "metadata": {"name": UNKNOWN_NODE},
        "spec": {"nodeName": UNKNOWN_NODE, "nodeUID": uid},
    }
    with system.plane.as_service_account(NAMESPACE, CONTROLLER) as thief:
        with system.controller.stopped():
            thief.must_create(f"{GROUP}/nodeattestations", body)
            for result, why in (
                (forged, ReasonCode.RESULT_SIGNATURE_INVALID),
                (genuine, ReasonCode.RESULT_NODE_MISMATCH),
            ):
                write_result(thief, UNKNOWN_NODE, result)
                wait_until(f"{why.value}", lambda why=why: bind(tenant, waiting, UNKNOWN_NODE).denies(why), 5)  # type: ignore[misc]  # - bound at once
        time.sleep(2)
        assert not is_labelled(admin, UNKNOWN_NODE)
        thief.delete(f"{GROUP}/nodeattestations/{UNKNOWN_NODE}")


def test_an_older_result_of_the_same_node_is_not_taken_again(
    system: System, waiting: Governed, tenant: Client, tmp_path: Path
) -> None:
    plane = system.plane
    with spare_machine(system, tmp_path / "m", "fake-10") as spare:
        before = attestation(plane.admin, "fake-10")["status"]["result"]
        spare.boot(OTHER_CMDLINE)
        spare.attest()
        wait_until("the label is gone", lambda: not is_labelled(plane.admin, "fake-10"), 5)
        fallen = ReasonCode.NODE_NOT_VERIFIED
        wait_until("the webhook knows", lambda: bind(tenant, waiting, "fake-10").denies(fallen), 5)
        with system.controller.stopped(), plane.as_service_account(NAMESPACE, CONTROLLER) as thief:
            write_result(thief, "fake-10", before)
            replayed = ReasonCode.RESULT_ROLLED_BACK
            wait_until("the replay is denied", lambda: bind(tenant, waiting, "fake-10").denies(replayed), 5)
        # The controller writes the newest again, and labels nothing.
        time.sleep(2)
        assert not is_labelled(plane.admin, "fake-10")


def test_a_result_that_ages_between_scheduling_and_binding_is_denied(
    system: System, fleet: object, namespace: str, tenant: Client, tmp_path: Path
) -> None:
    admin = system.plane.admin
    policy = a_policy(BRIEF_POLICY, maxEvidenceAge=f"{BRIEF_SECONDS}s", minRemainingValidity="5s")
    admin.must_create(f"{GROUP}/nodetrustpolicies", policy)
    with (
        spare_machine(system, tmp_path / "m", "fake-11"),
        governed_namespace(system, namespace, policy=BRIEF_POLICY) as made,
    ):
        attested = time.monotonic()
        tenant.must_create(made.path(), made.pod("p", **UNSCHEDULED))
        time.sleep(max(0.0, attested + BRIEF_SECONDS + 1 - time.monotonic()))
        # Whatever the gate was at: the binding is what counts.
        admin.patch(made.path("p"), {"spec": {"schedulingGates": None}})
        answer = bind(tenant, made, "fake-11")
        assert answer.denies(ReasonCode.RESULT_TOO_OLD) or answer.denies(ReasonCode.RESULT_VALIDITY_TOO_SHORT), (
            answer.message
        )


def test_a_node_created_again_under_its_name_has_to_prove_itself_again(
    system: System, waiting: Governed, tenant: Client, tmp_path: Path
) -> None:
    admin = system.plane.admin
    with spare_machine(system, tmp_path / "m", "fake-12"):
        admin.delete("/api/v1/nodes/fake-12", grace_seconds=0)
        wait_until("the Node is gone", lambda: admin.get("/api/v1/nodes/fake-12").status == 404, 20)
        admin.must_create("/api/v1/nodes", fake_node("fake-12"))
        wait_until(
            "the binding is denied for the UID",
            lambda: any(
                bind(tenant, waiting, "fake-12").denies(code)
                for code in (ReasonCode.RESULT_NODE_MISMATCH, ReasonCode.RESULT_MISSING)
            ),
            10,
        )
        assert not is_labelled(admin, "fake-12")


def test_while_the_webhook_is_down_nothing_is_created_or_bound_and_kube_system_comes_up(
    system: System, waiting: Governed, tenant: Client
) -> None:
    admin = system.plane.admin
    account = {"metadata": {"name": "default"}}
    admin.create("/api/v1/namespaces/kube-system/serviceaccounts", account)
    with system.webhook.stopped():
        for answer in (tenant.create(waiting.path(), waiting.pod("q")), bind(tenant, waiting, GOOD_NODES[0])):
            assert not answer.accepted
            assert "failed calling webhook" in answer.message
        admin.must_create(pods_path("kube-system"), a_pod("network-plugin", hostNetwork=True))
        wait_for_phase(admin, "kube-system", "network-plugin")
        admin.delete(pods_path("kube-system", "network-plugin"))
    # A webhook that starts trusts no Lease before it has seen it renewed.
    wait_until("the webhook allows again", lambda: bind(tenant, waiting, GOOD_NODES[0]).accepted, 20)


def answer_to_binding(tenant: Client, waiting: Governed, node: str) -> Answer:
    """What would come of binding `p` to the node."""
    body = waiting.binding("p", node)
    return tenant.request("POST", waiting.path("p", "binding"), body, parameters={"dryRun": "All"})


def test_when_the_controller_stops_the_webhook_denies_within_the_lease_s_time(
    system: System, waiting: Governed, tenant: Client
) -> None:
    node = GOOD_NODES[0]
    wait_until("the binding is allowed", lambda: answer_to_binding(tenant, waiting, node).accepted, 20)
    with system.controller.stopped():
        stopped = time.monotonic()
        stale = ReasonCode.RESULTS_STALE
        wait_until("results are stale", lambda: answer_to_binding(tenant, waiting, node).denies(stale), 40)
        assert 20 < time.monotonic() - stopped < 40
    wait_until("the webhook allows again", lambda: bind(tenant, waiting, node).accepted, 30)


def test_a_webhook_that_lost_the_api_server_denies_once_its_memory_is_stale(
    system: System, waiting: Governed, tenant: Client
) -> None:
    node = GOOD_NODES[0]
    wait_until("the binding is allowed", lambda: answer_to_binding(tenant, waiting, node).accepted, 20)
    with system.webhook_cut_off():
        cut = time.monotonic()
        stale = ReasonCode.VIEW_STALE
        wait_until("the view is stale", lambda: answer_to_binding(tenant, waiting, node).denies(stale), 45)
        assert 15 < time.monotonic() - cut < 45
    wait_until("the webhook allows again", lambda: bind(tenant, waiting, node).accepted, 30)
