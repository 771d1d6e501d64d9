"""Binding reviews over HTTPS: the webhook on one core, clients on another, 5,000 nodes and 20,000 sensitive pods known.

The clients are a closed loop over keep-alive connections, as an API server holds them; each review names another pod
and node. Latency is what a client sees, queueing behind the other connections included.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, cast

import uvloop

from admission.clock import system_clock
from admission.key_sets import parse_key_set
from admission.kube import KubeClient
from admission.live_view import LiveClusterView
from admission.results import ALGORITHMS, InMemorySequences, ResultVerifier
from admission.server import server_of
from admission.serving_certificate import HotCertificate
from admission.settings import Listen, Tls
from admission.webhook import webhook_app
from benchmarks.live_cluster import CHANGES_PER_S, LargeCluster
from tests.admission.scripted_api import scripted_api
from tests.admission.served import Certificate, make_certificate, trusting
from tests.admission.test_webhook import BINDING, a_review
from tests.admission.world import AUDIENCE, ISSUER, Signer

NAMES = ("binding_reviews_per_s", "binding_review_p99_ms")

NODES = 5_000
PODS = 20_000
CONNECTIONS = 16
WARM_UP_SECONDS = 1.0
SECONDS = 3.0
ROUNDS = 3


def _serve(folder: Path, port: int) -> None:
    keys = parse_key_set((folder / "keys").read_text(), ALGORITHMS, "keys")
    verifier = ResultVerifier(lambda: keys, ISSUER, AUDIENCE, InMemorySequences())
    view = LiveClusterView(KubeClient.from_kubeconfig(folder / "kubeconfig"), verifier, lambda _: None)
    view.start()
    while view.unready() is not None or view.state().staleness.results is not None:
        time.sleep(0.1)
    app = webhook_app(view.state, view.refresh, 2, system_clock)
    hot = HotCertificate(Tls(certificate=folder / "tls.pem", key=folder / "tls.key"))
    server = server_of(app, Listen(port=port), hot)
    print("ready", flush=True)
    server.run()


class _Client(asyncio.Protocol):
    """One connection that posts the next review as soon as it has the last answer."""

    def __init__(self, requests: list[bytes], latencies: list[float]) -> None:
        self._requests, self._latencies = requests, latencies
        self._at, self._sent, self._received = 0, 0.0, b""
        self.denied = 0
        self.measuring = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._send()

    def _send(self) -> None:
        self._sent = time.perf_counter()
        self._transport.write(self._requests[self._at % len(self._requests)])
        self._at += 1

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        if not end or len(body) < int(head.partition(b"content-length: ")[2].split(b"\r\n")[0]):
            return
        if self.measuring:
            self._latencies.append(time.perf_counter() - self._sent)
        if b'"allowed":true' not in body:
            self.denied += 1
        self._received = b""
        self._send()


def _requests(first: int) -> list[bytes]:
    made = []
    for n in range(first, PODS, CONNECTIONS * 20):
        binding = {
            **BINDING,
            "metadata": {"name": f"llm-{n}", "namespace": "ml", "uid": f"uid-llm-{n}"},
            "target": {"kind": "Node", "name": f"gpu-{n % NODES}"},
        }
        body = json.dumps(a_review(binding, sub="binding", name=f"llm-{n}")).encode()
        head = "POST /validate HTTP/1.1\r\nHost: w\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(body)}\r\n\r\n"
        made.append(head.encode() + body)
    return made


async def _load(port: int, certificate: Certificate) -> tuple[float, list[float]]:
    loop = asyncio.get_running_loop()
    latencies: list[float] = []
    trust: ssl.SSLContext = trusting(certificate)
    clients = []
    for n in range(CONNECTIONS):
        transport, client = await loop.create_connection(
            lambda n=n: _Client(_requests(n), latencies),  # type: ignore[misc]  # - the default binds the loop variable
            "127.0.0.1",
            port,
            ssl=trust,
            server_hostname="127.0.0.1",
        )
        clients.append((transport, client))
    await asyncio.sleep(WARM_UP_SECONDS)
    for _, client in clients:
        client.measuring = True
    started = time.perf_counter()
    await asyncio.sleep(SECONDS)
    seconds = time.perf_counter() - started
    for transport, client in clients:
        transport.abort()
        assert client.denied == 0
    return len(latencies) / seconds, latencies


def run() -> dict[str, dict[str, Any]]:
    """Reviews per second of one server core, and their 99th percentile in milliseconds: medians of three rounds."""
    cores = sorted(os.sched_getaffinity(0))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as name:
        folder, signer = Path(name), Signer()
        certificate = make_certificate(folder)
        (folder / "keys").write_text(json.dumps(signer.jwks()))
        cluster = LargeCluster(NODES, PODS, signer, system_clock())
        with scripted_api(folder / "api", cluster):
            (folder / "api/kubeconfig").rename(folder / "kubeconfig")
            rounds = _rounds(folder, port, certificate, cores)
    rate = statistics.median(rate for rate, _ in rounds)
    p99 = statistics.median(statistics.quantiles(latencies, n=100)[98] for _, latencies in rounds) * 1000
    count = sum(len(latencies) for _, latencies in rounds)
    how = (
        f"/validate over TLS keep-alive, {CONNECTIONS} connections, one server core, view fed by watches: "
        f"{NODES} nodes, {PODS} pods, {CHANGES_PER_S} changes of pods a second"
    )
    return {
        "binding_reviews_per_s": {"value": round(rate), "unit": "1/s", "n": count, "how": how},
        "binding_review_p99_ms": {"value": round(p99, 2), "unit": "ms", "n": count, "how": how},
    }


def _rounds(folder: Path, port: int, certificate: Certificate, cores: list[int]) -> list[tuple[float, list[float]]]:
    server = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.binding_reviews", str(folder), str(port)],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, {cores[0]}),  # noqa: PLW1509 - no lock is held across the fork
    )
    os.sched_setaffinity(0, {cores[-1]})
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        time.sleep(0.5)
        return [uvloop.run(_load(port, certificate)) for _ in range(ROUNDS)]
    finally:
        os.sched_setaffinity(0, set(cores))
        server.terminate()
        server.wait(20)
        if server.stdout is not None:
            server.stdout.close()


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), int(sys.argv[2]))
