"""The verifier put together from its settings, and run: the composition root."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import structlog
import uvicorn
from fastapi import FastAPI
from pydantic_core import to_json

from edges.collector import tune_collector
from edges.listening import listening_sockets
from edges.open_files import fit_to_files
from edges.private_files import require_private
from edges.server import BoundedServer, http_config, over_tls
from verifier.administration import Administration
from verifier.api.app import build_app
from verifier.api.connections import NodeConnections
from verifier.api.endpoint import Guards
from verifier.api.limits import RateLimiter
from verifier.api.protocol import NodeProtocol
from verifier.api.routes import Parts
from verifier.api.stream import Commits
from verifier.audit_log import chain_once
from verifier.baselines import load_baselines
from verifier.clock import Clock, SystemClock
from verifier.cluster_tokens import NodeTokens
from verifier.endorsement_files import load_endorsements
from verifier.enrolment_service import EnrolmentService
from verifier.metrics import Metrics
from verifier.results import ResultMaker
from verifier.roles import load_tokens
from verifier.service import Service
from verifier.settings import Settings
from verifier.store.sql import SqlStore
from verifier.tls import ensure_tls
from verifier.tokens import Signer, load_signer
from verifier.wire.failures import Refusal

CHAIN_SECONDS = 1.0
PURGE_ROUNDS = 60
"""Old challenges are removed once in so many rounds of the chainer."""
_KEEP_ALIVE_BEYOND_INTERVAL_SECONDS = 30

_log = structlog.get_logger("nodewarden.verifier")


@dataclass(slots=True)
class Verifier:
    """One verifier, ready to serve. `close` ends it."""

    settings: Settings
    clock: Clock
    store: SqlStore
    signer: Signer
    service: Service
    administration: Administration
    metrics: Metrics
    commits: Commits
    app: FastAPI

    def reload_baselines(self) -> None:
        """The baselines on disk are in force, and every node is asked for evidence; on a fault the old ones stay."""
        try:
            self.service.baselines = load_baselines(self.settings.baselines_dir)
        except Refusal as refusal:
            _log.error("baselines_refused", code=refusal.code.value, detail=refusal.failure.line())
            self.administration.baselines_fault = refusal.failure
            return
        self.administration.baselines_fault = None
        self.service.wanted.want_all([record.node_id for record, _ in self.store.nodes()])
        _log.info("baselines_loaded", count=len(self.service.baselines.baselines))

    async def chain_audit(self) -> None:
        """One round of the chainer."""
        checkpoints = self.settings.audit_checkpoint_file
        refused = self.metrics.take_unreported()
        await chain_once(self.store, self.signer, self.clock, self.settings.issuer, checkpoints, refused)

    def let_go(self) -> None:
        """Requests that are held open, streams and long polls, end: else each stop would wait for its time limit."""
        self.commits.end()
        self.service.wanted.end()

    def close(self) -> None:
        """What was accepted is durable, and the database is closed."""
        self.store.close()


def build_verifier(settings: Settings, clock: Clock) -> Verifier:
    """The verifier of `settings`: files read and checked, database migrated.

    Raises what the loaders raise; a verifier with a bad baseline, key or tokens file does not start.
    """
    commits = Commits()
    signer = load_signer(settings.keys_dir)
    tokens = load_tokens(settings.tokens_file)
    baselines = load_baselines(settings.baselines_dir)
    endorsements = load_endorsements(settings.endorsements_dir)
    node_tokens = None if settings.cluster is None else NodeTokens(settings.cluster)
    results = ResultMaker(settings, signer)
    metrics = Metrics()
    store = SqlStore(settings.database, clock.now_ms(), commits.committed)
    pace = RateLimiter(settings.evidence_per_node_per_minute)
    # Each piece of evidence may need a challenge asked for first; a poll now and then comes on top.
    asking_pace = RateLimiter(2 * settings.evidence_per_node_per_minute)
    service = Service(settings, store, results, clock, node_tokens, pace.wait_seconds, asking_pace.wait_seconds)
    service.baselines = baselines
    enrolment = EnrolmentService(settings, store, results, clock, endorsements, node_tokens, service.wanted)
    administration = Administration(store, results, clock, service.wanted)
    guards = Guards(
        tokens,
        RateLimiter(settings.anonymous_requests_per_minute),
        RateLimiter(settings.refused_requests_per_minute),
        metrics,
    )

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        task = asyncio.create_task(_background(verifier))
        with suppress(NotImplementedError, RuntimeError, ValueError):
            # Not in the main thread (tests): there is no signal to listen for.
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, verifier.reload_baselines)
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            await verifier.chain_audit()

    parts = Parts(service, enrolment, administration, store, signer, metrics, commits)
    app = build_app(parts, guards, lifespan)
    verifier = Verifier(settings, clock, store, signer, service, administration, metrics, commits, app)
    return verifier


async def _background(verifier: Verifier) -> None:
    round_number = 0
    while True:
        await _survived("audit_chain_failed", verifier.chain_audit)
        if round_number % PURGE_ROUNDS == 0:
            await _survived("purge_failed", lambda: verifier.store.purge(verifier.clock.now_ms() // 1000))
        round_number += 1
        await asyncio.sleep(CHAIN_SECONDS)


async def _survived(event: str, work: Callable[[], Awaitable[None]]) -> None:
    """A full disk, or a fault of ours, must not end the chainer: rows wait, unanchored, for the next round."""
    try:
        await work()
    except Refusal as refusal:
        _log.error(event, code=refusal.code.value, detail=refusal.failure.line())
    except Exception:  # noqa: BLE001 - the outermost edge of a task that must go on; told to the log
        _log.exception(event)


def _log_line(event: Any, **_: Any) -> str:
    return to_json(event, fallback=str).decode()


def configure_logging() -> None:
    """Structured logs as JSON lines on stderr."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(serializer=_log_line),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )


