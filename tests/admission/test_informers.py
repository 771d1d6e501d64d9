"""Informers against servers that forget, break off, lie or never stop: the cache is right or it ages."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from admission import informers
from admission.informers import Informer
from tests.admission.scripted_api import Asked, Said, a_list, a_status, events, scripted_api
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure, MalformedEvidence


def an_object(name: str, version: str, value: str = "a", namespace: str = "") -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": namespace, "resourceVersion": version}, "value": value}


def read(fields: Any) -> str:
    if fields["value"] == "bad":
        raise MalformedEvidence(ReasonCode.MANIFEST_INVALID, "value")
    return str(fields["value"])


class Server:
    """Lists and watches that follow one another; the last of each is repeated."""

    def __init__(self, lists: list[Callable[[], Said]], watches: list[Callable[[], Said]]) -> None:
        self.lists, self.watches = lists, watches
        self.versions: list[str] = []
        self._lock = threading.Lock()

    def __call__(self, asked: Asked) -> Said:
        with self._lock:
            if asked.watching:
                self.versions.append(asked.query["resourceVersion"])
            source = self.watches if asked.watching else self.lists
            return (source.pop(0) if len(source) > 1 else source[0])()


@contextmanager
def following(folder: Path, server: Server, heard: list[Any] | None = None) -> Iterator[Informer[str]]:
    """An informer of what `server` says; `heard` gets what is told of each object: name, before, after."""
    with scripted_api(folder, server) as (client, _):
        on_change = None if heard is None else lambda key, old, new: heard.append((key[1], old, new))
        informer = Informer(client, "/x", read, on_change=on_change)
        informer.start()
        try:
            yield informer
        finally:
            informer.stop()


def until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def quiet() -> Said:
    return events(then=lambda: time.sleep(0.3))


def test_objects_are_listed_and_then_followed(tmp_path: Path) -> None:
    told = events(
        ("ADDED", an_object("b", "6")),
        ("MODIFIED", an_object("a", "7", "changed")),
        ("DELETED", an_object("b", "8")),
        ("BOOKMARK", {"metadata": {"resourceVersion": "12"}}),
    )
    server = Server([lambda: a_list(an_object("a", "5"), version="5")], [lambda: told, quiet])
    with following(tmp_path, server) as informer:
        until(lambda: server.versions[:2] == ["5", "12"])
        assert dict(informer.moment()[1]) == {("", "a"): "changed"}
        assert informer.version == 4


def test_a_version_that_is_too_old_means_a_new_list_in_which_what_is_gone_is_gone(tmp_path: Path) -> None:
    lists = [
        lambda: a_list(an_object("a", "5"), an_object("b", "5"), version="5"),
        lambda: a_list(an_object("b", "50", "new"), version="50"),
    ]
    gone = [lambda: events(("ERROR", a_status(410, "Expired"))), quiet]
    with following(tmp_path, server := Server(lists, gone)) as informer:
        until(lambda: server.versions[-1:] == ["50"])
        assert dict(informer.moment()[1]) == {("", "b"): "new"}


def test_a_watch_that_breaks_off_goes_on_after_the_last_event_that_was_told(tmp_path: Path) -> None:
    watches = [lambda: events(("ADDED", an_object("b", "6")), cut=True), quiet]
    with following(tmp_path, server := Server([lambda: a_list(version="5")], watches)) as informer:
        until(lambda: server.versions[:2] == ["5", "6"])
        assert dict(informer.moment()[1]) == {("", "b"): "a"}


def test_an_event_that_changes_nothing_that_is_kept_changes_nothing(tmp_path: Path) -> None:
    heartbeat = events(("MODIFIED", {**an_object("a", "6"), "status": {"heartbeat": 1}}))
    server = Server([lambda: a_list(an_object("a", "5"), version="5")], [lambda: heartbeat, quiet])
    with following(tmp_path, server) as informer:
        until(lambda: "6" in server.versions)
        assert informer.version == 1


def test_an_object_that_cannot_be_read_is_kept_as_the_reason_why(tmp_path: Path) -> None:
    told = events(("MODIFIED", an_object("a", "6", "bad")))
    server = Server([lambda: a_list(an_object("a", "5"), an_object("b", "5"), version="5")], [lambda: told, quiet])
    with following(tmp_path, server) as informer:
        until(lambda: "6" in server.versions)
        objects = informer.moment()[1]
        assert objects[("", "b")] == "a"
        failure = objects[("", "a")]
        assert isinstance(failure, Failure)
        assert failure.code is ReasonCode.MANIFEST_INVALID


def test_a_cache_that_hears_nothing_ages_and_one_that_hears_bookmarks_does_not(tmp_path: Path) -> None:
    release = threading.Event()
    silent = lambda: events(("BOOKMARK", {"metadata": {"resourceVersion": "6"}}), then=lambda: release.wait(3))  # noqa: E731
    with following(tmp_path, Server([lambda: a_list(version="5")], [silent])) as informer:
        until(lambda: informer.alive_at is not None)
        time.sleep(0.2)
        first = informer.alive_at
        time.sleep(0.3)
        assert informer.alive_at == first
        release.set()
        until(lambda: informer.alive_at != first)


@pytest.mark.parametrize("status", [401, 403, 404, 429, 500])
def test_a_cache_that_cannot_be_listed_never_lived(tmp_path: Path, status: int) -> None:
    server = Server([lambda: Said(a_status(status, "Why"), status)], [quiet])
    with following(tmp_path, server) as informer:
        time.sleep(0.5)
        assert informer.alive_at is None
        assert server.versions == []


def test_more_objects_than_there_is_room_for_are_not_kept_and_the_cache_ages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(informers, "MAX_OBJECTS", 2)
    lists = [
        lambda: a_list(an_object("a", "5"), an_object("b", "5"), version="5"),
        lambda: a_list(an_object("a", "6"), an_object("b", "6"), an_object("c", "6"), version="6"),
    ]
    with following(tmp_path, Server(lists, [lambda: events(("ADDED", an_object("c", "6")))])) as informer:
        until(lambda: informer.alive_at is not None)
        time.sleep(0.6)
        first = informer.alive_at
        time.sleep(0.6)
        assert informer.alive_at == first
        assert len(dict(informer.moment()[1])) == 2


def test_a_list_without_a_version_to_watch_from_is_no_list(tmp_path: Path) -> None:
    with following(tmp_path, Server([lambda: a_list(version="")], [quiet])) as informer:
        time.sleep(0.4)
        assert informer.alive_at is None


def test_reading_again_lists_again(tmp_path: Path) -> None:
    lists = [lambda: a_list(an_object("a", "5"), version="5"), lambda: a_list(an_object("a", "5", "b"), version="6")]
    with following(tmp_path, Server(lists, [quiet])) as informer:
        until(lambda: informer.version == 1)
        informer.read_again()
        until(lambda: dict(informer.moment()[1]) == {("", "a"): "b"})


def test_a_fault_of_our_own_is_not_the_end_of_the_cache(tmp_path: Path) -> None:
    answers = [ZeroDivisionError(), None]

    def faulty(fields: Any) -> str:
        fault = answers.pop(0) if len(answers) > 1 else None
        if fault is not None:
            raise fault
        return read(fields)

    server = Server([lambda: a_list(an_object("a", "5"), version="5")], [quiet])
    with scripted_api(tmp_path, server) as (client, _):
        informer = Informer(client, "/x", faulty)
        informer.start()
        until(lambda: dict(informer.moment()[1]) == {("", "a"): "a"}, informers.MAX_BACKOFF_SECONDS + 3)
        informer.stop()


def test_each_object_that_changed_is_told_with_what_it_was_and_what_it_is(tmp_path: Path) -> None:
    lists = [
        lambda: a_list(an_object("a", "5"), an_object("b", "5"), version="5"),
        lambda: a_list(an_object("b", "50", "new"), an_object("c", "50", "bad"), an_object("d", "50"), version="50"),
    ]
    told = events(
        ("MODIFIED", an_object("a", "6", "changed")),
        ("MODIFIED", {**an_object("a", "7", "changed"), "status": {"heartbeat": 1}}),
        ("DELETED", an_object("a", "8")),
    )
    heard: list[Any] = []
    watches = [lambda: told, lambda: events(("ERROR", a_status(410, "Expired"))), quiet]
    with following(tmp_path, server := Server(lists, watches), heard) as informer:
        until(lambda: server.versions[-1:] == ["50"])
        assert informer.runs()
    assert sorted(heard[:2]) == [("a", None, "a"), ("b", None, "a")]
    assert heard[2:4] == [("a", "a", "changed"), ("a", "changed", None)]
    assert sorted(heard[4:]) == [("b", "a", "new"), ("d", None, "a")]


def test_an_object_that_can_no_longer_be_read_is_told_as_gone_and_named_as_unreadable(tmp_path: Path) -> None:
    told = events(("MODIFIED", an_object("a", "6", "bad")))
    heard: list[Any] = []
    server = Server([lambda: a_list(an_object("a", "5"), an_object("b", "5"), version="5")], [lambda: told, quiet])
    with following(tmp_path, server, heard) as informer:
        until(lambda: "6" in server.versions)
        assert heard[2:] == [("a", "a", None)]
        assert (informer.get("a"), informer.get("b"), informer.values()) == (None, "a", ["a"])
        assert (sorted(informer.unreadable()), sorted(informer.names())) == (["a"], ["a", "b"])


def test_what_a_write_of_our_own_returned_is_there_at_once_and_told_once(tmp_path: Path) -> None:
    written = an_object("a", "6", "written")
    heard: list[Any] = []
    with following(tmp_path, Server([lambda: a_list(an_object("a", "5"), version="5")], [quiet]), heard) as informer:
        until(lambda: informer.get("a") == "a")
        informer.told(written)
        assert informer.get("a") == "written"
        informer.told(written)
        informer.told({"metadata": {}})
        assert heard == [("a", None, "a"), ("a", "a", "written")]
