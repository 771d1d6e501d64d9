"""The HTTPS server under people who hold connections, and with files and addresses that cannot be used."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
from starlette.requests import Request
from starlette.types import ASGIApp, Message

from admission import http_edge, server
from admission.http_edge import BodyBudget, read_body, service_app
from admission.review import MAX_REVIEW_BYTES
from admission.server import server_of
from admission.serving_certificate import HotCertificate
from admission.settings import Listen, Tls
from admission.webhook import webhook_app
from edges import door, http_protocol
from tests.admission.served import Certificate, make_certificate, served, serving, trusting
from tests.admission.test_broker import World
from tests.admission.test_settings_and_assembly import Site, free_port
from tests.admission.world import NOW, a_cluster
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Refusal, Unavailable


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("tls"))


def connect(address: str, certificate: Certificate) -> ssl.SSLSocket:
    plain = socket.create_connection(("127.0.0.1", int(address.rsplit(":", 1)[1])))
    return trusting(certificate).wrap_socket(plain, server_hostname="127.0.0.1")


def healthy(address: str, certificate: Certificate) -> bool:
    found = httpx.get(f"{address}/healthz", verify=trusting(certificate), timeout=5)
    return bool(found.json() == {"status": "ok"})


@contextmanager
def open_service(certificate: Certificate) -> Iterator[str]:
    with served(webhook_app(a_cluster, lambda: None, 60, lambda: NOW), certificate) as address:
        yield address


def test_idle_connections_of_one_address_do_not_switch_the_service_off(
    certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MAX_CONNECTIONS_PER_ADDRESS", 20)
    with open_service(certificate) as address, ExitStack() as held:
        for _ in range(40):
            held.enter_context(connect(address, certificate))
        assert healthy(address, certificate)


def test_a_full_house_makes_room_for_who_comes_and_keeps_who_asked(
    certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 10)
    with (
        open_service(certificate) as address,
        ExitStack() as held,
        httpx.Client(base_url=address, verify=trusting(certificate)) as first,
    ):
        assert first.get("/healthz").status_code == 200
        for _ in range(30):
            held.enter_context(connect(address, certificate))
        used = first.get("/healthz")
        # The same connection: the server has not closed it in between.
        assert used.status_code == 200
        assert first._transport._pool.connections[0]._connection._request_count == 2  # type: ignore[attr-defined]


@pytest.mark.parametrize("said", [b"", bytes.fromhex("16030100c8010000c40303")])
@pytest.mark.parametrize("part", ["webhook", "broker"])
def test_hundreds_who_never_end_a_handshake_keep_neither_webhook_nor_broker_from_who_comes(
    tmp_path: Path, certificate: Certificate, monkeypatch: pytest.MonkeyPatch, part: str, said: bytes
) -> None:
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 100)
    monkeypatch.setattr(server, "MAX_CONNECTIONS_PER_ADDRESS", 40)
    apps: dict[str, Callable[[], ASGIApp]] = {
        "webhook": lambda: webhook_app(a_cluster, lambda: None, 60, lambda: NOW),
        "broker": lambda: World(tmp_path).app,
    }
    with served(apps[part](), certificate) as address, ExitStack() as held:
        port = int(address.rpartition(":")[2])
        for number in range(400):
            source = (f"127.0.0.{2 + number % 50}", 0)
            stranger = held.enter_context(socket.create_connection(("127.0.0.1", port), 10, source))
            stranger.sendall(said)
            if number % 100 == 99:
                began = time.monotonic()
                assert healthy(address, certificate)
                # An API server waits ten seconds, and by our chart fewer.
                assert time.monotonic() - began < 3


def closed_after(connection: socket.socket) -> float:
    began = time.monotonic()
    connection.settimeout(5)
    try:
        while connection.recv(1024):
            continue
    except (ConnectionError, ssl.SSLError):
        pass
    return time.monotonic() - began


@pytest.mark.parametrize("sent", [b"", b"POST /validate HTTP/1.1\r\nHost: x\r\n", b"\r\n\r\n"])
def test_a_connection_that_asks_nothing_is_closed(
    certificate: Certificate, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(http_protocol, "REQUEST_SECONDS", 0.3)
    with open_service(certificate) as address, connect(address, certificate) as connection:
        if sent:
            connection.sendall(sent)
        assert closed_after(connection) < 3


def test_a_head_without_end_is_cut_off(certificate: Certificate) -> None:
    with open_service(certificate) as address, connect(address, certificate) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\n")
        with pytest.raises((ConnectionError, ssl.SSLError)):
            for _ in range(10_000):
                connection.sendall(b"x: " + b"y" * 1000 + b"\r\n")


def test_a_handshake_that_does_not_come_is_not_waited_for(
    certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "HANDSHAKE_SECONDS", 0.3)
    with open_service(certificate) as address:
        with socket.create_connection(("127.0.0.1", int(address.rsplit(":", 1)[1]))) as plain:
            assert closed_after(plain) < 3
        assert healthy(address, certificate)


def test_only_clients_with_a_certificate_of_the_client_ca_are_served(tmp_path: Path, certificate: Certificate) -> None:
    client = make_certificate(tmp_path)
    tls = Tls(certificate=certificate.certificate, key=certificate.key, client_ca=client.certificate)
    app = webhook_app(a_cluster, lambda: None, 60, lambda: NOW)
    with serving(server_of(app, Listen(port=0), HotCertificate(tls))) as address:
        with pytest.raises((httpx.RequestError, ssl.SSLError)):
            healthy(address, certificate)
        own = trusting(certificate)
        own.load_cert_chain(certificate.certificate, certificate.key)
        with pytest.raises((httpx.RequestError, ssl.SSLError)):
            httpx.get(f"{address}/healthz", verify=own)
        known = trusting(certificate)
        known.load_cert_chain(client.certificate, client.key)
        assert httpx.get(f"{address}/healthz", verify=known).status_code == 200


def code_of(listen: Listen, tls: Tls) -> ReasonCode:
    with pytest.raises(Refusal) as caught:
        server_of(service_app(lambda: None, 60), listen, HotCertificate(tls))
    return caught.value.code


def test_files_that_are_no_certificate_key_or_ca_are_refused(tmp_path: Path, certificate: Certificate) -> None:
    junk, other = tmp_path / "junk.pem", make_certificate(tmp_path / "other")
    junk.write_text("junk")
    junk.chmod(0o600)
    for changes in ({"certificate": junk}, {"key": junk}, {"key": other.key}, {"client_ca": junk}):
        tls = Tls(**{"certificate": certificate.certificate, "key": certificate.key, **changes})
        assert code_of(Listen(port=0), tls) is ReasonCode.SETTING_INVALID
    for name in ("absent.pem", "x" * 300):
        tls = Tls(certificate=tmp_path / name, key=certificate.key)
        assert code_of(Listen(port=0), tls) is ReasonCode.FILE_UNREADABLE


def test_an_address_that_cannot_be_had_is_named(certificate: Certificate) -> None:
    tls = Tls(certificate=certificate.certificate, key=certificate.key)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert code_of(Listen(port=port), tls) is ReasonCode.ADDRESS_UNAVAILABLE
    for host in ("192.0.2.1", "no such host", "x" * 300, "a..b"):
        assert code_of(Listen(host=host, port=0), tls) is ReasonCode.ADDRESS_UNAVAILABLE


def test_a_taken_port_is_one_line_and_exit_code_3(tmp_path: Path) -> None:
    site, port = Site(tmp_path), free_port()
    path = site.file({**site.settings, "listen": {"port": port}})
    with socket.create_server(("127.0.0.1", port)):
        command = [sys.executable, "-m", "nodewarden", "admission", "webhook", "--config", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"error: {ReasonCode.ADDRESS_UNAVAILABLE.value}: ")
    assert "service_ready" not in done.stderr


# --- bodies ---


def test_a_declared_size_beyond_the_limit_is_refused_before_a_byte_of_it(certificate: Certificate) -> None:
    with open_service(certificate) as address, connect(address, certificate) as connection:
        size = MAX_REVIEW_BYTES + 1
        connection.sendall(b"POST /validate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size)
        assert connection.recv(64).startswith(b"HTTP/1.1 413 ")


def a_request(parts: list[bytes], length: int | None = None) -> Request:
    async def receive() -> Message:
        await asyncio.sleep(0)
        body = parts.pop(0)
        return {"type": "http.request", "body": body, "more_body": bool(parts)}

    headers = [] if length is None else [(b"content-length", str(length).encode())]
    return Request({"type": "http", "method": "POST", "path": "/", "headers": headers}, receive)


@pytest.mark.parametrize("declared", [True, False])
def test_all_bodies_in_flight_together_are_bounded(monkeypatch: pytest.MonkeyPatch, declared: bool) -> None:
    budget = BodyBudget(1000)
    monkeypatch.setattr(http_edge, "_BUDGET", budget)
    length = 800 if declared else None

    async def both() -> list[bytes | BaseException]:
        bodies = (read_body(a_request([b"x" * 400] * 2, length), 900) for _ in range(2))
        return await asyncio.gather(*bodies, return_exceptions=True)

    answers = asyncio.run(both())
    refused = [answer for answer in answers if isinstance(answer, Unavailable)]
    assert [refusal.code for refusal in refused] == [ReasonCode.RATE_LIMITED]
    assert budget.held_bytes == 0
    assert asyncio.run(read_body(a_request([b"x" * 400] * 2, length), 900)) == b"x" * 800