def server_of(verifier: Verifier, listening: Sequence[socket.socket]) -> BoundedServer:
    """The verifier's server on sockets that listen. Raises as `server_config`."""
    return _Server(server_config(verifier), listening, verifier)


def server_config(verifier: Verifier) -> uvicorn.Config:
    """uvicorn's configuration: TLS always.

    Raises Rejection `file-mode-unsafe`, MalformedEvidence `setting-invalid`, Unavailable `file-unreadable`.
    """
    settings = verifier.settings
    if settings.tls_certificate is not None and settings.tls_key is not None:
        certificate, key = settings.tls_certificate, settings.tls_key
        require_private(key)
    else:
        certificate, key = ensure_tls(settings.tls_dir, settings.tls_names, verifier.clock.now_ms() // 1000)
    config = http_config(
        verifier.app,
        NodeProtocol,
        NodeConnections(fit_to_files(settings.max_connections)),
        host=settings.listen_host,
        port=settings.listen_port,
        lifespan="on",
        # Longer than the interval, so that a node's next evidence finds its connection open.
        timeout_keep_alive=settings.interval_seconds + _KEEP_ALIVE_BEYOND_INTERVAL_SECONDS,
    )
    over_tls(config, certificate, key)
    return config


class _Server(BoundedServer):
    def __init__(self, config: uvicorn.Config, listening: Sequence[socket.socket], verifier: Verifier) -> None:
        super().__init__(config, listening)
        self._verifier = verifier

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._verifier.let_go()
        await super().shutdown(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        _log.info("verifier_ready", host=self.config.host, port=self.config.port)


def serve(settings: Settings) -> None:
    """Serves until SIGTERM or SIGINT; then open requests are finished and everything is durable.

    Raises what `build_verifier` raises, and Unavailable `address-unavailable` before anything is opened.
    """
    configure_logging()
    # uvicorn stops at SIGTERM and then raises it again: without a handler that would end us before `close`.
    signal.signal(signal.SIGTERM, lambda *_: None)
    listening = listening_sockets(settings.listen_host, settings.listen_port)
    run(build_verifier(settings, SystemClock()), listening)


def run(verifier: Verifier, listening: Sequence[socket.socket] = ()) -> None:
    """As `serve`, with a verifier that is built."""
    settings = verifier.settings
    tune_collector()
    try:
        listening = listening or listening_sockets(settings.listen_host, settings.listen_port)
        server = server_of(verifier, listening)
        _log.info("verifier_started", issuer=settings.issuer, host=settings.listen_host, port=settings.listen_port)
        server.run()
    finally:
        verifier.close()
