"""The API server's answers, good, bad and never-ending: each becomes JSON or one typed refusal, within bounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from admission import kube
from admission.kube import KubeClient, KubeConflict, KubeDenied, KubeGone, KubeNotFound, KubeRefusal, KubeUnavailable
from tests.admission.scripted_api import Said, a_kubeconfig, a_list, a_status, events, scripted_api
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Refusal

NODE = {"metadata": {"name": "n", "resourceVersion": "7"}}


def forever() -> Iterator[bytes]:
    while True:
        yield b"x" * 65536


@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [
        (401, KubeDenied, ReasonCode.KUBERNETES_REFUSED),
        (403, KubeDenied, ReasonCode.KUBERNETES_REFUSED),
        (404, KubeNotFound, ReasonCode.KUBERNETES_REFUSED),
        (409, KubeConflict, ReasonCode.KUBERNETES_REFUSED),
        (410, KubeGone, ReasonCode.KUBERNETES_REFUSED),
        (422, KubeRefusal, ReasonCode.KUBERNETES_REFUSED),
        (429, KubeUnavailable, ReasonCode.KUBERNETES_UNREACHABLE),
        (500, KubeUnavailable, ReasonCode.KUBERNETES_UNREACHABLE),
        (504, KubeUnavailable, ReasonCode.KUBERNETES_UNREACHABLE),
    ],
)
def test_an_answer_that_is_no_is_refused_by_its_kind(
    tmp_path: Path, status: int, kind: type[Refusal], code: ReasonCode
) -> None:
    with (
        scripted_api(tmp_path, lambda _: Said(a_status(status, "Why"), status)) as (client, _),
        pytest.raises(Refusal) as caught,
    ):
        client.request("GET", "/api/v1/nodes/n")
    assert type(caught.value) is kind
    assert caught.value.code is code


@pytest.mark.parametrize("body", [b"", b"{", b"<html>", b"\xff\xfe"])
def test_an_answer_that_is_no_json_is_unavailable(tmp_path: Path, body: bytes) -> None:
    with scripted_api(tmp_path, lambda _: Said(body)) as (client, _), pytest.raises(KubeUnavailable):
        client.request("GET", "/x")


def test_a_redirect_is_not_followed_and_takes_no_token_anywhere(tmp_path: Path) -> None:
    moved = Said({}, 307, headers={"Location": "https://127.0.0.1:1/elsewhere"})
    with scripted_api(tmp_path, lambda _: moved) as (client, asked), pytest.raises(KubeUnavailable):
        client.request("GET", "/x")
    assert len(asked) == 1


def test_an_answer_without_end_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube, "MAX_ANSWER_BYTES", 1 << 20)
    with scripted_api(tmp_path, lambda _: Said(parts=forever())) as (client, _), pytest.raises(KubeUnavailable):
        client.request("GET", "/x")


def test_a_list_is_read_page_by_page_and_one_without_items_is_refused(tmp_path: Path) -> None:
    pages = {"": a_list(NODE, proceed="next"), "next": a_list(NODE, version="9")}
    with scripted_api(tmp_path, lambda asked: pages[asked.query.get("continue", "")]) as (client, asked):
        found = list(client.list_pages("/x?fieldSelector=a"))
        assert [len(page["items"]) for page in found] == [1, 1]
        assert found[-1]["metadata"]["resourceVersion"] == "9"
        assert all(request.query["fieldSelector"] == "a" for request in asked)
    with scripted_api(tmp_path / "b", lambda _: Said({"items": None})) as (client, _), pytest.raises(KubeUnavailable):
        list(client.list_pages("/x"))


def test_a_list_that_never_ends_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube, "MAX_PAGES", 5)
    with scripted_api(tmp_path, lambda _: a_list(proceed="again")) as (client, asked), pytest.raises(KubeUnavailable):
        list(client.list_pages("/x"))
    assert len(asked) == 5


def test_a_watch_tells_every_event_and_returns_when_the_server_ends_it(tmp_path: Path) -> None:
    said = events(("ADDED", NODE), ("MODIFIED", NODE), ("DELETED", NODE), ("BOOKMARK", NODE))
    heard: list[str] = []
    with scripted_api(tmp_path, lambda _: said) as (client, asked):
        client.watch("/x", "5", lambda kind, _: heard.append(kind), on_open=lambda: heard.append("open"))
    assert heard == ["open", "ADDED", "MODIFIED", "DELETED", "BOOKMARK"]
    assert asked[0].query == {
        "watch": "1",
        "allowWatchBookmarks": "true",
        "resourceVersion": "5",
        "timeoutSeconds": "15",
    }


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        (lambda: events(("ERROR", a_status(410, "Expired"))), KubeGone),
        (lambda: events(("ERROR", a_status(500, "Broken"))), KubeUnavailable),
        (lambda: events(("RENAMED", NODE)), KubeUnavailable),
        (lambda: events(("ADDED", NODE), cut=True), KubeUnavailable),
        (lambda: Said(parts=iter([b'{"type":"ADDED","object":{']), cut=True), KubeUnavailable),
        (lambda: Said(parts=iter([b'{"type":"ADDED","object":{}'])), KubeUnavailable),
        (lambda: Said(parts=iter([b"no json\n"])), KubeUnavailable),
        (lambda: Said(parts=iter([b'["ADDED"]\n'])), KubeUnavailable),
        (lambda: Said(parts=iter([b'{"type":"ADDED"}\n'])), KubeUnavailable),
        (lambda: Said(parts=forever()), KubeUnavailable),
    ],
)
def test_a_watch_that_breaks_is_no_watch_that_ended(
    tmp_path: Path, said: Callable[[], Said], kind: type[Refusal], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kube, "MAX_EVENT_BYTES", 1 << 20)
    with scripted_api(tmp_path, lambda _: said()) as (client, _), pytest.raises(kind):
        client.watch("/x", "5", lambda _, __: None)


def test_a_watch_that_falls_silent_is_given_up_after_twice_its_time(tmp_path: Path) -> None:
    silent = events(("ADDED", NODE), then=lambda: time.sleep(4))
    with scripted_api(tmp_path, lambda _: silent) as (client, _):
        began = time.monotonic()
        with pytest.raises(KubeUnavailable):
            client.watch("/x", "5", lambda _, __: None, seconds=1)
        assert 1.5 < time.monotonic() - began < 3.5


def test_nobody_there_is_unavailable(tmp_path: Path) -> None:
    with scripted_api(tmp_path, lambda _: Said({})) as (client, _):
        assert client.request("GET", "/x") == {}
    path = tmp_path / "nobody"
    path.write_text(yaml.safe_dump(a_kubeconfig("https://127.0.0.1:1", tmp_path / "tls.pem")))
    with pytest.raises(KubeUnavailable):
        KubeClient.from_kubeconfig(path).request("GET", "/x", timeout_seconds=1)


@pytest.mark.parametrize(
    "change",
    [
        lambda config: config["clusters"][0]["cluster"].update({"insecure-skip-tls-verify": True}),
        lambda config: config["clusters"][0]["cluster"].update({"server": "http://127.0.0.1:1"}),
        lambda config: config.pop("contexts"),
    ],
)
def test_a_kubeconfig_that_checks_no_certificate_or_is_none_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    with scripted_api(tmp_path, lambda _: Said({})):
        config = a_kubeconfig("https://127.0.0.1:1", tmp_path / "tls.pem")
    path = tmp_path / "changed"
    path.write_text(yaml.safe_dump(config))
    KubeClient.from_kubeconfig(path)
    change(config)
    path.write_text(yaml.safe_dump(config))
    with pytest.raises(Refusal) as caught:
        KubeClient.from_kubeconfig(path)
    assert caught.value.code is ReasonCode.SETTING_INVALID


def test_a_cluster_that_we_are_not_in_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(Refusal) as caught:
        KubeClient.in_cluster()
    assert caught.value.code is ReasonCode.SETTING_INVALID
