"""Leases on a real API server, under the installed rights: recorded before they are given, and dead once revoked."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.e2e.brokers import OURS, RELEASES, SECRETS, Broker, NodeKeys, a_broker, condition_of, records
from tests.e2e.client import Client
from tests.e2e.control_plane import ControlPlane, Options, control_plane
from tests.e2e.controllers import IMAGE, POLICY, Controllers, controllers, until
from tests.e2e.install import NAMESPACE, install
from tests.e2e.verifier_stream import VerifierStream, verifier_stream
from verifier.wire.codes import ReasonCode
from verifier.wire.result import Verdict

ROLE = "/apis/rbac.authorization.k8s.io/v1/clusterroles/nodewarden-broker"


@pytest.fixture(scope="module")
def plane(folder: Path) -> Iterator[ControlPlane]:
    """A control plane of this module's own: here the verifier's word is what a test says."""
    with control_plane(folder / "release", Options(nodes=0)) as running:
        install(running)
        yield running


@pytest.fixture(scope="module")
def stream(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VerifierStream]:
    with verifier_stream(tmp_path_factory.mktemp("stream"), plane.authority) as running:
        yield running


@pytest.fixture(scope="module")
def cluster(
    plane: ControlPlane, stream: VerifierStream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Controllers]:
    with controllers(plane, stream, tmp_path_factory.mktemp("controllers")) as made:
        made.policy(onLoss={"action": "None"})
        made.start()
        yield made


@pytest.fixture(scope="module")
def broker(
    plane: ControlPlane, stream: VerifierStream, cluster: Controllers, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Broker]:
    with a_broker(plane, stream, tmp_path_factory.mktemp("broker")) as made:
        made.start()
        yield made


@dataclass
class Pod:
    """A sensitive pod on a verified node of its own."""

    cluster: Controllers
    broker: Broker
    keys: NodeKeys
    node: str
    fields: dict[str, Any]

    def ask(self, *secrets: str) -> dict[str, Any]:
        """The first secret that the broker releases."""
        answer = self.broker.ask(self.keys, self.fields, *secrets)
        assert answer.status_code == 200, answer.text
        first: dict[str, Any] = answer.json()["secrets"][0]
        return first

    def denial(self, *secrets: str) -> ReasonCode | None:
        return self.broker.denial(self.keys, self.fields, *secrets)

    def says(self, verdict: Verdict) -> None:
        """The verifier's new word about the pod's node."""
        self.keys.publish(self.cluster.stream, self.cluster.get_node(self.node), verdict)

    def record(self) -> dict[str, Any]:
        """The pod's only record, empty where it has none."""
        uid = self.fields["metadata"]["uid"]
        found = [each for each in records(self.cluster.admin) if each["spec"]["podUID"] == uid]
        return found[0] if found else {}

    def shown(self) -> tuple[str, str] | None:
        """The condition SecretsReleased of the pod's workload."""
        name = self.fields["metadata"]["namespace"]
        return condition_of(self.cluster.admin.must_get(f"{OURS}/sensitiveworkloads/{name}"), "SecretsReleased")

    def revoked(self) -> bool:
        return "revokedAt" in self.record().get("status", {})


@pytest.fixture
def pod(cluster: Controllers, broker: Broker, namespace: str) -> Iterator[Pod]:
    keys, name = NodeKeys(), f"gpu-{uuid4().hex[:8]}"
    node = cluster.node(name)
    keys.publish(cluster.stream, node)
    cluster.wait_labelled(name)
    workload = {
        "apiVersion": "nodewarden.dev/v1alpha1",
        "kind": "SensitiveWorkload",
        "metadata": {"name": namespace},
        "spec": {
            "subjects": [{"namespace": namespace, "serviceAccount": "default"}],
            "policyRef": POLICY,
            "images": [IMAGE],
            "secrets": [{"name": secret, "path": secret.replace("/", "-")} for secret in SECRETS],
        },
    }
    cluster.admin.must_create(f"{OURS}/sensitiveworkloads", workload)
    made = Pod(cluster, broker, keys, name, cluster.pod_on(namespace, "llm-0", name))
    # Asked for what it may not have, so that nothing is leased yet.
    until("the broker knows pod, node and lease", lambda: made.denial("none") is ReasonCode.SECRET_NOT_ALLOWED, 30)
    yield made
    cluster.admin.delete(f"{OURS}/sensitiveworkloads/{namespace}")


