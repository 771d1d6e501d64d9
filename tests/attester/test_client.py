"""What the client makes of every kind of answer, and whom it talks to."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import zstandard

from attester import client as client_module
from attester.client import COMPRESS_FROM_BYTES, open_client, refusal_code
from tests.attester.scripted_server import Scripted, Server, answering
from tests.edges.dripping import dripping
from verifier.clock import SystemClock
from verifier.tls import ensure_tls
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure, Rejection, Unavailable

GOOD = b'{"verdict":"affirming","reasons":[],"result":"a.b.c","next_challenge":null}'


def problem(code: str, status: int) -> bytes:
    fields: dict[str, Any] = {
        "type": f"urn:nodewarden:reason:{code}",
        "title": code,
        "status": status,
        "code": code,
        "detail": "what and where",
        "reasons": [Failure(ReasonCode.NONCE_USED, "nonce").as_json()],
        "request_id": "r-1",
    }
    return json.dumps(fields).encode()


def send(server: Server, body: bytes = b"{}", ca_file: Path | None = None, seconds: int = 5) -> Any:
    with open_client(server.url, ca_file or server.ca_file, 5, seconds) as client:
        return client.send_evidence(body)


def failure_of(directory: Path, scripted: Scripted) -> Unavailable | Rejection:
    with answering(directory, lambda _: scripted) as server, pytest.raises((Unavailable, Rejection)) as failure:
        send(server)
    assert isinstance(failure.value, Unavailable | Rejection)
    return failure.value


def test_a_good_answer_is_decoded(tmp_path: Path) -> None:
    with answering(tmp_path, lambda _: Scripted(200, (GOOD,))) as server:
        assert send(server).result == "a.b.c"
    request = server.received[0]
    assert (request.method, request.path, request.body) == ("POST", "/v1/evidence", b"{}")
    assert "content-encoding" not in request.headers


def test_a_big_bundle_goes_as_one_zstd_frame_that_declares_its_size(tmp_path: Path) -> None:
    body = b'"' + b"a" * COMPRESS_FROM_BYTES + b'"'
    with answering(tmp_path, lambda _: Scripted(200, (GOOD,))) as server:
        send(server, body)
    request = server.received[0]
    assert request.headers["content-encoding"] == "zstd"
    assert zstandard.get_frame_parameters(request.body).content_size == len(body)
    assert zstandard.ZstdDecompressor().decompress(request.body) == body


@pytest.mark.parametrize(("code", "status"), [("nonce-used", 409), ("node-unknown", 404), ("a-code-of-later", 400)])
def test_a_4xx_is_a_rejection_with_the_verifiers_own_code(tmp_path: Path, code: str, status: int) -> None:
    refusal = failure_of(tmp_path, Scripted(status, (problem(code, status),)))
    assert isinstance(refusal, Rejection)
    assert refusal.code is ReasonCode.VERIFIER_REFUSED
    assert refusal_code(refusal) == code
    assert "r-1" in refusal.failure.line()


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503])
def test_a_5xx_or_a_wait_is_unavailable(tmp_path: Path, status: int) -> None:
    failure = failure_of(tmp_path, Scripted(status, (problem("rate-limited", status),)))
    assert isinstance(failure, Unavailable)
    assert failure.code is ReasonCode.VERIFIER_UNREACHABLE
    assert failure.failure.observed == "rate-limited"


@pytest.mark.parametrize(
    "scripted",
    [
        Scripted(200, (b"",)),
        Scripted(200, (b"[]",)),
        Scripted(200, (GOOD[:-1],)),
        Scripted(200, (b'{"verdict":"trusted","reasons":[],"result":"a","next_challenge":null}',)),
        Scripted(200, (b'{"verdict":"affirming","reasons":[],"result":"a","next_challenge":null,"x":1}',)),
        Scripted(204, (b"",)),
        Scripted(302, (b"",), {"location": "https://127.0.0.1:1/"}),
        Scripted(200, (b"x" * 2_200_000,)),
        Scripted(200, (GOOD,), {"content-encoding": "gzip"}),
        Scripted(502, (b"<html>a proxy's own page</html>",)),
    ],
    ids=["empty", "list", "cut", "verdict", "unknown-key", "no-content", "redirect", "too-big", "compressed", "html"],
)
def test_an_answer_that_is_none_is_unavailable(tmp_path: Path, scripted: Scripted) -> None:
    failure = failure_of(tmp_path, scripted)
    assert isinstance(failure, Unavailable)
    assert failure.code is ReasonCode.VERIFIER_UNREACHABLE


def test_a_4xx_without_problem_is_still_a_rejection(tmp_path: Path) -> None:
    refusal = failure_of(tmp_path, Scripted(404, (b"not found",)))
    assert isinstance(refusal, Rejection)
    assert refusal_code(refusal) == "HTTP 404"


def test_a_redirect_is_not_followed(tmp_path: Path) -> None:
    with answering(tmp_path, lambda _: Scripted(307, (b"",), {"location": "/elsewhere"})) as server:
        with pytest.raises(Unavailable):
            send(server)
        assert [request.path for request in server.received] == ["/v1/evidence"]


def test_a_server_that_drips_does_not_hold_us(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dripping = Scripted(200, (b"x",) * 200, before_chunk=lambda: time.sleep(0.05))
    monkeypatch.setattr(client_module, "EXCHANGE_FACTOR", 0.3)
    started = time.monotonic()
    with answering(tmp_path, lambda _: dripping) as server, pytest.raises(Unavailable) as failure:
        send(server, seconds=1)
    assert failure.value.code is ReasonCode.VERIFIER_UNREACHABLE
    assert time.monotonic() - started < 5


@pytest.mark.parametrize(
    ("first", "again"),
    [(b"HTTP/1.1 200 OK\r\nx: ", b"y"), (b"HTTP/1.1 200 OK\r\n", b"x: y\r\n"), (b"", b"HTTP/1.1 103 E\r\n\r\n")],
)
def test_a_head_that_never_ends_does_not_hold_us(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: bytes, again: bytes
) -> None:
    certificate, key = ensure_tls(tmp_path, ("127.0.0.1",), SystemClock().now_ms() // 1000)
    monkeypatch.setattr(client_module, "EXCHANGE_FACTOR", 0.3)
    started = time.monotonic()
    with dripping(certificate, key, first, again) as url, open_client(url, tmp_path / "ca.pem", 5, 2) as client:
        with pytest.raises(Unavailable) as failure:
            client.send_evidence(b"{}")
        assert time.monotonic() - started < 5
    assert failure.value.code is ReasonCode.VERIFIER_UNREACHABLE


def test_a_server_of_another_ca_is_not_talked_to(tmp_path: Path) -> None:
    ensure_tls(tmp_path / "other", ("127.0.0.1",), SystemClock().now_ms() // 1000)
    with answering(tmp_path / "own", lambda _: Scripted(200, (GOOD,))) as server:
        with pytest.raises(Unavailable) as failure:
            send(server, ca_file=tmp_path / "other/ca.pem")
        assert server.received == []
    assert failure.value.code is ReasonCode.VERIFIER_UNREACHABLE


def test_a_server_of_another_name_is_not_talked_to(tmp_path: Path) -> None:
    with answering(tmp_path, lambda _: Scripted(200, (GOOD,))) as server:
        named = Server(server.url.replace("127.0.0.1", "localhost"), server.ca_file, server.received)
        with pytest.raises(Unavailable) as failure:
            send(named)
        assert server.received == []
    assert failure.value.code is ReasonCode.VERIFIER_UNREACHABLE


def test_no_server_is_unreachable(tmp_path: Path) -> None:
    with answering(tmp_path, lambda _: Scripted()) as server:
        gone = server
    with pytest.raises(Unavailable) as failure:
        send(gone)
    assert failure.value.code is ReasonCode.VERIFIER_UNREACHABLE


def test_a_proxy_in_the_environment_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "ALL_PROXY", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.setenv("SSL_CERT_FILE", "/absent")
    with answering(tmp_path, lambda _: Scripted(200, (GOOD,))) as server:
        send(server)


@pytest.mark.parametrize("content", [None, b"", b"no certificate"])
def test_a_ca_file_without_a_ca_is_unreadable(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(Unavailable) as failure, open_client("https://127.0.0.1:1", path, 1, 1):
        pass
    assert failure.value.code is ReasonCode.FILE_UNREADABLE


def test_the_connection_is_kept_for_the_next_round(tmp_path: Path) -> None:
    with answering(tmp_path, lambda _: Scripted(200, (GOOD,))) as server:
        with open_client(server.url, server.ca_file, 5, 5) as client:
            client.send_evidence(b"{}")
            client.send_evidence(b"{}")
        assert len(server.received) == 2
        assert len({request.client_port for request in server.received}) == 1
