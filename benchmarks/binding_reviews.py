"""Binding reviews over HTTPS: the webhook on one core, clients on another, 5,000 nodes and 20,000 sensitive pods known.

The clients are a closed loop over keep-alive connections, as an API server holds them: each posts its next review when
it has the last answer, so that the server is never idle. Each review names another pod and node. Latency is what a
client sees, queueing behind the other connections included. Clients, and the API server whose watches change pods all
the while, share the other core.
"""

from __future__ import annotations

import json
import os
import select
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from admission.clock import system_clock
from admission.key_sets import parse_key_set
from admission.kube import KubeClient
from admission.live_view import LiveClusterView
from admission.results import ALGORITHMS, InMemorySequences, ResultVerifier
from admission.server import server_of, tune_process
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
HEAD = (
    "POST /validate?timeout=3s HTTP/1.1\r\nHost: nodewarden-webhook.nodewarden-system.svc:443\r\n"
    "User-Agent: kube-apiserver-admission\r\nContent-Length: {}\r\nAccept: application/json, */*\r\n"
    "Content-Type: application/json\r\nAccept-Encoding: gzip\r\n\r\n"
)
"""As an API server 1.37 posts."""


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
    tune_process()
    print("ready", flush=True)
    server.run()


def _serve_cluster(folder: Path) -> None:
    signer = Signer()
    (folder / "keys").write_text(json.dumps(signer.jwks()))
    with scripted_api(folder / "api", LargeCluster(NODES, PODS, signer, system_clock())):
        (folder / "api/kubeconfig").rename(folder / "kubeconfig")
        print("ready", flush=True)
        sys.stdin.read()


class _Client:
    """One connection, which posts the next review as soon as it has the last answer. Cheaper than the server."""

    def __init__(self, port: int, trust: ssl.SSLContext, requests: list[bytes]) -> None:
        plain = socket.create_connection(("127.0.0.1", port))
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection = trust.wrap_socket(plain, server_hostname="127.0.0.1")
        self.connection.settimeout(0)
        self._requests, self._at, self._sent, self._rest = requests, 0, 0.0, b""

    def send(self) -> None:
        self._at += 1
        self._sent = time.perf_counter()
        self.connection.send(self._requests[self._at % len(self._requests)])

    def receive(self) -> float | None:
        """The seconds that the answer took, and the next review is on its way; None while it is not whole."""
        try:
            while not _whole(self._rest):
                data = self.connection.recv(65536)
                assert data, "the server hung up"
                self._rest += data
        except ssl.SSLWantReadError:
            return None
        took = time.perf_counter() - self._sent
        assert b'"allowed":true' in self._rest, self._rest
        self._rest = b""
        self.send()
        return took


def _whole(answer: bytes) -> bool:
    head, end, body = answer.partition(b"\r\n\r\n")
    return bool(end) and len(body) == int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])


def _requests(first: int) -> list[bytes]:
    made = []
    for n in range(first, PODS, CONNECTIONS * 4):
        binding = {
            **BINDING,
            "metadata": {"name": f"llm-{n}", "namespace": "ml", "uid": f"uid-llm-{n}"},
            "target": {"kind": "Node", "name": f"gpu-{n % NODES}"},
        }
        body = json.dumps(a_review(binding, sub="binding", name=f"llm-{n}"), separators=(",", ":")).encode()
        made.append(HEAD.format(len(body)).encode() + body)
    return made


@dataclass(frozen=True)
class Round:
    """What the clients saw in one stretch of time, and the CPU time that the server took for each review."""

    per_s: float
    p99_ms: float
    cpu_us: float
    count: int


def _load(server: int, port: int, certificate: Certificate, seconds: float = SECONDS) -> Round:
    trust = trusting(certificate)
    clients = [_Client(port, trust, _requests(n)) for n in range(CONNECTIONS)]
    ready = select.epoll()
    of = {client.connection.fileno(): client for client in clients}
    for number, client in of.items():
        ready.register(number, select.EPOLLIN)
        client.send()
    _drive(ready, of, WARM_UP_SECONDS)
    spent, started = _cpu_seconds(server), time.perf_counter()
    latencies = _drive(ready, of, seconds)
    took, spent = time.perf_counter() - started, _cpu_seconds(server) - spent
    for client in clients:
        client.connection.close()
    p99 = statistics.quantiles(latencies, n=100)[98]
    return Round(len(latencies) / took, p99 * 1e3, spent / len(latencies) * 1e6, len(latencies))


def _drive(ready: select.epoll, clients: dict[int, _Client], seconds: float) -> list[float]:
    latencies: list[float] = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        for number, _ in ready.poll():
            took = clients[number].receive()
            if took is not None:
                latencies.append(took)
    return latencies


def _cpu_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def _part(core: int, *arguments: str) -> Iterator[int]:
    """Another process of this module on one core; its number, once it is ready."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.binding_reviews", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),  # noqa: PLW1509 - no lock is held across the fork
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process.pid
    finally:
        process.terminate()
        process.communicate(timeout=20)


def rounds(count: int = ROUNDS) -> list[Round]:
    """So many stretches of load on one server."""
    cores = sorted(os.sched_getaffinity(0))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        certificate = make_certificate(folder)
        with _part(cores[-1], "cluster", name), _part(cores[0], "server", name, str(port)) as server:
            os.sched_setaffinity(0, {cores[-1]})
            try:
                time.sleep(0.5)
                return [_load(server, port, certificate) for _ in range(count)]
            finally:
                os.sched_setaffinity(0, set(cores))


def run() -> dict[str, dict[str, Any]]:
    """Reviews per second of one server core, and their 99th percentile in milliseconds: medians of three rounds."""
    seen = rounds()
    count = sum(one.count for one in seen)
    how = (
        f"/validate over TLS keep-alive, {CONNECTIONS} connections, each always waiting for an answer, one server core "
        f"({statistics.median(one.cpu_us for one in seen):.0f} us of its time a review), view fed by watches: "
        f"{NODES} nodes, {PODS} pods, {CHANGES_PER_S} changes of pods a second"
    )
    rate, p99 = statistics.median(one.per_s for one in seen), statistics.median(one.p99_ms for one in seen)
    return {
        "binding_reviews_per_s": {"value": round(rate), "unit": "1/s", "n": count, "how": how},
        "binding_review_p99_ms": {"value": round(p99, 2), "unit": "ms", "n": count, "how": how},
    }


if __name__ == "__main__":
    if sys.argv[1] == "server":
        _serve(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        _serve_cluster(Path(sys.argv[2]))
