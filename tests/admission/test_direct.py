"""Requests that are answered where they are parsed: as the long way answers them, in order, and within every bound."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from admission import server
from admission.direct import DirectApp, Route
from admission.http_edge import service_app
from admission.webhook import webhook_app
from edges import http_protocol
from tests.admission.served import Certificate, make_certificate, served, trusting
from tests.admission.test_webhook import BINDING, POD, a_review
from tests.admission.world import NOW, a_cluster
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("tls"))


@contextmanager
def connected(app: Any, certificate: Certificate) -> Iterator[ssl.SSLSocket]:
    with served(app, certificate) as address, trying(address, certificate) as connection:
        yield connection


@contextmanager
def trying(address: str, certificate: Certificate) -> Iterator[ssl.SSLSocket]:
    plain = socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), timeout=5)
    with trusting(certificate).wrap_socket(plain, server_hostname="127.0.0.1") as connection:
        yield connection


@pytest.fixture
def connection(certificate: Certificate) -> Iterator[ssl.SSLSocket]:
    with connected(webhook_app(a_cluster, lambda: None, 60, lambda: NOW), certificate) as made:
        yield made


def a_request(uid: str = "u", path: str = "/validate?timeout=3s", version: str = "1.1", **headers: str) -> bytes:
    body = json.dumps(a_review(BINDING, sub="binding", uid=uid)).encode()
    lines = [f"POST {path} HTTP/{version}", "Host: w", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def an_answer(connection: ssl.SSLSocket, seen: bytearray) -> tuple[int, dict[str, str], Any]:
    """The next answer; `seen` keeps what came after it."""
    while b"\r\n\r\n" not in seen:
        seen += _more(connection)
    head, _, _ = bytes(seen).partition(b"\r\n\r\n")
    status, *fields = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (field.partition(": ") for field in fields)}
    end = len(head) + 4 + int(headers.get("content-length", "0"))
    while len(seen) < end:
        seen += _more(connection)
    body = bytes(seen[len(head) + 4 : end])
    del seen[:end]
    return int(status.split()[1]), headers, json.loads(body) if body.startswith(b"{") else body


def _more(connection: ssl.SSLSocket) -> bytes:
    data = connection.recv(65536)
    if not data:
        raise ConnectionError("closed")
    return data


def uids(connection: ssl.SSLSocket, count: int) -> list[str]:
    seen = bytearray()
    return [an_answer(connection, seen)[2]["response"]["uid"] for _ in range(count)]


class Tasks:
    """A handler that notes whether it ran in a task of its own."""

    def __init__(self) -> None:
        self.in_task: list[bool] = []
        app = service_app(lambda: None, 60)
        self.app = DirectApp(app, {"/validate": Route(self._handle)}, 1_000_000)

    def _handle(self, body: bytes) -> bytes:
        self.in_task.append(asyncio.current_task() is not None)
        return json.dumps({"response": {"uid": json.loads(body)["request"]["uid"]}}).encode()


def test_a_whole_review_needs_no_task_and_one_in_parts_has_one(certificate: Certificate) -> None:
    tasks = Tasks()
    with connected(tasks.app, certificate) as connection:
        connection.sendall(a_request("a"))
        assert uids(connection, 1) == ["a"]
        whole = a_request("b")
        connection.sendall(whole[:-5])
        time.sleep(0.2)
        connection.sendall(whole[-5:])
        assert uids(connection, 1) == ["b"]
        connection.sendall(a_request("c"))
        assert uids(connection, 1) == ["c"]
    assert tasks.in_task == [False, True, False]


def test_of_many_reviews_in_one_piece_only_the_first_is_answered_before_anyone_elses(certificate: Certificate) -> None:
    tasks = Tasks()
    names = [str(n) for n in range(20)]
    with connected(tasks.app, certificate) as connection:
        connection.sendall(b"".join(map(a_request, names)))
        assert uids(connection, 20) == names
    assert tasks.in_task == [False] + [True] * 19


@pytest.mark.parametrize("pause", [0.0, 0.2])
def test_answers_keep_the_order_of_their_requests_whichever_way_they_went(
    certificate: Certificate, pause: float
) -> None:
    entered: list[str] = []

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await service_app(lambda: None, 60)(scope, receive, send)
            return
        entered.append("slow")
        await asyncio.sleep(0.5)
        body = json.dumps({"response": {"uid": "slow"}}).encode()
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    app = DirectApp(slow, {"/validate": Route(Tasks()._handle)}, 1_000_000)
    with connected(app, certificate) as connection:
        connection.sendall(a_request("x", path="/slow"))
        time.sleep(pause)
        for uid in ("a", "b", "c"):
            connection.sendall(a_request(uid))
            time.sleep(pause)
        assert uids(connection, 4) == ["slow", "a", "b", "c"]
    assert entered == ["slow"]


@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, ReasonCode.REVIEW_MALFORMED),
        (json.dumps({**a_review(POD), "x": [{}] * 90_000}).encode(), 200, None),
    ],
)
def test_both_ways_give_the_same_answer(
    connection: ssl.SSLSocket, split: bool, body: bytes, status: int, code: ReasonCode | None
) -> None:
    head = b"POST /validate HTTP/1.1\r\nHost: w\r\nX-Request-Id: request-0001\r\nContent-Length: %d\r\n\r\n" % len(body)
    connection.sendall(head + (b"" if split else body))
    if split:
        time.sleep(0.2)
        connection.sendall(body)
    found, headers, document = an_answer(connection, bytearray())
    assert found == status
    assert "date" in headers
    if code is None:
        assert (headers["content-type"], document["response"]["allowed"]) == ("application/json", True)
    else:
        assert headers["content-type"] == "application/problem+json"
        assert (document["code"], headers["x-request-id"]) == (code.value, "request-0001")


def test_a_fault_of_ours_is_a_500_either_way(certificate: Certificate) -> None:
    def broken(_: bytes) -> bytes:
        raise RuntimeError("inner words")

    app = DirectApp(service_app(lambda: None, 60), {"/validate": Route(broken)}, 1_000_000)
    with connected(app, certificate) as connection:
        for pieces in (1, 2):
            request = a_request()
            for part in (request[: len(request) // pieces], request[len(request) // pieces :]):
                connection.sendall(part)
                time.sleep(0.1)
            status, _, document = an_answer(connection, bytearray())
            assert (status, document["code"]) == (500, ReasonCode.INTERNAL_ERROR.value)


def test_a_refusal_of_the_handler_has_the_status_of_its_kind(certificate: Certificate) -> None:
    def refusing(_: bytes) -> bytes:
        raise MalformedEvidence(ReasonCode.BODY_TOO_LARGE, "review")

    app = DirectApp(service_app(lambda: None, 60), {"/validate": Route(refusing)}, 1_000_000)
    with connected(app, certificate) as connection:
        connection.sendall(a_request())
        status, _, document = an_answer(connection, bytearray())
        assert (status, document["code"]) == (413, ReasonCode.BODY_TOO_LARGE.value)


def test_a_body_in_chunks_is_the_same_body(connection: ssl.SSLSocket) -> None:
    body = json.dumps(a_review(BINDING, sub="binding", uid="in chunks")).encode()
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:100], body[100:])) + b"0\r\n\r\n"
    connection.sendall(b"POST /validate HTTP/1.1\r\nHost: w\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks)
    assert uids(connection, 1) == ["in chunks"]


@pytest.mark.parametrize("changes", [{"version": "1.0"}, {"Connection": "close"}])
def test_who_wants_no_further_answers_is_hung_up_on_after_the_first(
    connection: ssl.SSLSocket, changes: dict[str, str]
) -> None:
    connection.sendall(a_request("last", **changes))
    seen = bytearray()
    assert an_answer(connection, seen)[2]["response"]["uid"] == "last"
    with pytest.raises(ConnectionError):
        an_answer(connection, seen)


def test_who_waits_to_be_asked_for_the_body_is_asked(connection: ssl.SSLSocket) -> None:
    head, _, body = a_request("polite", Expect="100-continue").partition(b"\r\n\r\n")
    connection.sendall(head + b"\r\n\r\n")
    seen = bytearray()
    assert an_answer(connection, seen)[0] == 100
    connection.sendall(body)
    assert an_answer(connection, seen)[2]["response"]["uid"] == "polite"


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/validate", 404), ("POST", "/elsewhere", 404)])
def test_what_is_no_hot_route_is_left_to_the_framework(
    connection: ssl.SSLSocket, method: str, path: str, status: int
) -> None:
    connection.sendall(f"{method} {path} HTTP/1.1\r\nHost: w\r\nContent-Length: 0\r\n\r\n".encode())
    assert an_answer(connection, bytearray())[0] == status


@pytest.mark.parametrize("path", ["/validate?timeout=10s", "/vali%64ate", "https://w/validate"])
def test_a_route_is_found_however_its_address_is_spelt(connection: ssl.SSLSocket, path: str) -> None:
    connection.sendall(a_request("found", path=path))
    assert uids(connection, 1) == ["found"]


def test_after_an_answer_what_is_no_request_is_refused_and_the_connection_closed(connection: ssl.SSLSocket) -> None:
    connection.sendall(a_request("a") + b"nonsense\r\n\r\n")
    seen = bytearray()
    assert an_answer(connection, seen)[2]["response"]["uid"] == "a"
    assert an_answer(connection, seen)[0] == 400
    with pytest.raises(ConnectionError):
        an_answer(connection, seen)


def test_a_quiet_connection_is_closed_in_time_and_one_that_asks_is_kept(
    certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "KEEP_ALIVE_SECONDS", 1)
    with connected(webhook_app(a_cluster, lambda: None, 60, lambda: NOW), certificate) as connection:
        for n in range(5):
            connection.sendall(a_request(str(n)))
            assert uids(connection, 1) == [str(n)]
            time.sleep(0.4)
        began = time.monotonic()
        assert connection.recv(1) == b""
        assert 0.2 < time.monotonic() - began < 3


@pytest.mark.parametrize("sent", [b"POST /validate HTTP/1.1\r\nHost", b"\r\n"])
def test_after_an_answer_the_next_request_must_come_whole_in_time(
    certificate: Certificate, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(http_protocol, "REQUEST_SECONDS", 0.3)
    with connected(webhook_app(a_cluster, lambda: None, 60, lambda: NOW), certificate) as connection:
        for _ in range(2):
            connection.sendall(a_request())
            uids(connection, 1)
            time.sleep(0.5)
        connection.sendall(a_request() + sent) if sent != b"\r\n" else connection.sendall(sent)
        with pytest.raises(ConnectionError):
            uids(connection, 2)


def test_a_body_that_is_too_large_gets_its_answer_and_leaves_the_connection_good(connection: ssl.SSLSocket) -> None:
    connection.sendall(b"POST /validate HTTP/1.1\r\nHost: w\r\nContent-Length: 4000000\r\n\r\n")
    seen = bytearray()
    status, _, answered = an_answer(connection, seen)
    assert (status, answered["code"]) == (413, ReasonCode.BODY_TOO_LARGE.value)
    # The body is still on its way: it is no head, and no request.
    for _ in range(40):
        connection.sendall(b" " * 100_000)
    connection.sendall(a_request("a"))
    assert uids(connection, 1) == ["a"]
