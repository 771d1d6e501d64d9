"""Events for people: about the pod and its controller, once a minute, never in the way, never for a dry run."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from admission import cluster_events
from admission.cluster_events import MAX_MESSAGE_CHARACTERS, EventWriter, Notice, message_of, notice_of, release_notice
from admission.decision import Deny
from admission.review import parse_review
from tests.admission.scripted_api import Asked, Said, a_status, scripted_api
from tests.admission.test_webhook import BINDING, POD, a_review, changed
from tests.admission.world import NOW, POD_UID, an_identity
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure

OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "llm", "uid": "rs-1", "controller": True}
OTHER = {"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "cm-1"}
DENIAL = Deny((Failure(ReasonCode.NODE_NOT_VERIFIED, "nodes.gpu-1.verdict", "contraindicated", "affirming"),))


class Pods:
    """Answers for the pod, and keeps the Events that are posted."""

    def __init__(self) -> None:
        self.pod: dict[str, Any] | None = changed(POD, "metadata", ownerReferences=[OTHER, OWNER])
        self.posted: list[dict[str, Any]] = []
        self.hold = threading.Event()
        self.hold.set()

    def __call__(self, asked: Asked) -> Said:
        self.hold.wait(5)
        if asked.method == "POST":
            assert asked.path == "/api/v1/namespaces/ml/events"
            self.posted.append(asked.body)
            return Said({})
        return Said(self.pod) if self.pod is not None else Said(a_status(404, "NotFound"), 404)

    def about(self) -> list[tuple[str, str, str]]:
        return [(e["involvedObject"]["kind"], e["involvedObject"]["name"], e["reason"]) for e in self.posted]


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def noticed(body: dict[str, Any], denial: Deny = DENIAL, **request: Any) -> Notice | None:
    return notice_of(parse_review(json.dumps(a_review(body, **request)).encode()), denial)


def test_a_denied_binding_is_told_on_the_pod_and_on_its_controller(tmp_path: Path) -> None:
    api = Pods()
    with scripted_api(tmp_path, api) as (client, _):
        writer = EventWriter(client, "nodewarden-webhook", lambda: NOW)
        writer.start()
        writer.tell(noticed(BINDING, sub="binding"))
        until(lambda: len(api.posted) == 2)
    assert api.about() == [("Pod", "llm-0", "BindingDenied"), ("ReplicaSet", "llm", "BindingDenied")]
    event = api.posted[0]
    assert ReasonCode.NODE_NOT_VERIFIED.value in event["message"]
    assert ReasonCode.NODE_NOT_VERIFIED.remedy in event["message"]
    assert event["involvedObject"]["uid"] == POD_UID
    assert (event["type"], event["source"]["component"]) == ("Warning", "nodewarden-webhook")


def test_a_pod_that_may_not_come_to_be_is_told_on_its_controller(tmp_path: Path) -> None:
    api = Pods()
    owned = changed(POD, "metadata", ownerReferences=[OTHER, OWNER])
    with scripted_api(tmp_path, api) as (client, _):
        writer = EventWriter(client, "nodewarden-webhook", lambda: NOW)
        writer.start()
        writer.tell(noticed(owned))
        until(lambda: len(api.posted) == 1)
    assert api.about() == [("ReplicaSet", "llm", "PodDenied")]


@pytest.mark.parametrize(
    ("body", "request_fields"),
    [
        (BINDING, {"sub": "binding", "dryRun": True}),
        (POD, {}),
        (POD, {"operation": "UPDATE", "oldObject": POD}),
        ({"kind": "PodExecOptions"}, {"sub": "exec", "operation": "CONNECT"}),
    ],
    ids=["dry run", "nobody's pod", "an update, whose author is told", "exec, whose caller is told"],
)
def test_some_denials_make_no_event(body: dict[str, Any], request_fields: dict[str, Any]) -> None:
    assert noticed(body, **request_fields) is None


@pytest.mark.parametrize("code", [ReasonCode.POD_UNKNOWN, ReasonCode.VIEW_STALE])
def test_what_passes_by_itself_makes_no_event(code: ReasonCode) -> None:
    assert noticed(BINDING, Deny((Failure(code, "x"),)), sub="binding") is None


def test_a_denied_release_is_told_on_the_pod_that_asked(tmp_path: Path) -> None:
    api = Pods()
    failures = (Failure(ReasonCode.SECRET_NOT_ALLOWED, "secrets.a"),)
    with scripted_api(tmp_path, api) as (client, _):
        writer = EventWriter(client, "nodewarden-broker", lambda: NOW)
        writer.start()
        writer.tell(release_notice(an_identity(), failures))
        until(lambda: len(api.posted) == 2)
        # Another pod under the same name by now: not its event.
        writer.tell(release_notice(an_identity(pod_uid="another"), failures))
        # Gone by now: nobody's event.
        api.pod = None
        writer.tell(release_notice(an_identity(pod_name="gone"), failures))
        time.sleep(0.3)
    assert api.about() == [("Pod", "llm-0", "SecretReleaseDenied"), ("ReplicaSet", "llm", "SecretReleaseDenied")]


def test_the_same_words_are_told_once_and_a_flood_is_dropped_without_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_events, "MAX_WAITING", 4)
    api = Pods()
    api.hold.clear()
    with scripted_api(tmp_path, api) as (client, asked):
        writer = EventWriter(client, "nodewarden-webhook", lambda: NOW)
        writer.start()
        began = time.monotonic()
        for _ in range(100):
            writer.tell(noticed(BINDING, sub="binding"))
        for n in range(100):
            writer.tell(release_notice(an_identity(pod_name=f"p-{n}"), DENIAL.failures))
        assert time.monotonic() - began < 1
        api.hold.set()
        until(lambda: len([a for a in asked if a.method == "GET"]) >= 5)
        time.sleep(0.3)
        assert len([a for a in asked if a.method == "GET"]) <= 6


@pytest.mark.parametrize(
    ("namespace", "name"),
    [
        ("ml/secrets/tls?x=", "llm-0"),
        ("..", "llm-0"),
        ("ml", "llm-0?watch=true"),
        ("ml", "../../../../apis"),
        ("ml", "llm-0%2f"),
        ("ml", "llm 0"),
        ("ml", ""),
    ],
)
def test_a_made_up_review_whose_names_are_no_names_makes_no_event(namespace: str, name: str) -> None:
    assert noticed(BINDING, sub="binding") is not None
    body = {**BINDING, "metadata": {**BINDING["metadata"], "name": name}}
    assert noticed(body, sub="binding", name=name, namespace=namespace) is None
    if namespace != "ml":
        owned = changed(POD, "metadata", ownerReferences=[OWNER])
        assert noticed(owned, namespace=namespace) is None


def test_no_more_events_are_written_than_a_minute_has_room_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_events, "MAX_A_MINUTE", 20)
    api = Pods()
    # Nor by a pod that claims to have many controllers.
    owned = changed(POD, "metadata", ownerReferences=[OWNER] * 50)
    with scripted_api(tmp_path, api) as (client, _):
        writer = EventWriter(client, "nodewarden-webhook", lambda: NOW)
        for number in range(100):
            failure = Failure(ReasonCode.NODE_NOT_VERIFIED, f"made up {number}", "x", "y")
            writer.tell(noticed(owned, Deny((failure,))))
        writer.start()
        until(lambda: len(api.posted) >= 20)
        time.sleep(0.2)
    assert len(api.posted) == 20


def test_a_message_keeps_within_what_an_event_holds() -> None:
    failures = tuple(Failure(ReasonCode.RESULT_EXPIRED, f"nodes.{'n' * 200}", "x" * 300) for _ in range(20))
    assert len(message_of(failures)) == MAX_MESSAGE_CHARACTERS
