"""Attestations over HTTPS: a real server on one core, clients on another, every result durable before its answer.

The null request is the same POST with the same body to a route that answers `{}`, in the same server behind the same
guards. The bare request is one to a route that verifies one P-256 signature and makes one, and answers `{}`: what no
verifier can do without. What is left between bare and evidence is the verifier's own work.
The server is `nodewarden verifier serve`'s own: TLS, group commit with synchronous=FULL, audit rows, signed results.
Clients hold keep-alive connections and answer each challenge with a fresh quote by a key of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from starlette.routing import Route

from benchmarks.appraisal_cost import cryptography_alone
from benchmarks.fleet import document_now
from tests.forge.evidence import ForgedNode
from tests.verifier.fleet import encoded, evidence, issued, node, record_of, signed, write_baseline
from verifier.api.endpoint import Access, Answer, Call, Endpoint, Guards, Handler
from verifier.api.limits import RateLimiter
from verifier.appraisal.context import IssuedChallenge
from verifier.clock import SystemClock
from verifier.first_start import initialise
from verifier.roles import load_tokens
from verifier.server import build_verifier, configure_logging
from verifier.server import run as run_server
from verifier.settings import load_settings
from verifier.wire.binding import bound_items, quote_extra_data
from verifier.wire.bundle import TpmQuote
from verifier.wire.bundle_codec import encode_bundle
from verifier.wire.encoding import MAX_MESSAGE_BYTES, canonical_json, decode_base64url, encode_base64url

NAMES = ("http_attestations_per_s_sqlite", "http_cost_vs_null", "http_cost_vs_bare")
_NODES = 64
_ROUNDS = 5
_SECONDS = 4.0
_HOST = "127.0.0.1"
_NULL_PATH, _BARE_PATH = b"/v1/null-----", b"/v1/bare-----"
"""As long as the path of evidence."""


@dataclass(frozen=True, slots=True)
class _Round:
    """How many acts a second, and the server's processor time for one."""

    per_second: float
    cpu_seconds: float


class Quoter:
    """Answers challenges as fast as a load generator must: all but nonce, clock and signature is made once."""

    def __init__(self, forged: ForgedNode, first: IssuedChallenge) -> None:
        honest = replace(evidence(forged, first), log_by_digest=True)
        bundle = honest.bundle()
        quote, *items = bundle.items
        if not isinstance(quote, TpmQuote):
            raise TypeError("the quote comes first")
        self._sign = forged.ak.sign
        self._clock_ms = honest.clock_ms
        bound = hashlib.sha256(canonical_json(bound_items(tuple(items)))).digest()
        verifier = hashlib.sha256(honest.verifier_id.encode()).digest()
        self._binding = bytes.fromhex(bundle.claimed_node_id) + verifier + bound
        start = quote.attest.index(quote_extra_data(first.nonce, first.node_id, honest.verifier_id, tuple(items)))
        self._before, self._after = quote.attest[:start], quote.attest[start + 32 + 8 :]
        self._json = encode_bundle(bundle).decode()
        self._json = self._json.replace("%", "%%")
        for name, part in (("nonce", first.nonce), ("attest", quote.attest), ("signature", quote.signature)):
            assert self._json.count(encode_base64url(part)) == 1
            self._json = self._json.replace(encode_base64url(part), f"%({name})s")

    def answer(self, nonce_text: str) -> bytes:
        """The bundle's JSON for the challenge with this nonce."""
        nonce = decode_base64url(nonce_text, "nonce")
        self._clock_ms += 1000
        extra = hashlib.sha256(b"nodewarden/quote/1\0" + nonce + self._binding).digest()
        attest = self._before + extra + self._clock_ms.to_bytes(8, "big") + self._after
        parts = {
            "nonce": nonce_text,
            "attest": encode_base64url(attest),
            "signature": encode_base64url(self._sign(attest)),
        }
        return (self._json % parts).encode()


