"""A TLS server's door under people who open connections and say nothing, or not enough."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pytest

from edges import door, http_protocol
from edges.connections import Connections
from edges.http_protocol import BoundedProtocol
from edges.listening import listening_sockets
from edges.server import BoundedServer, http_config, over_tls
from tests.admission.served import Certificate, make_certificate, running, trusting

LIMIT = 60
PER_ADDRESS = 40
HALF_A_HELLO = bytes.fromhex("16030100c8010000c40303")
HONEST_SECONDS = 3.0


async def _app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        while (message := await receive())["type"] != "lifespan.shutdown":
            await send({"type": f"{message['type']}.complete"})
        await send({"type": "lifespan.shutdown.complete"})
        return
    body = b"x" * 300_000 if scope["path"] == "/large" else b"here"
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@dataclass(frozen=True)
class Served:
    """A server that serves, and what a client needs."""

    port: int
    server: BoundedServer
    connections: Connections
    trust: ssl.SSLContext

    def plain(self, address: str = "127.0.0.1") -> socket.socket:
        """A connection from `address` that has said nothing."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=10, source_address=(address, 0))

    def asked(self, address: str = "127.0.0.1") -> bytes:
        """The status line of an honest request on a connection of its own."""
        with self.plain(address) as plain, self.trust.wrap_socket(plain, server_hostname="127.0.0.1") as connection:
            return _ask(connection)


def _ask(connection: ssl.SSLSocket) -> bytes:
    connection.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    return connection.recv(4096).split(b"\r\n")[0]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def serve(certificate: Certificate) -> Iterator[Callable[[], Served]]:
    with ExitStack() as stack:
        yield lambda: stack.enter_context(serving(certificate))


@contextmanager
def serving(certificate: Certificate) -> Iterator[Served]:
    connections = Connections(LIMIT, PER_ADDRESS)
    config = http_config(_app, BoundedProtocol, connections)
    over_tls(config, certificate.certificate, certificate.key)
    listening = listening_sockets("127.0.0.1", 0)
    port = listening[0].getsockname()[1]
    server = BoundedServer(config, listening)
    with running(server):
        yield Served(port, server, connections, trusting(certificate))
    assert connections._count == 0


def _closed_within(connection: socket.socket, seconds: float) -> bool:
    connection.settimeout(seconds)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


@pytest.mark.parametrize("said", [b"", HALF_A_HELLO])
@pytest.mark.parametrize("addresses", [["127.0.0.2"], [f"127.0.0.{n}" for n in range(2, 52)]])
def test_hundreds_of_connections_that_never_end_a_handshake_keep_nobody_out(
    serve: Callable[[], Served], said: bytes, addresses: list[str]
) -> None:
    served = serve()
    with ExitStack() as held, served.plain() as plain:
        known = held.enter_context(served.trust.wrap_socket(plain, server_hostname="127.0.0.1"))
        assert _ask(known) == b"HTTP/1.1 200 OK"
        for number in range(300):
            stranger = held.enter_context(served.plain(addresses[number % len(addresses)]))
            if said:
                stranger.sendall(said)
            if number % 100 == 99:
                began = time.monotonic()
                assert served.asked() == b"HTTP/1.1 200 OK"
                assert time.monotonic() - began < HONEST_SECONDS
        bound = PER_ADDRESS + 2 if len(addresses) == 1 else LIMIT
        assert served.connections._count <= bound
        (front,) = served.server.servers
        assert len(front.arrivals) <= bound  # type: ignore[attr-defined]  # - a Door


