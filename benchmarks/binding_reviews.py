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

from admission.assembly import server_of
from admission.clock import system_clock
from admission.cluster_objects import NodeUid, PodUid
from admission.cluster_view import Snapshot
from admission.serving_certificate import HotCertificate
from admission.settings import Listen, Tls
from admission.webhook import webhook_app
from tests.admission.served import Certificate, make_certificate, trusting
from tests.admission.test_webhook import BINDING, a_review
from tests.admission.world import a_node, a_pod, a_policy, a_result, a_workload

NAMES = ("binding_reviews_per_s", "binding_review_p99_ms")

NODES = 5_000
PODS = 20_000
CONNECTIONS = 16
WARM_UP_SECONDS = 1.0
SECONDS = 3.0
ROUNDS = 3


def _cluster(now: int) -> Snapshot:
    nodes = [a_node(name=f"gpu-{n}", uid=NodeUid(f"node-{n}"), claimed_boot_id=f"boot-{n}") for n in range(NODES)]
    return Snapshot(
        pods={("ml", f"llm-{n}"): a_pod(name=f"llm-{n}", uid=PodUid(f"pod-{n}")) for n in range(PODS)},
        nodes={node.name: node for node in nodes},
        service_accounts={},
        policies={"h200-prod": a_policy()},
        workloads=(a_workload(),),
        results={
            node.name: a_result(
                node_name=node.name,
                kubernetes_node_uid=node.uid,
                linux_boot_id=node.claimed_boot_id,
                issued_at=now,
                expires_at=now + 600,
            )
            for node in nodes
        },
    )


def _serve(folder: Path) -> None:
    state = _cluster(system_clock())
    app = webhook_app(lambda: state, lambda: None, 60, system_clock)
    server = server_of(app, Listen(port=0), HotCertificate(Tls(certificate=folder / "tls.pem", key=folder / "tls.key")))

    with socket.create_server(("127.0.0.1", 0)) as listening:
        print(listening.getsockname()[1], flush=True)
        server.run([listening])


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
            "metadata": {"name": f"llm-{n}", "namespace": "ml", "uid": f"pod-{n}"},
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
    with tempfile.TemporaryDirectory() as folder:
        certificate = make_certificate(Path(folder))
        server = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.binding_reviews", folder],
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: os.sched_setaffinity(0, {cores[0]}),  # noqa: PLW1509 - no thread runs yet
        )
        os.sched_setaffinity(0, {cores[-1]})
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline())
            rounds = [uvloop.run(_load(port, certificate)) for _ in range(ROUNDS)]
        finally:
            os.sched_setaffinity(0, set(cores))
            server.terminate()
            server.wait(20)
            if server.stdout is not None:
                server.stdout.close()
    rate = statistics.median(rate for rate, _ in rounds)
    p99 = statistics.median(statistics.quantiles(latencies, n=100)[98] for _, latencies in rounds) * 1000
    count = sum(len(latencies) for _, latencies in rounds)
    how = f"/validate over TLS keep-alive, {CONNECTIONS} connections, one server core, {NODES} nodes, {PODS} pods"
    return {
        "binding_reviews_per_s": {"value": round(rate), "unit": "1/s", "n": count, "how": how},
        "binding_review_p99_ms": {"value": round(p99, 2), "unit": "ms", "n": count, "how": how},
    }


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
