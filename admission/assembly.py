"""Puts webhook and broker together from their settings: the one place that knows all the parts."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import structlog
import uvicorn
from starlette.types import ASGIApp

from admission.broker import broker_app
from admission.clock import Clock
from admission.durable_state import DurableSequences, DurableState
from admission.events import reasons_of, report_failure
from admission.key_sets import KeySet, fetch_key_set, load_key_set
from admission.leases import Leases
from admission.manifests import ManifestClusterView
from admission.pod_tokens import ALGORITHMS as TOKEN_ALGORITHMS
from admission.pod_tokens import PodTokenVerifier
from admission.private_files import require_private
from admission.release import ReleaseService
from admission.results import ALGORITHMS as RESULT_ALGORITHMS
from admission.results import InMemorySequences, ResultVerifier
from admission.sealed_store import SealedStore
from admission.settings import BrokerSettings, Listen, Results, Tls, Tokens, WebhookSettings
from admission.webhook import webhook_app
from verifier.wire.failures import Refusal

KEY_FETCH_SECONDS = 60.0
"""A verifier publishes a new key long before it signs with it."""
KEEP_ALIVE_SECONDS = 120
MAX_CONCURRENT_REQUESTS = 512


class CurrentKeys:
    """The newest key set that could be read; `refresh` keeps the last good one and says so when it cannot."""

    def __init__(self, read: Callable[[], KeySet], every_seconds: float = 0.0) -> None:
        """Reads once. Raises as `read`. `refresh` reads again only `every_seconds` after the last time."""
        self._read, self._every_seconds = read, every_seconds
        self._read_at = time.monotonic()
        self._keys = read()

    def __call__(self) -> KeySet:
        return self._keys

    def refresh(self) -> None:
        if time.monotonic() - self._read_at < self._every_seconds:
            return
        self._read_at = time.monotonic()
        try:
            self._keys = self._read()
        except Refusal as refusal:
            structlog.get_logger().warning("keys_refused", reasons=reasons_of((refusal.failure,)))


def result_keys(results: Results) -> CurrentKeys:
    """The verifier's keys. Raises `setting-invalid`, `file-unreadable`, `verifier-unreachable`."""
    url, ca_file, file = results.jwks_url, results.jwks_ca_file, results.jwks_file
    if url is not None and ca_file is not None:
        return CurrentKeys(lambda: fetch_key_set(url, ca_file, RESULT_ALGORITHMS), KEY_FETCH_SECONDS)
    if file is None:
        raise AssertionError("settings hold one source of keys")
    return CurrentKeys(lambda: load_key_set(file, RESULT_ALGORITHMS))


def token_keys(tokens: Tokens) -> CurrentKeys:
    """The cluster's token keys. Raises `setting-invalid`, `file-unreadable`."""
    return CurrentKeys(lambda: load_key_set(tokens.jwks_file, TOKEN_ALGORITHMS))


def _reload(view: ManifestClusterView, *keys: CurrentKeys) -> Callable[[], None]:
    def reload() -> None:
        # Keys first: a result under a new key must find it.
        for current in keys:
            current.refresh()
        view.reload_if_changed()

    return reload


def build_webhook(settings: WebhookSettings, clock: Clock) -> ASGIApp:
    """The webhook that `settings` describe. Raises the refusals of its parts: it does not start half-blind."""
    keys = result_keys(settings.results)
    sequences = (
        InMemorySequences() if settings.state_file is None else DurableSequences(DurableState(settings.state_file))
    )
    verifier = ResultVerifier(keys, settings.results.issuer, settings.results.audience, sequences)
    view = ManifestClusterView(tuple(settings.manifests), verifier, None, report_failure)
    return webhook_app(view.state, _reload(view, keys), settings.reload_seconds, clock)


def build_broker(settings: BrokerSettings, clock: Clock) -> ASGIApp:
    """The broker that `settings` describe. Raises the refusals of its parts; the sealed store must open."""
    store = SealedStore(settings.secrets.store, settings.secrets.key)
    store.names()
    keys, issuer_keys = result_keys(settings.results), token_keys(settings.tokens)
    state = DurableState(settings.state_file)
    verifier = ResultVerifier(keys, settings.results.issuer, settings.results.audience, DurableSequences(state))
    tokens = PodTokenVerifier(issuer_keys, settings.tokens.issuer)
    view = ManifestClusterView(tuple(settings.manifests), verifier, tokens, report_failure)
    service = ReleaseService(view, Leases(state), store)
    return broker_app(service, _reload(view, keys, issuer_keys), settings.reload_seconds, clock)


def server_of(app: ASGIApp, listen: Listen, tls: Tls) -> uvicorn.Server:
    """A server of `app` over TLS 1.2 or later; its `run()` serves until SIGTERM. Raises `file-mode-unsafe`."""
    require_private(Path(tls.key))
    config = uvicorn.Config(
        app,
        host=listen.host,
        port=listen.port,
        ssl_certfile=str(tls.certificate),
        ssl_keyfile=str(tls.key),
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        limit_concurrency=MAX_CONCURRENT_REQUESTS,
        timeout_graceful_shutdown=10,
    )
    return uvicorn.Server(config)
