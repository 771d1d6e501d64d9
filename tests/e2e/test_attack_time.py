"""Silence, age, replays, re-created nodes: what is missing or old is a denial, and the cluster still comes up."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jwt
import pytest

from admission.clock import system_clock
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
from tests.e2e.install import NAMESPACE, ROOT
from tests.e2e.machines import Machine, machine
from tests.e2e.pods import a_pod, pods_path, wait_for_phase
from tests.e2e.programs import wait_until
from tests.e2e.system import System
from verifier.wire.codes import ReasonCode

UNSCHEDULED = {"schedulerName": "nobody"}
AGES_SECONDS = 15
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


def answer_to_binding(tenant: Client, waiting: Governed, node: str) -> Answer:
    """What would come of binding `p` to the node."""
    body = waiting.binding("p", node)
    return tenant.request("POST", waiting.path("p", "binding"), body, parameters={"dryRun": "All"})


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


def test_a_verified_node_that_runs_a_pod_with_host_access_takes_no_pod_until_that_is_gone(
    system: System, waiting: Governed, tenant: Client, tmp_path: Path
) -> None:
    plane, node = system.plane, "fake-15"
    with (
        spare_machine(system, tmp_path / "m", node),
        plane.as_user("somebody", "system:masters", "nodewarden:break-glass") as person,
    ):
        wait_until("the node would do", lambda: answer_to_binding(tenant, waiting, node).accepted, 10)
        person.must_create(pods_path("default"), a_pod("root", "registry.example/tool:1", hostPID=True, nodeName=node))
        wait_until("the label is gone", lambda: not is_labelled(plane.admin, node), 5)
        why = ReasonCode.NODE_RUNS_INTRUDER
        wait_until("by hand it is denied too", lambda: bind(tenant, waiting, node).denies(why), 5)
        person.delete(pods_path("default", "root"), grace_seconds=0)
        wait_until("the node would do again", lambda: answer_to_binding(tenant, waiting, node).accepted, 20)


def claims_of(result: str) -> dict[str, Any]:
    """What a result says, unverified."""
    found: dict[str, Any] = jwt.decode(result, options={"verify_signature": False})
    return found


@contextmanager
def limited_policy(system: System, name: str, age_seconds: int, remaining_seconds: int) -> Iterator[str]:
    """A policy with these limits, by its name; only while the block runs, since strict ones make results be renewed."""
    spec = {"maxEvidenceAge": f"{age_seconds}s", "minRemainingValidity": f"{remaining_seconds}s"}
    system.plane.admin.must_create(f"{GROUP}/nodetrustpolicies", a_policy(name, **spec))
    yield name
    system.plane.admin.delete(f"{GROUP}/nodetrustpolicies/{name}")


@pytest.mark.parametrize(("limit", "node"), [("maxEvidenceAge", "fake-11"), ("minRemainingValidity", "fake-14")])
def test_a_result_that_ages_between_scheduling_and_binding_is_denied(
    system: System, fleet: object, namespace: str, tenant: Client, tmp_path: Path, limit: str, node: str
) -> None:
    admin = system.plane.admin
    with spare_machine(system, tmp_path / "m", node):
        claims = claims_of(attestation(admin, node)["status"]["result"])
        ends_at = system_clock() + AGES_SECONDS
        if limit == "maxEvidenceAge":
            limits, why = (ends_at - claims["iat"], 1), ReasonCode.RESULT_TOO_OLD
        else:
            limits, why = (600, claims["exp"] - ends_at), ReasonCode.RESULT_VALIDITY_TOO_SHORT
        with (
            limited_policy(system, f"e2e-{limit.lower()}", *limits) as policy,
            governed_namespace(system, namespace, policy=policy) as made,
        ):
            tenant.must_create(made.path(), made.pod("p", **UNSCHEDULED))
            made.ungated("p")
            # Scheduled in time:
            allowed = answer_to_binding(tenant, made, node)
            assert allowed.accepted, allowed.message
            # and bound a second too late.
            time.sleep(max(0.0, ends_at + 1 - system_clock()))
            answer = bind(tenant, made, node)
            assert answer.denies(why), answer.message


def recreate(admin: Client, node: str) -> str:
    """The Node is deleted and made again under its name; returns its new UID."""
    admin.delete(f"/api/v1/nodes/{node}", grace_seconds=0)
    wait_until("the Node is gone", lambda: admin.get(f"/api/v1/nodes/{node}").status == 404, 20)
    return str(admin.must_create("/api/v1/nodes", fake_node(node))["metadata"]["uid"])


def test_a_node_created_again_under_its_name_has_to_prove_itself_again(
    system: System, waiting: Governed, tenant: Client, tmp_path: Path
) -> None:
    admin, node = system.plane.admin, "fake-12"
    with spare_machine(system, tmp_path / "m", node):
        uid = recreate(admin, node)

        def judged_again() -> bool:
            found = admin.get(f"{GROUP}/nodeattestations/{node}")
            return found.accepted and found.body["spec"]["nodeUID"] == uid and "result" in found.body.get("status", {})

        # The controller holds the verifier's newest word, of the Node that was, against the Node that is.
        wait_until("the new Node is judged", judged_again, 20)
        other = ReasonCode.RESULT_NODE_MISMATCH
        wait_until("the webhook knows", lambda: answer_to_binding(tenant, waiting, node).denies(other), 5)
        answer = bind(tenant, waiting, node)
        assert answer.denies(other), answer.message
        assert not is_labelled(admin, node)


def test_a_node_created_again_while_the_controller_is_down_has_no_result(
    system: System, waiting: Governed, tenant: Client, tmp_path: Path
) -> None:
    admin, node = system.plane.admin, "fake-13"
    with spare_machine(system, tmp_path / "m", node), system.controller.stopped():
        recreate(admin, node)
        # Its owner was the Node: the cluster's own garbage collector takes it, whatever becomes of us.
        path = f"{GROUP}/nodeattestations/{node}"
        wait_until("the attestation is gone", lambda: admin.get(path).status == 404, 20)
        missing = ReasonCode.RESULT_MISSING
        wait_until("the webhook knows", lambda: answer_to_binding(tenant, waiting, node).denies(missing), 5)
        answer = bind(tenant, waiting, node)
        assert answer.denies(missing), answer.message
        assert not is_labelled(admin, node)


def test_while_the_webhook_is_down_the_api_server_denies_in_its_own_words_and_kube_system_comes_up(
    system: System, waiting: Governed, tenant: Client
) -> None:
    admin = system.plane.admin
    account = {"metadata": {"name": "default"}}
    admin.create("/api/v1/namespaces/kube-system/serviceaccounts", account)
    with system.webhook.stopped():
        change = {"metadata": {"annotations": {"example.org/a": "b"}}}
        for answer in (
            tenant.create(waiting.path(), waiting.pod("q")),
            tenant.patch(waiting.path("p"), change),
            bind(tenant, waiting, GOOD_NODES[0]),
            tenant.get(waiting.path("p", "proxy/")),
        ):
            # No code of ours: none of our code is asked. What to do stands under these very words.
            assert answer.fails_calling("pods.nodewarden.dev"), answer.message
        admin.must_create(pods_path("kube-system"), a_pod("network-plugin", hostNetwork=True))
        wait_for_phase(admin, "kube-system", "network-plugin")
        admin.delete(pods_path("kube-system", "network-plugin"))
    # A webhook that starts trusts no Lease before it has seen it renewed.
    wait_until("the webhook allows again", lambda: bind(tenant, waiting, GOOD_NODES[0]).accepted, 20)


def test_what_the_api_server_says_of_a_webhook_that_is_down_is_explained_where_one_installs() -> None:
    assert '`failed calling webhook "pods.nodewarden.dev"`' in (ROOT / "docs/installing.md").read_text()


def test_in_an_enforced_namespace_the_policies_say_why_also_while_the_webhook_is_down(
    system: System, waiting: Governed, tenant: Client
) -> None:
    admin, path = system.plane.admin, f"/api/v1/namespaces/{waiting.namespace}"
    admin.must_patch(path, {"metadata": {"labels": {"nodewarden.dev/enforced": "true"}}})
    unverified = "nodewarden-bindings"
    wait_until(
        "the policy covers the namespace",
        lambda: answer_to_binding(tenant, waiting, UNKNOWN_NODE).denied_by_policy(unverified),
        10,
    )
    with system.webhook.stopped():
        answer = bind(tenant, waiting, UNKNOWN_NODE)
        assert answer.denied_by_policy(unverified), answer.message
        assert f"kubectl get nodeattestation {UNKNOWN_NODE}" in answer.message
        direct = tenant.create(waiting.path(), waiting.pod("q", nodeName=UNKNOWN_NODE))
        assert direct.denied_by_policy("nodewarden-direct-pods"), direct.message
        # A verified node passes the policy; without the webhook nobody looks at the pod, so that it waits.
        waits = bind(tenant, waiting, GOOD_NODES[0])
        assert waits.fails_calling("pods.nodewarden.dev"), waits.message


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