def test_a_released_secret_opens_and_its_record_says_to_whom_it_went_and_nothing_of_the_content(pod: Pod) -> None:
    released = pod.ask()
    assert pod.keys.opened(released["jwe"]) == SECRETS["llm/key"]
    record = pod.record()
    assert record["metadata"]["uid"] == released["lease_id"]
    assert record["spec"]["podUID"] == pod.fields["metadata"]["uid"]
    assert (record["spec"]["nodeName"], record["spec"]["secret"]) == (pod.node, "llm/key")
    assert set(record["spec"]) == {
        "secret",
        "namespace",
        "podName",
        "podUID",
        "nodeName",
        "nodeUID",
        "bootID",
        "bindingKeyThumbprint",
        "evidenceDigest",
        "expires",
    }
    assert "status" not in record
    assert pod.ask()["lease_id"] == released["lease_id"]


def test_a_restarted_broker_and_a_second_one_give_the_same_lease(
    pod: Pod, plane: ControlPlane, stream: VerifierStream, tmp_path: Path
) -> None:
    lease = pod.ask()["lease_id"]
    with a_broker(plane, stream, tmp_path, "second") as second:
        # Nothing of the first one's but what the API server keeps.
        second.start()
        until(
            "the second one knows the pod",
            lambda: second.denial(pod.keys, pod.fields, "none") is ReasonCode.SECRET_NOT_ALLOWED,
        )
        answer = second.ask(pod.keys, pod.fields)
    assert answer.json()["secrets"][0]["lease_id"] == lease


def test_a_node_that_loses_trust_has_its_leases_revoked_within_a_second_and_gets_nothing_again(pod: Pod) -> None:
    pod.ask()
    began = time.monotonic()
    pod.says(Verdict.CONTRAINDICATED)
    until("it is revoked", pod.revoked)
    took = time.monotonic() - began
    assert took < 1.0, took
    assert pod.cluster.wait_unlabelled(pod.node) < 1.0
    record = pod.record()
    assert condition_of(record, "RevocationRequested") == ("True", "NodeFell")
    assert condition_of(record, "Revoked") == ("True", "LeaseEnded")
    assert pod.denial() is ReasonCode.NODE_NOT_VERIFIED
    # A secret that was not leased before has nothing that could be revoked; this one has, and stays so.
    pod.says(Verdict.AFFIRMING)
    until("the node is verified again", lambda: pod.denial("llm/other") is None)
    assert pod.denial() is ReasonCode.LEASE_REVOKED
    assert pod.denial("llm/other", "llm/key") is ReasonCode.LEASE_REVOKED
    until("the pod is told", lambda: ReasonCode.LEASE_REVOKED.value in _told(pod))


def _told(pod: Pod) -> str:
    namespace = pod.fields["metadata"]["namespace"]
    events = pod.cluster.admin.must_get(f"/api/v1/namespaces/{namespace}/events")["items"]
    return "\n".join(event["message"] for event in events if event["reason"] == "SecretReleaseDenied")


def test_a_revoked_lease_stays_revoked_when_the_broker_starts_again(pod: Pod) -> None:
    pod.ask()
    pod.says(Verdict.CONTRAINDICATED)
    until("it is revoked", pod.revoked)
    pod.broker.stop()
    pod.says(Verdict.AFFIRMING)
    pod.broker.start()
    until("the node is verified again", lambda: pod.denial("llm/other") is None, 30)
    assert pod.denial() is ReasonCode.LEASE_REVOKED


def test_the_workload_shows_what_its_pods_hold_and_what_was_taken_back(pod: Pod) -> None:
    until("nothing was released", lambda: pod.shown() == ("False", "NothingReleased"), 10)
    pod.ask()
    until("it is released", lambda: pod.shown() == ("True", "LeasesHeld"), 10)
    pod.broker.stop()
    pod.says(Verdict.CONTRAINDICATED)
    until("it is to be taken back", lambda: pod.shown() == ("False", "RevocationPending"), 10)
    pod.broker.start()
    until("it was taken back", lambda: pod.shown() == ("False", "LeasesRevoked"), 10)


def test_an_order_of_the_time_when_the_broker_was_down_is_obeyed_when_it_comes_back(pod: Pod) -> None:
    pod.ask()
    pod.broker.stop()
    pod.says(Verdict.CONTRAINDICATED)
    # Nobody answers: the label goes after a second all the same.
    assert 0.5 < pod.cluster.wait_unlabelled(pod.node) < 2.0
    assert not pod.revoked()
    pod.broker.start()
    until("it is revoked", pod.revoked)