@dataclass(slots=True)
class _Client:
    """One node with its connection: writes a whole request, reads a whole answer."""

    forged: ForgedNode
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    quoter: Quoter | None = None
    request: bytes = b""

    async def exchange(self, request: bytes) -> tuple[int, bytes]:
        """Status and body."""
        self.writer.write(request)
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ", 1)[1].split(b"\r\n", 1)[0])
        return int(head[9:12]), await self.reader.readexactly(length)


def run() -> dict[str, dict[str, Any]]:
    """The figures, from rounds that take turns in evidence and two routes of the same server that do less."""
    with tempfile.TemporaryDirectory() as name, _server(Path(name) / "verifier") as (port, ca, pid):
        rounds = asyncio.run(_measure(port, ca, pid))
    attestations = [ours.per_second for ours, _, _ in rounds]
    microseconds = [statistics.median(turn[which].cpu_seconds for turn in rounds) * 1e6 for which in range(3)]
    how = (
        f"{_NODES} nodes, keep-alive TLS, server on one core and clients on another, synchronous=FULL, steady "
        "re-attestation with the boot log known by digest"
    )
    n = round(sum(attestations) * _SECONDS)
    return {
        "http_attestations_per_s_sqlite": {
            "value": round(statistics.median(attestations)),
            "unit": "1/s",
            "n": n,
            "how": how,
        },
        "http_cost_vs_null": {
            "value": round(statistics.median(ours.cpu_seconds / null.cpu_seconds for ours, null, _ in rounds), 2),
            "unit": "x",
            "n": n,
            "how": f"{how}; the server's processor time for one ({microseconds[0]:.0f} us), over that for the same "
            f"POST with the same body to an empty route of the same server ({microseconds[1]:.0f} us), taking turns",
        },
        "http_cost_vs_bare": {
            "value": round(statistics.median(ours.cpu_seconds / bare.cpu_seconds for ours, _, bare in rounds), 2),
            "unit": "x",
            "n": n,
            "how": f"as http_cost_vs_null, over a route that verifies one P-256 signature and makes one "
            f"({microseconds[2]:.0f} us)",
        },
    }


@contextlib.contextmanager
def _server(directory: Path) -> Iterator[tuple[int, Path, int]]:
    clock = SystemClock()
    now = clock.now_ms() // 1000
    port = _free_port()
    settings = initialise(directory, "https://verifier.example", "bench", _HOST, port, ("localhost", _HOST), now)
    day = 86400
    times = (time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at)) for at in (now - day, now + 90 * day))
    write_baseline(settings.baselines_dir, document_now(*times))
    _enrol_all(settings.database, now)
    cores = sorted(os.sched_getaffinity(0))
    log = (directory / "log").open("wb")
    with log:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.http_attestations", str(directory / "verifier.yaml"), str(cores[0])],
            stderr=log,
        )
    os.sched_setaffinity(0, set(cores[1:]) or set(cores))
    try:
        yield port, settings.tls_dir / "ca.pem", process.pid
    finally:
        os.sched_setaffinity(0, set(cores))
        process.terminate()
        process.wait(20)


def _free_port() -> int:
    import socket  # noqa: PLC0415 - used here only

    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])


def _enrol_all(database: Path, now: int) -> None:
    from sqlalchemy import insert  # noqa: PLC0415 - used here only

    from verifier.store.migrate import migrate, open_engine  # noqa: PLC0415
    from verifier.store.rows import node_columns  # noqa: PLC0415
    from verifier.store.schema import NODES, RESULTS  # noqa: PLC0415

    engine = open_engine(database)
    migrate(engine, now * 1000)
    with engine.connect() as connection:
        connection.exec_driver_sql("BEGIN")
        for which in range(_NODES):
            record = record_of(node(which))
            columns = node_columns(record) | {"state": "admitted", "enrolled_at": now, "version": 1}
            connection.execute(insert(NODES).values(**columns))
            connection.execute(
                insert(RESULTS).values(node_id=record.node_id, node_name=record.node_name, seq=0, moved=0, event=0)
            )
        connection.exec_driver_sql("COMMIT")
    engine.dispose()


