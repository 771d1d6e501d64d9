"""The webhook over real HTTPS, with AdmissionReviews in the shape that an API server sends."""

from __future__ import annotations

import asyncio
import base64
import copy
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import ASGIApp
from structlog.testing import capture_logs

from admission import http_edge
from admission.review import MAX_REVIEW_BYTES
from admission.trust_objects import Access, Exemption
from admission.webhook import webhook_app
from tests.admission.served import Certificate, make_certificate, served, trusting
from tests.admission.world import IMAGE, NODE, NOW, POD_UID, a_cluster, a_pod, a_policy, a_result, a_workload
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure
from verifier.wire.result import Verdict

BAD_NODE = a_result(verdict=Verdict.CONTRAINDICATED, reasons=({"code": "cmdline-argument-forbidden"},))

POD: dict[str, Any] = {
    "kind": "Pod",
    "apiVersion": "v1",
    "metadata": {
        "name": "llm-0",
        "namespace": "ml",
        "uid": POD_UID,
        "creationTimestamp": "2026-11-30T00:00:00Z",
        "managedFields": [{"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:spec": {}}}],
    },
    "spec": {
        "volumes": [{"name": "kube-api-access", "projected": {"sources": []}}],
        "containers": [{"name": "main", "image": IMAGE, "resources": {}, "imagePullPolicy": "IfNotPresent"}],
        "restartPolicy": "Always",
        "serviceAccountName": "llm",
        "serviceAccount": "llm",
        "schedulerName": "default-scheduler",
        "tolerations": [
            {
                "key": "node.kubernetes.io/not-ready",
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": 300,
            }
        ],
        "priority": 0,
    },
    "status": {"phase": "Pending", "qosClass": "BestEffort"},
}
BINDING: dict[str, Any] = {
    "kind": "Binding",
    "apiVersion": "v1",
    "metadata": {"name": "llm-0", "namespace": "ml", "uid": POD_UID, "creationTimestamp": None},
    "target": {"kind": "Node", "name": NODE},
}


