"""What a request may say of itself, wherever that stands: a head has few bytes, and so have trailers."""

from __future__ import annotations

import ssl
from collections.abc import Iterator

import pytest

from edges.http_protocol import MAX_HEAD_BYTES
from tests.admission.served import make_certificate
from tests.edges.test_door import Served, serving

CHUNKED = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
LARGE_BYTES = 64 * 1024 * 1024


@pytest.fixture
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ssl.SSLSocket]:
    with serving(make_certificate(tmp_path_factory.mktemp("tls"))) as served, _connected(served) as connection:
        yield connection


def _connected(served: Served) -> ssl.SSLSocket:
    return served.trust.wrap_socket(served.plain(), server_hostname="127.0.0.1")


def _taken_bytes(connection: ssl.SSLSocket, block: bytes) -> int:
    """How much of `block` after `block` the server took before it closed, up to what is by far too much."""
    sent = 0
    try:
        while sent < LARGE_BYTES:
            connection.sendall(block)
            sent += len(block)
    except OSError:
        return sent
    return sent


@pytest.mark.parametrize("block", [(b"x: " + b"y" * 1000 + b"\r\n") * 60, b"y" * 60_000])
@pytest.mark.parametrize(
    "before",
    [
        CHUNKED + b"0\r\nx: ",
        CHUNKED + b"4\r\nbody\r\n0\r\nx: ",
        # As the extension of a chunk.
        CHUNKED + b"4;",
        # As the head of a request whose forerunner is being answered.
        b"GET / HTTP/1.1\r\nhost: x\r\n\r\nGET / HTTP/1.1\r\nx: ",
    ],
)
def test_fields_without_end_are_cut_wherever_they_stand(connection: ssl.SSLSocket, before: bytes, block: bytes) -> None:
    connection.sendall(before)
    if before.startswith(b"GET"):
        assert connection.recv(4096).startswith(b"HTTP/1.1 200 OK")
    assert _taken_bytes(connection, block) < LARGE_BYTES


def test_a_body_in_chunks_with_a_trailer_is_no_head_however_large_it_is(connection: ssl.SSLSocket) -> None:
    chunk = b"8000\r\n" + bytes(0x8000) + b"\r\n"
    connection.sendall(CHUNKED + chunk * 20 + b"0\r\nx: " + b"y" * (MAX_HEAD_BYTES // 2) + b"\r\n\r\n")
    assert connection.recv(4096).startswith(b"HTTP/1.1 200 OK")


def test_a_body_in_tiny_chunks_without_end_is_cut(connection: ssl.SSLSocket) -> None:
    connection.sendall(CHUNKED)
    assert _taken_bytes(connection, b"1\r\nx\r\n" * 10_000) < LARGE_BYTES
