"""The held request on its own thread: over a real connection, answered, refused, broken off, and left behind."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest

from attester import client as client_module
from attester.client import Client, open_client
from attester.daemon import Bell
from attester.long_poll import LongPoll
from tests.attester.scripted_server import Received, Scripted, Server, answering
from tests.attester.test_client import problem
from verifier.clock import SystemClock
from verifier.tls import ensure_tls
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Refusal, Rejection, Unavailable
from verifier.wire.signed_request import SignedRequest, encode_signed_request

REQUEST = SignedRequest(b"body", b"signature")
WANTED = b'{"wanted":true}'


@contextmanager
def polling(server: Server) -> Iterator[tuple[LongPoll, Bell]]:
    bell = Bell()
    with open_client(server.url, server.ca_file, 5, 20) as client, LongPoll(client, bell.ring) as poll:
        yield poll, bell


def outcome_of(poll: LongPoll, bell: Bell) -> bool | Refusal:
    bell.wait(10)
    outcome = poll.take()
    assert outcome is not None
    return outcome


def threads_left() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "attest-now"]


class _Held:
    """A verifier that holds until the test is over; `came` is set when a request did."""

    def __init__(self) -> None:
        self.came = threading.Event()
        self.over = threading.Event()

    def __call__(self, _: Received) -> Scripted:
        return Scripted(200, (WANTED,), before_chunk=self._hold)

    def _hold(self) -> None:
        self.came.set()
        self.over.wait(20)


@contextmanager
def holding(directory: Path) -> Iterator[tuple[Server, _Held]]:
    held = _Held()
    with answering(directory, held) as server:
        try:
            yield server, held
        finally:
            held.over.set()


@pytest.mark.parametrize("wanted", [True, False])
def test_the_answer_rings_and_is_taken_once(tmp_path: Path, wanted: bool) -> None:
    body = WANTED if wanted else b'{"wanted":false}'
    with answering(tmp_path, lambda _: Scripted(200, (body,))) as server, polling(server) as (poll, bell):
        assert poll.take() is None
        poll.begin(REQUEST)
        assert outcome_of(poll, bell) is wanted
        assert poll.take() is None
    request = server.received[0]
    assert (request.method, request.path, request.body) == ("POST", "/v1/attest-now", encode_signed_request(REQUEST))


def test_the_connection_is_kept_for_the_next_hold(tmp_path: Path) -> None:
    with answering(tmp_path, lambda _: Scripted(200, (WANTED,))) as server, polling(server) as (poll, bell):
        for _ in range(3):
            poll.begin(REQUEST)
            assert outcome_of(poll, bell) is True
    assert len({request.client_port for request in server.received}) == 1


def test_a_verifier_without_the_route_is_a_refusal_with_its_code(tmp_path: Path) -> None:
    scripted = Scripted(404, (problem("route-unknown", 404),))
    with answering(tmp_path, lambda _: scripted) as server, polling(server) as (poll, bell):
        poll.begin(REQUEST)
        refusal = outcome_of(poll, bell)
    assert isinstance(refusal, Rejection)
    assert refusal.code is ReasonCode.VERIFIER_REFUSED
    assert refusal.failure.observed == ReasonCode.ROUTE_UNKNOWN.value


@pytest.mark.parametrize("body", [b"{}", b'{"wanted":1}', b'{"wanted":"yes"}', b'{"wanted":true,"do":"x"}', b"true"])
def test_an_answer_that_is_none_wants_nothing(tmp_path: Path, body: bytes) -> None:
    with answering(tmp_path, lambda _: Scripted(200, (body,))) as server, polling(server) as (poll, bell):
        poll.begin(REQUEST)
        refusal = outcome_of(poll, bell)
    assert isinstance(refusal, Unavailable)
    assert refusal.code is ReasonCode.VERIFIER_UNREACHABLE


def test_leaving_ends_a_hold_at_once_and_leaves_no_thread(tmp_path: Path) -> None:
    with holding(tmp_path) as (server, held):
        with polling(server) as (poll, _):
            poll.begin(REQUEST)
            assert held.came.wait(10)
            assert threads_left()
            started = time.monotonic()
        assert time.monotonic() - started < 0.5
        assert threads_left() == []


def test_leaving_does_not_wait_for_a_handshake_that_does_not_come(tmp_path: Path) -> None:
    ensure_tls(tmp_path, ("127.0.0.1",), SystemClock().now_ms() // 1000)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = Server(f"https://127.0.0.1:{silent.getsockname()[1]}", tmp_path / "ca.pem", [])
        with polling(server) as (poll, _):
            poll.begin(REQUEST)
            time.sleep(0.1)
            started = time.monotonic()
        assert time.monotonic() - started < 1.0
    for thread in threads_left():
        thread.join(10)
    assert threads_left() == []


def test_a_hold_that_is_broken_off_fails_and_the_next_one_works(tmp_path: Path) -> None:
    with holding(tmp_path) as (server, held), polling(server) as (poll, bell):
        poll.begin(REQUEST)
        assert held.came.wait(10)
        poll.break_off()
        refusal = outcome_of(poll, bell)
        assert isinstance(refusal, Unavailable)
        assert refusal.code is ReasonCode.VERIFIER_UNREACHABLE
        held.over.set()
        poll.begin(REQUEST)
        assert outcome_of(poll, bell) is True
        # Nothing is in flight now, so this breaks no more than the idle connection.
        poll.break_off()
        poll.begin(REQUEST)
        assert outcome_of(poll, bell) is True


def test_one_request_at_a_time(tmp_path: Path) -> None:
    with holding(tmp_path) as (server, held), polling(server) as (poll, _):
        poll.begin(REQUEST)
        assert held.came.wait(10)
        with pytest.raises(RuntimeError):
            poll.begin(REQUEST)


def test_a_defect_over_there_is_raised_here() -> None:
    class Broken:
        def attest_now(self, _: SignedRequest) -> bool:
            raise ZeroDivisionError

        def break_off(self) -> None:
            pass

    bell = Bell()
    with LongPoll(cast("Client", Broken()), bell.ring) as poll:
        poll.begin(REQUEST)
        bell.wait(10)
        with pytest.raises(ZeroDivisionError):
            poll.take()


def test_a_body_that_drips_is_cut_by_the_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "EXCHANGE_FACTOR", 0.02)
    dripping = Scripted(200, (b" ",) * 200, before_chunk=lambda: time.sleep(0.02))
    with answering(tmp_path, lambda _: dripping) as server, polling(server) as (poll, bell):
        poll.begin(REQUEST)
        refusal = outcome_of(poll, bell)
    assert isinstance(refusal, Unavailable)
    assert refusal.code is ReasonCode.VERIFIER_UNREACHABLE