async def _measure(port: int, ca: Path, pid: int) -> list[tuple[_Round, _Round, _Round]]:
    clients = [await _connect(port, ca, which) for which in range(_NODES)]
    for client in clients:
        await _first_attestation(client)
    rounds = []
    for _ in range(_ROUNDS):
        ours, null, bare = [await _rate(clients, act, pid) for act in (_attest, _null, _bare)]
        rounds.append((ours, null, bare))
    for client in clients:
        client.writer.close()
    return rounds


async def _connect(port: int, ca: Path, which: int) -> _Client:
    context = ssl.create_default_context(cafile=str(ca))
    for _ in range(600):
        try:
            reader, writer = await asyncio.open_connection(_HOST, port, ssl=context)
        except OSError:
            await asyncio.sleep(0.1)
            continue
        return _Client(node(which), reader, writer)
    raise TimeoutError("the server does not start")


async def _first_attestation(client: _Client) -> None:
    now = SystemClock().now_ms() // 1000
    status, answer = await client.exchange(_post("/v1/challenges", signed(client.forged, now)))
    assert status == 200, answer
    body = encoded(evidence(client.forged, issued(client.forged, json.loads(answer), now)))
    status, answer = await client.exchange(_post("/v1/evidence", body))
    assert status == 200, answer
    following = json.loads(answer)["next_challenge"]
    client.quoter = Quoter(client.forged, issued(client.forged, following, now))
    client.request = _post("/v1/evidence", client.quoter.answer(following["nonce"]))


async def _attest(client: _Client) -> None:
    status, answer = await client.exchange(client.request)
    assert status == 200 and answer.startswith(b'{"verdict":"affirming"'), answer
    assert client.quoter is not None
    nonce = answer.rpartition(b'"nonce":"')[2][:43].decode()
    client.request = _post("/v1/evidence", client.quoter.answer(nonce))


async def _null(client: _Client) -> None:
    await _elsewhere(client, _NULL_PATH)


async def _bare(client: _Client) -> None:
    await _elsewhere(client, _BARE_PATH)


async def _elsewhere(client: _Client, path: bytes) -> None:
    status, answer = await client.exchange(client.request.replace(b"/v1/evidence", path, 1))
    assert status == 200 and answer == b"{}", answer


async def _rate(clients: list[_Client], act: Callable[[_Client], Awaitable[None]], pid: int) -> _Round:
    """All clients act one after another for `_SECONDS`."""
    cpu = _cpu_seconds(pid)
    started = time.perf_counter()
    end = started + _SECONDS

    async def loop(client: _Client) -> int:
        count = 0
        while time.perf_counter() < end:
            await act(client)
            count += 1
        return count

    total = sum(await asyncio.gather(*(loop(client) for client in clients)))
    elapsed = time.perf_counter() - started
    return _Round(total / elapsed, (_cpu_seconds(pid) - cpu) / total)


def _cpu_seconds(pid: int) -> float:
    """Processor time of the server with all its threads; what else runs on the machine does not enter it."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _post(path: str, body: bytes) -> bytes:
    return f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


def _serve(config: Path, core: int) -> None:
    os.sched_setaffinity(0, {core})
    configure_logging()
    # A few nodes stand for a fleet here, so each proves itself far more often than one may.
    settings = load_settings(config).model_copy(update={"evidence_per_node_per_minute": 1_000_000})
    verifier = build_verifier(settings, SystemClock())
    limits = RateLimiter(1), RateLimiter(1)
    guards = Guards(load_tokens(verifier.settings.tokens_file), *limits, verifier.metrics)
    # Before all others but that of evidence, which is looked up first.
    for path, handler in ((_BARE_PATH, _signing()), (_NULL_PATH, _empty)):
        endpoint = Endpoint(handler, Access.NODE, MAX_MESSAGE_BYTES, guards)
        verifier.app.router.routes.insert(1, Route(path.decode(), endpoint, methods=["POST"]))
    run_server(verifier)


async def _empty(_call: Call) -> Answer:
    return Answer(b"{}")


def _signing() -> Handler:
    verify_and_sign = cryptography_alone()

    async def handler(_call: Call) -> Answer:
        verify_and_sign()
        return Answer(b"{}")

    return handler


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), int(sys.argv[2]))