def test_handshakes_that_stand_still_are_few_and_the_oldest_goes_first(
    serve: Callable[[], Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "MAX_HANDSHAKES", 8)
    served = serve()
    with ExitStack() as held:
        half = [held.enter_context(served.plain(f"127.0.0.{2 + number}")) for number in range(20)]
        for stranger in half:
            stranger.sendall(HALF_A_HELLO)
            assert served.asked() == b"HTTP/1.1 200 OK"
        # The honest one needed a place too.
        assert [_closed_within(stranger, 0.05) for stranger in half] == [True] * 13 + [False] * 7


def test_many_short_connections_at_once_are_all_served_while_strangers_are_silent(serve: Callable[[], Served]) -> None:
    served = serve()
    with ExitStack() as held, ThreadPoolExecutor(16) as clients:
        for number in range(200):
            held.enter_context(served.plain(f"127.0.0.{2 + number % 50}"))
        answers = list(clients.map(lambda _: served.asked(), range(200)))
    assert answers == [b"HTTP/1.1 200 OK"] * 200


@pytest.mark.parametrize("said", [b"", HALF_A_HELLO])
def test_a_handshake_has_its_time_from_the_moment_of_acceptance(
    serve: Callable[[], Served], monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(door, "HANDSHAKE_SECONDS", 0.5)
    served = serve()
    with served.plain() as slow:
        time.sleep(0.2)
        slow.sendall(said)
        assert _closed_within(slow, 3)
    assert served.asked() == b"HTTP/1.1 200 OK"


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 100])
def test_what_is_no_tls_is_closed_and_forgotten(serve: Callable[[], Served], said: bytes) -> None:
    served = serve()
    for _ in range(5):
        with served.plain() as wrong:
            wrong.sendall(said)
            with suppress(ConnectionError):
                while wrong.recv(100):
                    continue
    assert served.asked() == b"HTTP/1.1 200 OK"


def test_a_client_that_goes_before_its_handshake_leaves_nothing_behind(serve: Callable[[], Served]) -> None:
    served = serve()
    for said in (b"", HALF_A_HELLO):
        for _ in range(20):
            with served.plain() as gone:
                gone.sendall(said)
    deadline = time.monotonic() + 5
    while served.connections._count and time.monotonic() < deadline:
        time.sleep(0.01)
    assert served.connections._count == 0


def test_a_stop_does_not_wait_for_who_never_said_a_word(certificate: Certificate) -> None:
    with ExitStack() as held:
        with serving(certificate) as served:
            strangers = [held.enter_context(served.plain()) for _ in range(10)]
            for stranger in strangers[5:]:
                stranger.sendall(HALF_A_HELLO)
            assert served.asked() == b"HTTP/1.1 200 OK"
            began = time.monotonic()
        assert time.monotonic() - began < 5
        assert all(_closed_within(stranger, 1) for stranger in strangers)


def test_no_session_ticket_is_given_to_clients_that_never_come_back_with_one(serve: Callable[[], Served]) -> None:
    served = serve()
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        served.trust.maximum_version = version
        with served.plain() as plain, served.trust.wrap_socket(plain, server_hostname="127.0.0.1") as connection:
            assert _ask(connection) == b"HTTP/1.1 200 OK"
            assert connection.session is None or not connection.session.has_ticket


def test_who_asks_without_end_and_takes_no_answer_is_hung_up_on(
    serve: Callable[[], Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "TAKING_SECONDS", 0.5)
    served = serve()
    with served.plain() as plain:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with served.trust.wrap_socket(plain, server_hostname="127.0.0.1") as greedy:
            greedy.sendall(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n" * 60)
            deadline = time.monotonic() + 10
            while served.connections._count and time.monotonic() < deadline:
                time.sleep(0.05)
            assert served.connections._count == 0


def test_a_server_that_runs_out_of_files_goes_on_when_there_are_some(
    serve: Callable[[], Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "PAUSE_SECONDS", 0.2)
    served = serve()
    (front,) = served.server.servers
    loop: asyncio.AbstractEventLoop = front.get_loop()
    whole = front._listening  # type: ignore[attr-defined]  # - a Door

    class Exhausted:
        """A socket of a process that may open no more files."""

        def __init__(self) -> None:
            self.tries = 0

        def accept(self) -> None:
            self.tries += 1
            if self.tries == 3:
                front._listening = whole  # type: ignore[attr-defined]  # - a Door
            raise OSError(24, "Too many open files")

        def fileno(self) -> int:
            return int(whole.fileno())

    exhausted, there = Exhausted(), threading.Event()
    loop.call_soon_threadsafe(setattr, front, "_listening", exhausted)
    loop.call_soon_threadsafe(there.set)
    assert there.wait(5)
    began = time.monotonic()
    assert served.asked() == b"HTTP/1.1 200 OK"
    # It was asked again in its pauses, and not without pause.
    assert exhausted.tries == 3 and 0.3 < time.monotonic() - began < HONEST_SECONDS