def a_review(
    body: dict[str, Any], resource: str = "pods", sub: str = "", operation: str = "CREATE", **request: Any
) -> dict[str, Any]:
    """As kube-apiserver 1.37 posts it."""
    fields: dict[str, Any] = {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": {"group": "", "version": "v1", "kind": body["kind"]},
        "resource": {"group": "", "version": "v1", "resource": resource},
        "requestKind": {"group": "", "version": "v1", "kind": body["kind"]},
        "requestResource": {"group": "", "version": "v1", "resource": resource},
        "name": "llm-0",
        "namespace": "ml",
        "operation": operation,
        "userInfo": {"username": "system:kube-scheduler", "groups": ["system:authenticated"]},
        "object": copy.deepcopy(body),
        "oldObject": None,
        "dryRun": False,
        "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
        **request,
    }
    if sub:
        fields["subResource"] = fields["requestSubResource"] = sub
    return {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": fields}


def changed(body: dict[str, Any], part: str, **fields: Any) -> dict[str, Any]:
    return {**copy.deepcopy(body), part: {**copy.deepcopy(body[part]), **fields}}


class Hook:
    """A webhook behind HTTPS over a cluster that the test may change."""

    def __init__(self) -> None:
        self.cluster = a_cluster()
        self.client: httpx.Client | None = None

    def app(self) -> ASGIApp:
        return webhook_app(lambda: self.cluster, lambda: None, 60, lambda: NOW)

    def post(self, review: Any, path: str = "/validate") -> httpx.Response:
        assert self.client is not None
        return self.client.post(path, content=review if isinstance(review, bytes) else json.dumps(review).encode())

    def response(self, review: dict[str, Any], path: str = "/validate") -> dict[str, Any]:
        answer = self.post(review, path)
        assert answer.status_code == 200, answer.text
        document = answer.json()
        assert (document["apiVersion"], document["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
        found: dict[str, Any] = document["response"]
        assert found["uid"] == review["request"]["uid"]
        return found

    def denied(self, review: dict[str, Any]) -> list[str]:
        response = self.response(review)
        assert response["allowed"] is False
        status = response["status"]
        assert (status["code"], status["reason"]) == (403, "Forbidden")
        return [cause["reason"] for cause in status["details"]["causes"]]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def running(certificate: Certificate) -> Iterator[Hook]:
    hook = Hook()
    with (
        served(hook.app(), certificate) as address,
        httpx.Client(base_url=address, verify=trusting(certificate)) as client,
    ):
        hook.client = client
        yield hook


@pytest.fixture
def hook(running: Hook) -> Hook:
    running.cluster = a_cluster()
    return running


def test_a_sensitive_pod_is_admitted_and_bound_to_a_verified_node(hook: Hook) -> None:
    assert hook.response(a_review(POD)) == {"uid": "705ab4f5-6393-11e8-b7cc-42010a800002", "allowed": True}
    assert hook.response(a_review(BINDING, sub="binding"))["allowed"] is True


@pytest.mark.parametrize(("resource", "sub"), [("pods", "binding"), ("bindings", "")])
def test_a_binding_to_an_unverified_node_is_denied_on_both_paths_with_what_to_do(
    hook: Hook, resource: str, sub: str
) -> None:
    hook.cluster = a_cluster(result=BAD_NODE)
    review = a_review(BINDING, resource, sub)
    assert hook.denied(review) == ["node-not-verified"]
    message = hook.response(review)["status"]["message"]
    assert NODE in message
    assert "cmdline-argument-forbidden" in message
    assert ReasonCode.NODE_NOT_VERIFIED.remedy in message


def test_a_binding_of_an_unknown_pod_is_denied_with_a_word_to_retry(hook: Hook) -> None:
    binding = changed(BINDING, "metadata", name="llm-9")
    response = hook.response(a_review(binding, sub="binding", name="llm-9"))
    assert response["status"]["details"]["causes"][0]["reason"] == ReasonCode.POD_UNKNOWN.value
    assert response["status"]["details"]["retryAfterSeconds"] == 1


def test_labels_and_annotations_of_ours_on_a_binding_are_denied(hook: Hook) -> None:
    for field in ("labels", "annotations"):
        binding = changed(BINDING, "metadata", **{field: {"nodewarden.dev/workload": "llm"}})
        assert hook.denied(a_review(binding, sub="binding")) == [ReasonCode.BINDING_METADATA_FORBIDDEN.value]


def test_a_pod_set_directly_onto_an_unverified_node_is_denied(hook: Hook) -> None:
    hook.cluster = a_cluster(result=BAD_NODE)
    pod = changed(POD, "spec", nodeName=NODE)
    assert hook.denied(a_review(pod)) == ["node-name-set-directly", "node-not-verified"]


def test_an_unlisted_image_in_an_init_container_is_denied(hook: Hook) -> None:
    pod = changed(POD, "spec", initContainers=[{"name": "setup", "image": "busybox"}])
    assert hook.denied(a_review(pod)) == [ReasonCode.WORKLOAD_IMAGE_NOT_ALLOWED.value]


def test_an_ephemeral_container_with_an_unlisted_image_is_denied(hook: Hook) -> None:
    debugged = changed(POD, "spec", ephemeralContainers=[{"name": "debug", "image": "busybox"}])
    review = a_review(debugged, sub="ephemeralcontainers", operation="UPDATE", oldObject=POD)
    assert hook.denied(review) == [ReasonCode.WORKLOAD_IMAGE_NOT_ALLOWED.value, ReasonCode.ACCESS_FORBIDDEN.value]


@pytest.mark.parametrize(
    ("sub", "kind", "open_one"),
    [
        ("exec", "PodExecOptions", Access(exec=True)),
        ("attach", "PodAttachOptions", Access(exec=True)),
        ("portforward", "PodPortForwardOptions", Access(port_forward=True)),
        ("proxy", "PodProxyOptions", Access(port_forward=True)),
    ],
)
def test_a_way_into_a_sensitive_pod_is_closed_unless_its_workload_opens_it(
    hook: Hook, sub: str, kind: str, open_one: Access
) -> None:
    review = a_review({"kind": kind, "apiVersion": "v1"}, sub=sub, operation="CONNECT")
    assert hook.denied(review) == [ReasonCode.ACCESS_FORBIDDEN.value]
    hook.cluster = a_cluster(workloads=(a_workload(access=open_one),))
    assert hook.response(review)["allowed"] is True
    # Another workload over the same pod that keeps it closed, closes it.
    hook.cluster = a_cluster(workloads=(a_workload(access=open_one), a_workload(name="second")))
    assert hook.denied(review) == [ReasonCode.ACCESS_FORBIDDEN.value]
    hook.cluster = a_cluster(policies=(a_policy(enforcement="warn"),))
    answer = hook.response(review)
    assert (answer["allowed"], len(answer["warnings"])) == (True, 1)
    hook.cluster = a_cluster(pod=a_pod(service_account="web"))
    assert hook.response(review)["allowed"] is True
    assert hook.denied({**review, "request": {**review["request"], "name": "llm-1"}}) == [ReasonCode.POD_UNKNOWN.value]


@pytest.mark.parametrize("name", ["llm-0", "llm-0:8080", "http:llm-0:8080", "https:llm-0:8080", ":llm-0:8080"])
def test_a_proxied_connection_is_to_the_pod_whatever_port_and_scheme_it_names(hook: Hook, name: str) -> None:
    options = {"kind": "PodProxyOptions", "apiVersion": "v1"}
    review = a_review(options, sub="proxy", operation="CONNECT", name=name)
    assert hook.denied(review) == [ReasonCode.ACCESS_FORBIDDEN.value]
    hook.cluster = a_cluster(pod=a_pod(service_account="web"))
    assert hook.response(review)["allowed"] is True


@pytest.mark.parametrize(
    ("sub", "name"), [("proxy", "a:b:c:d"), ("proxy", ":"), ("proxy", "http::80"), ("exec", "a:1")]
)
def test_a_connection_to_no_pod_s_name_is_malformed(hook: Hook, sub: str, name: str) -> None:
    options = {"kind": "PodProxyOptions", "apiVersion": "v1"}
    answer = hook.post(a_review(options, sub=sub, operation="CONNECT", name=name))
    assert answer.status_code == 400
    assert ReasonCode.REVIEW_MALFORMED.value in answer.text


NAMESPACE: dict[str, Any] = {
    "kind": "Namespace",
    "apiVersion": "v1",
    "metadata": {"name": "ml", "labels": {"nodewarden.dev/enforced": "true", "team": "a"}},
}


@pytest.mark.parametrize("labels", [{"team": "a"}, {"nodewarden.dev/enforced": "false"}, None])
def test_a_governed_namespace_cannot_leave_the_webhooks_sight(hook: Hook, labels: Any) -> None:
    hidden = changed(NAMESPACE, "metadata", labels=labels)
    review = a_review(hidden, "namespaces", operation="UPDATE", oldObject=NAMESPACE, name="ml", namespace="ml")
    assert hook.denied(review) == [ReasonCode.NAMESPACE_LABEL_REMOVED.value]
    hook.cluster = a_cluster(workloads=())
    assert hook.response(review)["allowed"] is True


def test_a_governed_namespace_may_change_in_other_ways_and_not_be_deleted(hook: Hook) -> None:
    other = changed(NAMESPACE, "metadata", labels={"nodewarden.dev/enforced": "true"})
    review = a_review(other, "namespaces", operation="UPDATE", oldObject=NAMESPACE, name="ml")
    assert hook.response(review)["allowed"] is True
    deleted = a_review(NAMESPACE, "namespaces", operation="DELETE", oldObject=NAMESPACE, name="ml", object=None)
    assert hook.denied(deleted) == [ReasonCode.NAMESPACE_GOVERNED.value]
    hook.cluster = a_cluster(workloads=())
    assert hook.response(deleted)["allowed"] is True


def test_a_status_update_that_drops_a_label_of_ours_is_denied_like_any_other(hook: Hook) -> None:
    labelled = changed(POD, "metadata", labels={"nodewarden.dev/workload": "llm"})
    review = a_review(POD, sub="status", operation="UPDATE", oldObject=labelled)
    assert hook.denied(review) == [ReasonCode.WORKLOAD_LABEL_CHANGED.value]
    assert hook.response(a_review(POD, sub="status", operation="UPDATE", oldObject=POD))["allowed"] is True


def test_an_ordinary_update_and_a_resize_are_allowed(hook: Hook) -> None:
    labelled = changed(POD, "metadata", labels={"app": "llm"})
    assert hook.response(a_review(labelled, operation="UPDATE", oldObject=POD))["allowed"] is True
    assert hook.response(a_review(POD, sub="resize", operation="UPDATE", oldObject=POD))["allowed"] is True


def test_a_pod_made_from_a_generated_name_without_uid_is_judged_like_any_other(hook: Hook) -> None:
    pod = changed(POD, "metadata", generateName="llm-", name="", uid="")
    assert hook.response(a_review(pod, name=""))["allowed"] is True


def test_a_pod_that_nothing_governs_passes_untouched_through_both_hooks(hook: Hook) -> None:
    pod = changed(POD, "spec", serviceAccountName="web", serviceAccount="web", nodeName="gpu-9")
    for path in ("/validate", "/mutate"):
        assert hook.response(a_review(pod), path) == {"uid": "705ab4f5-6393-11e8-b7cc-42010a800002", "allowed": True}


def test_the_mutating_hook_steers_a_sensitive_pod_and_keeps_its_own_affinity(hook: Hook) -> None:
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    pod = changed(POD, "spec", affinity={"nodeAffinity": {required: {"nodeSelectorTerms": terms}}})
    response = hook.response(a_review(pod), "/mutate")
    assert response["patchType"] == "JSONPatch"
    (patch,) = json.loads(base64.b64decode(response["patch"]))
    assert (patch["op"], patch["path"]) == ("add", "/spec/affinity")
    wanted = {"key": "nodewarden.node-restriction.kubernetes.io/h200-prod", "operator": "In", "values": ["true"]}
    (term,) = patch["value"]["nodeAffinity"][required]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [terms[0]["matchExpressions"][0], wanted]
    steered = changed(POD, "spec", affinity=patch["value"])
    assert "patch" not in hook.response(a_review(steered), "/mutate")


def test_a_policy_that_only_warns_warns_and_one_that_audits_annotates(hook: Hook) -> None:
    hook.cluster = a_cluster(result=BAD_NODE, policies=(a_policy(enforcement="warn"),))
    response = hook.response(a_review(BINDING, sub="binding"))
    assert response["allowed"] is True
    assert "node-not-verified" in response["warnings"][0]
    hook.cluster = a_cluster(result=BAD_NODE, policies=(a_policy(enforcement="audit"),))
    response = hook.response(a_review(BINDING, sub="binding"))
    assert response["auditAnnotations"] == {"would-deny": "node-not-verified"}
    exempt = a_policy(exemptions=(Exemption("ml", "llm", "INC-1", NOW + 9),))
    hook.cluster = a_cluster(result=BAD_NODE, policies=(exempt,))
    assert any("INC-1" in warning for warning in hook.response(a_review(BINDING, sub="binding"))["warnings"])


@pytest.mark.parametrize(
    ("resource", "sub", "operation"),
    [
        ("pods", "", "DELETE"),
        ("pods", "", "CONNECT"),
        ("pods", "exec", "CREATE"),
        ("pods", "log", "CONNECT"),
        ("pods", "status", "CREATE"),
        ("namespaces", "", "CREATE"),
        ("pods", "binding", "UPDATE"),
        ("nodes", "", "UPDATE"),
        ("secrets", "", "CREATE"),
    ],
)
def test_a_resource_that_the_webhook_does_not_know_is_denied(
    hook: Hook, resource: str, sub: str, operation: str
) -> None:
    assert hook.denied(a_review(POD, resource, sub, operation)) == [ReasonCode.REVIEW_MALFORMED.value]
    assert hook.response(a_review(POD, resource, sub, operation), "/mutate")["allowed"] is False


def _request(**fields: Any) -> dict[str, Any]:
    return changed(a_review(POD), "request", **fields)


@pytest.mark.parametrize(
    "review",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        {**a_review(POD), "apiVersion": "admission.k8s.io/v1beta1"},
        {**a_review(POD), "kind": "Pod"},
        {**a_review(POD), "request": None},
        {**a_review(POD), "request": []},
        _request(uid=""),
        _request(uid=7),
        _request(resource={"group": "apps", "version": "v1", "resource": "pods"}),
        _request(resource={"group": "", "version": "v2", "resource": "pods"}),
        _request(resource="pods"),
        _request(operation=None),
        _request(namespace=""),
        _request(dryRun="no"),
        _request(object=None),
        _request(object=changed(POD, "metadata", namespace="other")),
        _request(object=changed(POD, "spec", containers=[])),
        _request(object=changed(POD, "spec", containers="main")),
        _request(object=changed(POD, "spec", serviceAccountName=["llm"])),
        _request(object=changed(POD, "spec", tolerations=[1])),
        _request(object=changed(POD, "spec", containers=[{"name": "a", "image": "b"}] * 70_000)),
        a_review(changed(BINDING, "metadata", name="llm-1"), sub="binding"),
        a_review(changed(BINDING, "metadata", namespace="other"), sub="binding"),
        a_review(changed(BINDING, "target", kind="Pod"), sub="binding"),
        a_review(changed(BINDING, "target", name=""), sub="binding"),
        a_review({**BINDING, "kind": "Pod"}, sub="binding"),
    ],
)
def test_a_review_without_the_documented_form_is_a_400_so_that_the_api_server_denies(hook: Hook, review: Any) -> None:
    answer = hook.post(review)
    assert answer.status_code == 400
    assert answer.json()["code"] == ReasonCode.REVIEW_MALFORMED.value


def test_an_oversized_review_is_refused_before_it_is_held(hook: Hook) -> None:
    answer = hook.post(b" " * (MAX_REVIEW_BYTES + 1))
    assert (answer.status_code, answer.json()["code"]) == (413, ReasonCode.BODY_TOO_LARGE.value)


def test_a_body_that_trickles_in_is_given_up(certificate: Certificate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_edge, "BODY_TIMEOUT_SECONDS", 0.2)
    with served(Hook().app(), certificate) as address:
        port = int(address.rpartition(":")[2])
        with (
            socket.create_connection(("127.0.0.1", port), timeout=5) as plain,
            trusting(certificate).wrap_socket(plain, server_hostname="127.0.0.1") as secure,
        ):
            secure.sendall(b"POST /validate HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
            answer = secure.recv(4096)
    assert answer.startswith(b"HTTP/1.1 503")
    assert ReasonCode.RATE_LIMITED.value.encode() in answer or b"problem+json" in answer


def test_a_connection_that_never_shakes_hands_blocks_nobody(hook: Hook) -> None:
    assert hook.client is not None
    with socket.create_connection((hook.client.base_url.host, hook.client.base_url.port or 0), timeout=5):
        assert hook.response(a_review(POD))["allowed"] is True


def test_a_fault_of_ours_is_a_500_that_tells_nothing(hook: Hook) -> None:
    class Broken:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("inner words")

    hook.cluster = Broken()  # type: ignore[assignment]  # - that is the fault
    answer = hook.post(a_review(POD))
    assert (answer.status_code, answer.json()["code"]) == (500, ReasonCode.INTERNAL_ERROR.value)
    assert "inner words" not in answer.text


def test_denials_are_logged_with_their_reasons_and_whether_it_was_a_dry_run(hook: Hook) -> None:
    hook.cluster = a_cluster(result=BAD_NODE)
    with capture_logs() as logs:
        hook.denied(a_review(BINDING, sub="binding", dryRun=True))
    assert [(entry["event"], entry["dry_run"]) for entry in logs] == [("pod_denied", True)]
    assert logs[0]["reasons"][0]["code"] == ReasonCode.NODE_NOT_VERIFIED.value


def test_names_with_control_characters_do_not_forge_log_lines_or_messages(hook: Hook) -> None:
    pod = changed(POD, "spec", containers=[{"name": "a\nforged", "image": "x\x1b[31m"}])
    message = hook.response(a_review(pod))["status"]["message"]
    assert message.isprintable()


def test_the_server_speaks_tls_only(certificate: Certificate, tmp_path: Path) -> None:
    with served(Hook().app(), certificate) as address:
        with pytest.raises(httpx.HTTPError):
            httpx.get(address.replace("https", "http") + "/healthz", timeout=5)
        with pytest.raises(httpx.ConnectError):
            httpx.get(address + "/healthz", verify=trusting(make_certificate(tmp_path)), timeout=5)
        assert httpx.get(address + "/healthz", verify=trusting(certificate)).json() == {"status": "ok"}


def test_a_review_of_more_values_than_a_pod_has_is_refused_before_it_is_parsed(hook: Hook) -> None:
    body = json.dumps(a_review({**POD, "x": [{}] * 300_000}), separators=(",", ":")).encode()
    assert len(body) < MAX_REVIEW_BYTES
    answer = hook.post(body)
    assert (answer.status_code, answer.json()["code"]) == (413, ReasonCode.BODY_TOO_LARGE.value)


def test_health_says_that_the_view_is_stale_and_readiness_fails() -> None:
    stale = Failure(ReasonCode.VIEW_STALE, "view.manifests")
    app = webhook_app(a_cluster, lambda: None, 60, lambda: NOW, unready=lambda: stale)

    async def ask(path: str) -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="https://webhook") as client:
            return await client.get(path)

    alive, ready = asyncio.run(ask("/healthz")), asyncio.run(ask("/readyz"))
    assert (alive.status_code, alive.json()) == (200, {"status": "stale", "code": ReasonCode.VIEW_STALE.value})
    assert (ready.status_code, ready.json()["code"]) == (503, ReasonCode.VIEW_STALE.value)
