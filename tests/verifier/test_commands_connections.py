"""A real server under a stranger's connections: idle ones, and ones that never say a word of TLS."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import ssl
import time
from pathlib import Path

import pytest

from tests.verifier.test_commands import ROOT, serving


def _ask(connection: ssl.SSLSocket, path: str, token: str = "") -> bytes:
    """The status line of the answer; the connection stays open."""
    authorization = f"authorization: Bearer {token}\r\n" if token else ""
    connection.sendall(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n{authorization}\r\n".encode())
    received = b""
    while b"\r\n\r\n" not in received:
        part = connection.recv(4096)
        assert part, "closed"
        received += part
    head, _, body = received.partition(b"\r\n\r\n")
    length = next(int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if b"content-length" in line)
    while len(body) < length:
        body += connection.recv(4096)
    return head.split(b"\r\n")[0]


def test_idle_strangers_of_one_address_do_not_keep_others_out(tmp_path: Path) -> None:
    with serving(tmp_path / "v", "max_connections: 20\nanonymous_requests_per_minute: 1000\n") as served:
        token = (served.directory / "tokens/viewer.token").read_text().strip()
        with served.connect() as known, contextlib.ExitStack() as held:
            assert _ask(known, "/v1/nodes", token) == b"HTTP/1.1 200 OK"
            strangers = [held.enter_context(served.connect()) for _ in range(60)]
            with served.connect() as honest:
                assert _ask(honest, "/healthz") == b"HTTP/1.1 200 OK"
            # This one had shown a token, so it was closed for none of them.
            assert _ask(known, "/v1/nodes", token) == b"HTTP/1.1 200 OK"
            strangers[0].settimeout(5)
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                assert strangers[0].recv(1) == b""


@pytest.mark.parametrize("said", [b"", bytes.fromhex("16030100c8010000c40303")])
def test_hundreds_who_never_end_a_handshake_cost_few_files_and_keep_no_node_out(tmp_path: Path, said: bytes) -> None:
    with serving(tmp_path / "v", "max_connections: 100\nanonymous_requests_per_minute: 1000\n") as served:
        token = (served.directory / "tokens/viewer.token").read_text().strip()
        files = Path(f"/proc/{served.process.pid}/fd")
        before = len(list(files.iterdir()))
        with served.connect() as known, contextlib.ExitStack() as held:
            assert _ask(known, "/v1/nodes", token) == b"HTTP/1.1 200 OK"
            for number in range(400):
                source = (f"127.0.0.{2 + number % 50}", 0)
                stranger = held.enter_context(socket.create_connection(("127.0.0.1", served.port), 10, source))
                stranger.sendall(said)
                if number % 100 == 99:
                    began = time.monotonic()
                    with served.connect() as honest:
                        assert _ask(honest, "/healthz") == b"HTTP/1.1 200 OK"
                    assert time.monotonic() - began < 3
            # Some may be closed already and not yet cleared away.
            assert len(list(files.iterdir())) <= before + 120
            assert _ask(known, "/v1/nodes", token) == b"HTTP/1.1 200 OK"


def test_a_stop_does_not_wait_for_nodes_that_sleep(tmp_path: Path) -> None:
    with serving(tmp_path / "v") as served, served.connect() as node:
        token = (served.directory / "tokens/viewer.token").read_text().strip()
        assert _ask(node, "/v1/nodes", token) == b"HTTP/1.1 200 OK"
        started = time.monotonic()
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(20) == 0
        # The limit of a graceful stop is ten seconds, and an orchestrator kills after thirty.
        assert time.monotonic() - started < 6


def test_a_handshake_that_does_not_come_is_not_waited_for(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("import edges.door as d\nd.HANDSHAKE_SECONDS = 1\n")
    path = os.pathsep.join([str(site), str(ROOT)])
    with (
        serving(tmp_path / "v", PYTHONPATH=path) as served,
        socket.create_connection(("127.0.0.1", served.port), 10) as silent,
        contextlib.suppress(ConnectionError),
    ):
        assert silent.recv(1) == b""
