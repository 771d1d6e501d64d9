"""`/healthz` of the controller: two paths, two answers, and strangers who say nothing keep no probe waiting."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx
import pytest

from admission.controller.health import serving_health
from admission.metrics_server import MAX_CONNECTIONS_PER_ADDRESS
from admission.settings import Listen
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Unavailable


@contextmanager
def probed(healthy: list[bool], port: int = 0) -> Iterator[httpx.Client]:
    with (
        serving_health(lambda: healthy[-1], Listen(port=port)) as taken,
        httpx.Client(base_url=f"http://127.0.0.1:{taken}", timeout=3) as client,
    ):
        yield client


def test_it_says_whether_every_part_runs_and_nothing_else() -> None:
    healthy = [True]
    with probed(healthy) as client:
        for path in ("/healthz", "/readyz"):
            found = client.get(path)
            assert (found.status_code, found.content) == (200, b"")
        assert (client.get("/").status_code, client.post("/healthz", content=b"x" * 100_000).status_code) == (404, 405)
        healthy.append(False)
        assert (client.get("/healthz").status_code, client.get("/readyz").status_code) == (503, 503)


def test_strangers_who_never_finish_a_request_cost_no_thread_and_keep_no_probe_out() -> None:
    with probed([True]) as client, ExitStack() as strangers:
        port, threads = client.base_url.port or 0, threading.active_count()
        for _ in range(20 * MAX_CONNECTIONS_PER_ADDRESS):
            stranger = strangers.enter_context(socket.create_connection(("127.0.0.1", port), timeout=3))
            stranger.sendall(b"GET /healthz HTTP/1.1\r\nX-Slow: ")
        began = time.monotonic()
        assert client.get("/healthz").status_code == 200
        assert time.monotonic() - began < 1.0
        assert threading.active_count() == threads


def test_a_taken_port_is_refused_before_the_controller_starts() -> None:
    with probed([True]) as client, pytest.raises(Unavailable) as caught, probed([True], client.base_url.port or 0):
        pass
    assert caught.value.code is ReasonCode.ADDRESS_UNAVAILABLE