def test_a_broker_that_cannot_record_a_lease_releases_nothing(pod: Pod) -> None:
    admin = pod.cluster.admin
    role = admin.must_get(ROLE)
    lesser = copy.deepcopy(role)
    for rule in lesser["rules"]:
        if rule["resources"] == ["secretreleases"]:
            rule["verbs"].remove("create")
    assert admin.replace(ROLE, lesser).accepted
    try:
        until("the right is gone", lambda: pod.denial() is not None)
        before = records(admin)
        assert pod.denial("llm/other") is ReasonCode.LEASE_NOT_RECORDED
        assert records(admin) == before
    finally:
        kept = admin.must_get(ROLE)
        admin.replace(ROLE, {**kept, "rules": role["rules"]})
    until("the right is back", lambda: pod.denial() is None)


# --- who may write what ---


def test_a_tenant_neither_sees_nor_writes_nor_deletes_records(pod: Pod, tenant: Client) -> None:
    pod.ask()
    record = pod.record()
    path = f"{RELEASES}/{record['metadata']['name']}"
    forged = {"apiVersion": "nodewarden.dev/v1alpha1", "kind": "SecretRelease", "metadata": {"name": "forged"}}
    answers = (
        tenant.get(RELEASES),
        tenant.get(path),
        tenant.create(RELEASES, {**forged, "spec": record["spec"]}),
        tenant.patch(path, {"metadata": {"labels": {"a": "b"}}}),
        tenant.patch(f"{path}/status", {"status": {"revokedAt": "2030-01-01T00:00:00Z"}}),
        tenant.delete(path),
        tenant.delete(RELEASES),
    )
    assert [answer.status for answer in answers] == [403] * len(answers)


def test_an_administrator_without_broken_glass_writes_no_record(pod: Pod, plane: ControlPlane) -> None:
    pod.ask()
    path = f"{RELEASES}/{pod.record()['metadata']['name']}"
    for answer in (
        plane.admin.delete(path),
        plane.admin.patch(f"{path}/status", {"status": {"conditions": []}}),
        plane.admin.create(RELEASES, _another(pod.record())),
    ):
        assert answer.denied_by_policy("nodewarden-objects"), answer.message


@pytest.fixture
def as_controller(plane: ControlPlane) -> Iterator[Client]:
    with plane.as_service_account(NAMESPACE, "nodewarden-controller") as client:
        yield client


@pytest.fixture
def as_broker(plane: ControlPlane) -> Iterator[Client]:
    with plane.as_service_account(NAMESPACE, "nodewarden-broker") as client:
        yield client


@pytest.fixture
def record(pod: Pod) -> dict[str, Any]:
    pod.ask()
    return pod.record()


def _another(record: dict[str, Any]) -> dict[str, Any]:
    return {**record, "metadata": {"name": uuid4().hex}}


def _status(*conditions: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"status": {**fields, "conditions": list(conditions)}}


def _condition(kind: str, status: str = "True") -> dict[str, Any]:
    at = "2026-01-01T00:00:00Z"
    return {"type": kind, "status": status, "reason": "Test", "message": "", "lastTransitionTime": at}


AT = "2030-01-01T00:00:00Z"
ORDER, ANSWER = _condition("RevocationRequested"), _condition("Revoked")


def test_the_controllers_token_neither_makes_nor_deletes_a_record(
    as_controller: Client, record: dict[str, Any]
) -> None:
    assert as_controller.create(RELEASES, _another(record)).status == 403
    assert as_controller.delete(f"{RELEASES}/{record['metadata']['name']}").status == 403


@pytest.mark.parametrize(
    "answered",
    [_status(revokedAt=AT), _status(ANSWER), _status(ORDER, ANSWER), _status(ORDER, _condition("Other"))],
    ids=["revokedAt", "Revoked", "order and answer", "a condition of nobody"],
)
def test_the_controllers_token_cannot_answer_its_own_order(
    as_controller: Client, record: dict[str, Any], answered: dict[str, Any]
) -> None:
    answer = as_controller.patch(f"{RELEASES}/{record['metadata']['name']}/status", answered)
    assert answer.denied_by_policy("nodewarden-releases"), answer.message


