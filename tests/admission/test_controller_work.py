"""The controller's moving parts, each alone: the book of results, the queue of work, the stream from the verifier."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from admission.controller.process import BAD_NEWS_SECONDS
from admission.controller.results_book import ResultsBook
from admission.controller.results_stream import ResultsStream
from admission.controller.settings import ControllerSettings
from admission.key_sets import KeySet
from admission.results import InMemorySequences, ResultVerifier
from admission.settings import read_settings
from admission.work_queue import WorkQueue
from tests.admission.world import AUDIENCE, ISSUER, NODE, NOW, Signer, a_result
from tests.e2e.authority import Authority
from tests.e2e.verifier_stream import VerifierStream
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure, MalformedEvidence, Rejection
from verifier.wire.result import Verdict


def eventually(what: str, condition: Callable[[], bool], seconds: float = 15) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.01)


# --- the book ---


class Keys:
    """The keys that count, and those that a refresh would find."""

    def __init__(self, *signers: Signer) -> None:
        self.now = self.next = self._set(signers)
        self.refreshed = 0

    def _set(self, signers: tuple[Signer, ...]) -> KeySet:
        return KeySet({key: value for signer in signers for key, value in signer.key_set().keys.items()})

    def rotate(self, *signers: Signer) -> None:
        self.next = self._set(signers)

    def refresh(self) -> None:
        self.refreshed += 1
        self.now = self.next


def a_book(keys: Keys) -> ResultsBook:
    return ResultsBook(ResultVerifier(lambda: keys.now, ISSUER, AUDIENCE, InMemorySequences()), keys.refresh)


def test_the_book_holds_the_newest_result_and_never_goes_back() -> None:
    signer = Signer()
    book = a_book(Keys(signer))
    newer = signer.result(a_result(sequence=NOW * 1000 + 1, verdict=Verdict.WARNING))
    assert book.take(newer) == NODE
    assert book.take(signer.result(a_result())) is None
    entry = book.entry(NODE)
    assert entry is not None
    assert (entry.token, entry.result.verdict) == (newer, Verdict.WARNING)


def test_a_result_that_the_verifier_did_not_sign_is_not_in_the_book() -> None:
    book = a_book(Keys(Signer()))
    assert book.take(Signer().result(a_result())) is None
    assert book.take("no token") is None
    missing = book.result_of(NODE)
    assert isinstance(missing, Failure)
    assert missing.code is ReasonCode.RESULT_MISSING


def test_a_result_under_a_new_key_is_taken_once_the_key_is_published() -> None:
    old, new = Signer(), Signer(kid="key-2")
    keys = Keys(old)
    keys.rotate(old, new)
    assert a_book(keys).take(new.result(a_result())) == NODE
    assert keys.refreshed == 1


# --- the queue ---


@contextmanager
def working(queue: WorkQueue[Any], workers: int = 2) -> Iterator[None]:
    threads = [threading.Thread(target=queue.work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        queue.stop()
        for thread in threads:
            thread.join(5)


def test_a_key_is_done_once_however_often_it_was_added() -> None:
    done: list[str] = []
    queue: WorkQueue[str] = WorkQueue(done.append)
    for _ in range(5):
        queue.add("a", 0.05)
    with working(queue):
        time.sleep(0.3)
    assert done == ["a"]


def test_a_key_is_never_in_two_hands_and_what_came_meanwhile_is_not_lost() -> None:
    hands, most, done = [0], [0], [0]
    lock = threading.Lock()

    def reconcile(_: str) -> None:
        with lock:
            hands[0] += 1
            most[0] = max(most[0], hands[0])
        time.sleep(0.05)
        with lock:
            hands[0] -= 1
            done[0] += 1

    queue: WorkQueue[str] = WorkQueue(reconcile)
    with working(queue, workers=4):
        queue.add("a")
        time.sleep(0.02)
        queue.add("a")
        eventually("it is done again", lambda: done[0] == 2)
    assert most[0] == 1


def test_a_key_that_is_due_soon_does_not_wait_for_one_in_hand_that_is_due_again() -> None:
    done: list[tuple[str, float]] = []
    began = time.monotonic()

    def reconcile(key: str) -> None:
        done.append((key, time.monotonic() - began))
        if key == "slow":
            time.sleep(0.6)

    queue: WorkQueue[str] = WorkQueue(reconcile)
    with working(queue):
        queue.add("slow")
        eventually("it is in hand", lambda: len(done) == 1)
        queue.add("soon", 0.05)
        queue.add("slow")
        eventually("the other is done", lambda: len(done) >= 2)
    assert done[1][0] == "soon"
    assert done[1][1] < 0.5


def test_a_key_that_failed_comes_again_and_others_do_not_wait_for_it() -> None:
    tries: dict[str, int] = {"bad": 0, "worse": 0, "good": 0}

    def reconcile(key: str) -> None:
        tries[key] += 1
        if key == "bad" and tries[key] < 3:
            raise Rejection(ReasonCode.KUBERNETES_REFUSED, "nodes")
        if key == "worse":
            raise RuntimeError

    queue: WorkQueue[str] = WorkQueue(reconcile)
    with working(queue, workers=1):
        for key in ("worse", "bad", "good"):
            queue.add(key)
        eventually("all are tried", lambda: tries["bad"] == 3 and tries["good"] == 1 and tries["worse"] >= 2)


def test_a_sooner_time_replaces_a_later_one_and_never_the_other_way_round() -> None:
    done: list[float] = []
    began = time.monotonic()
    queue: WorkQueue[str] = WorkQueue(lambda _: done.append(time.monotonic() - began))
    queue.add("a", 30)
    queue.add("a", 0.05)
    queue.add("a", 30)
    with working(queue):
        eventually("it is done", lambda: len(done) == 1)
    assert done[0] < 5


def test_bad_news_goes_ahead_of_all_that_waits() -> None:
    done: list[str] = []
    queue: WorkQueue[str] = WorkQueue(done.append)
    for key in ("good-1", "good-2", "bad"):
        queue.add(key)
    queue.add("bad", BAD_NEWS_SECONDS)
    with working(queue, workers=1):
        eventually("all are done", lambda: len(done) == 3)
    assert done == ["bad", "good-1", "good-2"]


def test_a_key_comes_again_after_the_time_that_its_reconciler_asked_for() -> None:
    done: list[str] = []

    def reconcile(key: str) -> float | None:
        done.append(key)
        return 0.02 if len(done) < 3 else None

    queue: WorkQueue[str] = WorkQueue(reconcile)
    with working(queue):
        queue.add("a")
        eventually("it is done three times", lambda: len(done) == 3)
        time.sleep(0.1)
    assert len(done) == 3


# --- the stream ---


@pytest.fixture
def served(tmp_path: Path) -> Iterator[VerifierStream]:
    stream = VerifierStream(tmp_path, Authority(tmp_path))
    stream.start()
    yield stream
    stream.stop()


NODE_OBJECT = {"metadata": {"name": NODE, "uid": "u"}, "status": {}}


@contextmanager
def following(served: VerifierStream, taken: list[str], **changes: Any) -> Iterator[ResultsStream]:
    arguments = {"url": served.url, "ca_file": served.ca, "token_file": served.token_file, **changes}
    stream = ResultsStream(**arguments, take=taken.append)
    thread = threading.Thread(target=stream.run)
    thread.start()
    try:
        yield stream
    finally:
        stream.stop()
        served.stop()  # its next sign of life would wake the thread as well, five seconds later
        thread.join(12)
        assert not thread.is_alive()


def test_the_stream_brings_what_stands_then_what_comes_and_is_alive_when_all_is_here(served: VerifierStream) -> None:
    served.publish(NODE_OBJECT)
    taken: list[str] = []
    with following(served, taken) as stream:
        assert not stream.alive()
        eventually("the snapshot is here", stream.alive)
        assert len(taken) == 1
        served.publish(NODE_OBJECT)
        eventually("the next is here", lambda: len(taken) == 2)


def test_a_broken_stream_is_dead_at_once_and_goes_on_where_it_was(served: VerifierStream) -> None:
    served.publish(NODE_OBJECT)
    taken: list[str] = []
    with following(served, taken) as stream:
        eventually("the snapshot is here", stream.alive)
        served.stop()
        eventually("it is dead", lambda: not stream.alive(), 2)
        served.publish({"metadata": {"name": "other", "uid": "u"}, "status": {}})
        served.start()
        eventually("it lives again", stream.alive)
        assert len(taken) == 2


def test_a_stream_with_the_wrong_token_brings_nothing_and_is_not_alive(served: VerifierStream, tmp_path: Path) -> None:
    served.publish(NODE_OBJECT)
    wrong = tmp_path / "wrong"
    wrong.write_text("another")
    taken: list[str] = []
    with following(served, taken, token_file=wrong) as stream:
        time.sleep(0.5)
        assert not stream.alive()
    assert taken == []


def test_a_verifier_that_the_pinned_ca_does_not_vouch_for_is_not_heard(served: VerifierStream, tmp_path: Path) -> None:
    served.publish(NODE_OBJECT)
    (tmp_path / "other").mkdir()
    taken: list[str] = []
    with following(served, taken, ca_file=Authority(tmp_path / "other").ca) as stream:
        time.sleep(0.5)
        assert not stream.alive()
    assert taken == []


def test_a_stream_without_tls_is_refused(served: VerifierStream) -> None:
    with pytest.raises(Rejection) as refused:
        ResultsStream("http://127.0.0.1:1", served.ca, served.token_file, lambda _: None)
    assert refused.value.code is ReasonCode.SETTING_INVALID


# --- settings ---

SETTINGS = """
verifier: {url: "https://verifier", ca_file: ca.pem, token_file: token}
results: {issuer: i, audience: a, jwks_file: jwks.json}
"""


def test_settings_are_read_and_paths_are_those_beside_the_file(tmp_path: Path) -> None:
    path = tmp_path / "controller.yaml"
    path.write_text(SETTINGS)
    settings = read_settings(ControllerSettings, path)
    assert settings.verifier.token_file == tmp_path / "token"
    assert (settings.namespace, settings.workers, settings.silent_evictions_per_minute) == ("nodewarden-system", 8, 10)


@pytest.mark.parametrize("line", ["insecure: true", "workers: 0", "silent_evictions_per_minute: 0", "identity: ''"])
def test_a_setting_that_is_unknown_or_out_of_bounds_is_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "controller.yaml"
    path.write_text(f"{SETTINGS}{line}\n")
    with pytest.raises(MalformedEvidence) as refused:
        read_settings(ControllerSettings, path)
    assert refused.value.code is ReasonCode.SETTING_INVALID