def test_neither_takes_back_an_order_or_an_answer(
    pod: Pod, as_controller: Client, as_broker: Client, record: dict[str, Any]
) -> None:
    path = f"{RELEASES}/{record['metadata']['name']}"
    as_controller.must_patch(f"{path}/status", _status(ORDER))
    until("the broker answers", pod.revoked)
    [answer] = [c for c in pod.record()["status"]["conditions"] if c["type"] == "Revoked"]
    for client, status in (
        (as_controller, _status(answer)),
        (as_controller, _status({**ORDER, "status": "False"}, answer)),
        (as_controller, _status(ORDER, revokedAt=None)),
        (as_broker, _status(answer)),
        (as_broker, _status({**ORDER, "status": "False"}, answer)),
        (as_broker, _status(ORDER, answer, revokedAt=None)),
        (as_broker, _status(ORDER, answer, revokedAt=AT)),
    ):
        refused = client.patch(f"{path}/status", status)
        assert refused.denied_by_policy("nodewarden-releases"), (status, refused.message)
    assert pod.denial() is ReasonCode.LEASE_REVOKED


def test_the_brokers_token_changes_no_record_and_nothing_else_of_ours(
    as_broker: Client, pod: Pod, record: dict[str, Any]
) -> None:
    path = f"{RELEASES}/{record['metadata']['name']}"
    # RBAC first: it may patch no record.
    assert as_broker.patch(path, {"spec": {"expires": AT}}).status == 403
    assert as_broker.patch(path, {"metadata": {"labels": {"a": "b"}}}).status == 403
    assert as_broker.patch(f"{path}/status", _status(ORDER)).denied_by_policy("nodewarden-releases")
    node = pod.cluster.get_node(pod.node)
    for attempt in (
        as_broker.patch(f"{OURS}/nodeattestations/{pod.node}/status", {"status": {"result": "a.b.c"}}),
        as_broker.patch(f"{OURS}/sensitiveworkloads/x/status", {"status": {}}),
        as_broker.delete(f"{OURS}/nodeattestations/{pod.node}"),
        as_broker.patch(f"/api/v1/nodes/{pod.node}", {"metadata": {"labels": {"a": "b"}}}),
        as_broker.delete(RELEASES),
    ):
        assert attempt.status == 403, attempt.message
    assert pod.cluster.get_node(pod.node)["metadata"]["labels"] == node["metadata"]["labels"]


def test_what_was_released_to_whom_is_never_changed_even_with_broken_glass(pod: Pod, record: dict[str, Any]) -> None:
    path = f"{RELEASES}/{record['metadata']['name']}"
    for field, value in (("podUID", "x"), ("expires", AT), ("bindingKeyThumbprint", "0" * 64)):
        assert pod.cluster.admin.patch(path, {"spec": {field: value}}).status == 422


@pytest.mark.parametrize("field", ["podUID", "nodeUID", "bootID", "bindingKeyThumbprint", "expires", "secret"])
def test_a_record_that_does_not_say_to_whom_or_until_when_is_refused(
    as_broker: Client, record: dict[str, Any], field: str
) -> None:
    whole = _another(record)
    lacking = {**whole, "spec": {name: value for name, value in whole["spec"].items() if name != field}}
    assert as_broker.create(RELEASES, whole, dry_run=True).accepted
    assert as_broker.create(RELEASES, lacking, dry_run=True).status == 422


def test_whoever_breaks_the_glass_revokes_by_hand(pod: Pod, record: dict[str, Any]) -> None:
    path = f"{RELEASES}/{record['metadata']['name']}/status"
    pod.cluster.admin.must_patch(path, _status({**ORDER, "reason": "ByHand", "message": "INC-1"}))
    until("the broker answers", pod.revoked)
    assert pod.denial() is ReasonCode.LEASE_REVOKED


def test_a_record_whose_order_has_no_answer_is_not_deleted_by_the_broker(
    pod: Pod, as_controller: Client, as_broker: Client, record: dict[str, Any]
) -> None:
    path = f"{RELEASES}/{record['metadata']['name']}"
    _with_broker_down(pod, lambda: as_controller.must_patch(f"{path}/status", _status(ORDER)))
    try:
        assert as_broker.delete(path).denied_by_policy("nodewarden-releases")
    finally:
        pod.broker.start()
    until("the broker answers", pod.revoked)
    assert as_broker.delete(path).accepted


def _with_broker_down(pod: Pod, act: Callable[[], object]) -> None:
    pod.broker.stop()
    act()
