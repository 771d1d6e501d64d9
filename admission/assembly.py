"""Puts webhook and broker together from their settings: the one place that knows all the parts."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import structlog
from starlette.types import ASGIApp

from admission.broker import broker_app
from admission.broker_metrics import BrokerCollector, BrokerMeter
from admission.clock import Clock
from admission.cluster_events import EventWriter, notice_of, release_notice
from admission.cluster_leases import ClusterLeases
from admission.durable_state import DurableSequences, DurableState, UsedRequests
from admission.events import reasons_of, report_failure
from admission.exposition import Exposition
from admission.key_sets import KeySet, fetch_key_set, load_key_set
from admission.kube import KubeClient
from admission.live_view import LiveClusterView
from admission.local_leases import LocalLeases
from admission.manifests import ManifestClusterView
from admission.metrics import ReviewMeter, ViewCollector, webhook_figures
from admission.pod_tokens import ALGORITHMS as TOKEN_ALGORITHMS
from admission.pod_tokens import PodTokenVerifier
from admission.release import ReleaseService
from admission.results import ALGORITHMS as RESULT_ALGORITHMS
from admission.results import ResultVerifier
from admission.revocations import Revocations
from admission.sealed_store import SealedStore
from admission.serving_certificate import HotCertificate, ManagedCertificate
from admission.settings import BrokerSettings, Kubernetes, Results, Tls, Tokens, WebhookSettings
from admission.webhook import Gates, webhook_app
from verifier.wire.failures import Failure, Refusal, Unavailable

KEY_FETCH_SECONDS = 60.0
"""A verifier publishes a new key long before it signs with it."""


class CurrentKeys:
    """The newest key set that could be read; `refresh` keeps the last good one and says so when it cannot."""

    def __init__(self, read: Callable[[], KeySet], every_seconds: float = 0.0, *, may_come_later: bool = False) -> None:
        """Reads once. Raises as `read`. `refresh` reads again only `every_seconds` after the last time.

        With `may_come_later` there is no key, and `refresh` reads each time, for as long as the source is unavailable.
        """
        self._read, self._every_seconds = read, every_seconds
        self._read_at, self._awaited = time.monotonic(), False
        self._said: Failure | None = None
        try:
            self._keys = read()
        except Unavailable as refusal:
            if not may_come_later:
                raise
            self._keys, self._awaited = KeySet({}), True
            self._say(refusal.failure)

    def __call__(self) -> KeySet:
        return self._keys

    def awaited(self) -> bool:
        """Whether none could be read yet."""
        return self._awaited

    def refresh(self) -> None:
        if not self._awaited and time.monotonic() - self._read_at < self._every_seconds:
            return
        self._read_at = time.monotonic()
        try:
            self._keys, self._awaited, self._said = self._read(), False, None
        except Refusal as refusal:
            self._say(refusal.failure)

    def _say(self, failure: Failure) -> None:
        # Once, not every other second of a long outage.
        if failure != self._said:
            self._said = failure
            structlog.get_logger().warning("keys_refused", reasons=reasons_of((failure,)))


def result_keys(results: Results, *, may_come_later: bool = False) -> CurrentKeys:
    """The verifier's keys. Raises `setting-invalid`, `file-unreadable`, `verifier-unreachable`.

    With `may_come_later` a verifier that cannot be reached is asked again; until it answers no result counts.
    """
    url, ca_file, file = results.jwks_url, results.jwks_ca_file, results.jwks_file
    if url is not None and ca_file is not None:
        read = partial(fetch_key_set, url, ca_file, RESULT_ALGORITHMS)
        return CurrentKeys(read, KEY_FETCH_SECONDS, may_come_later=may_come_later)
    if file is None:
        raise AssertionError("settings hold one source of keys")
    return CurrentKeys(lambda: load_key_set(file, RESULT_ALGORITHMS))


def token_keys(tokens: Tokens) -> CurrentKeys:
    """The cluster's token keys. Raises `setting-invalid`, `file-unreadable`."""
    return CurrentKeys(lambda: load_key_set(tokens.jwks_file, TOKEN_ALGORITHMS))


def cluster_client(settings: Kubernetes) -> KubeClient:
    """The API server that `settings` name. Raises Rejection `setting-invalid`."""
    return KubeClient.in_cluster() if settings.kubeconfig is None else KubeClient.from_kubeconfig(settings.kubeconfig)


@dataclass(frozen=True, slots=True)
class Service:
    """An application, the certificate that it is served with, and its figures where it has any."""

    app: ASGIApp
    certificate: HotCertificate
    figures: Exposition | None = None


def _in_turn(*steps: Callable[[], None]) -> Callable[[], None]:
    """All of `steps`, each whether or not the one before could be done."""

    def reload() -> None:
        for step in steps:
            try:
                step()
            except Refusal as refusal:
                structlog.get_logger().warning("reload_refused", reasons=reasons_of((refusal.failure,)))

    return reload


def build_webhook(settings: WebhookSettings, clock: Clock, lost_lines: Callable[[], int] = lambda: 0) -> Service:
    """The webhook that `settings` describe. Raises the refusals of its parts: it does not start half-blind.

    `lost_lines` tells the figures how many log lines were lost.
    """
    # Without the verifier no node is verified, but pods that are not sensitive must go on to be created: those of its
    # volume's driver, for one.
    keys = result_keys(settings.results, may_come_later=True)
    sequences = DurableSequences(DurableState(settings.state_file))
    verifier = ResultVerifier(keys, settings.results.issuer, settings.results.audience, sequences)
    every, meter = settings.reload_seconds, ReviewMeter()
    if settings.kubernetes is None:
        manifests = ManifestClusterView(tuple(settings.manifests or ()), verifier, None, report_failure)
        hot = HotCertificate(_given(settings.tls))
        # Keys first: a result under a new key must find it.
        reload = _in_turn(keys.refresh, manifests.reload_if_changed, hot.refresh)
        app = webhook_app(manifests.state, reload, every, clock, unready=manifests.unready, meter=meter)
        return Service(
            app, hot, webhook_figures(meter, ViewCollector(manifests.measures, manifests.state, clock), lost_lines)
        )
    client = cluster_client(settings.kubernetes)
    view, events = LiveClusterView(client, verifier, report_failure), EventWriter(client, "nodewarden-webhook", clock)
    managed = None if settings.managed_tls is None else ManagedCertificate(client, settings.managed_tls, clock)
    hot = HotCertificate(_given(settings.tls)) if managed is None else managed.hot
    view.start()
    events.start()
    app = webhook_app(
        view.state,
        _in_turn(keys.refresh, view.refresh, hot.refresh if managed is None else managed.refresh),
        every,
        clock,
        gates=Gates(),
        denied=lambda review, denial: events.tell(notice_of(review, denial)),
        unready=lambda: view.unready() or (None if managed is None else managed.unready()),
        meter=meter,
    )
    return Service(app, hot, webhook_figures(meter, ViewCollector(view.measures, view.state, clock), lost_lines))


def build_broker(settings: BrokerSettings, clock: Clock, lost_lines: Callable[[], int] = lambda: 0) -> Service:
    """The broker that `settings` describe. Raises the refusals of its parts; the sealed store must open.

    `lost_lines` as for `build_webhook`.
    """
    meter = BrokerMeter()
    store = SealedStore(settings.secrets.store, settings.secrets.key)
    store.names()
    keys, every = result_keys(settings.results, may_come_later=True), settings.reload_seconds
    hot = HotCertificate(settings.tls)
    state = DurableState(settings.state_file)
    verifier = ResultVerifier(keys, settings.results.issuer, settings.results.audience, DurableSequences(state))
    if settings.kubernetes is not None:
        client = cluster_client(settings.kubernetes)
        view, events = (
            LiveClusterView(client, verifier, report_failure),
            EventWriter(client, "nodewarden-broker", clock),
        )
        leases = ClusterLeases(client)
        Revocations(leases, client, store, view.state, clock, meter).start()
        view.start()
        leases.start()
        events.start()
        app = broker_app(
            ReleaseService(view, UsedRequests(state), leases, store),
            _in_turn(keys.refresh, view.refresh, hot.refresh),
            every,
            clock,
            denied=lambda identity, failures: events.tell(release_notice(identity, failures)),
            unready=lambda: view.unready() or leases.unready(),
            meter=meter,
        )
        return Service(app, hot, Exposition(BrokerCollector(meter, leases.count, view.measures, clock, lost_lines)))
    if settings.tokens is None:
        raise AssertionError("settings name an issuer of tokens beside manifests")
    issuer_keys = token_keys(settings.tokens)
    tokens = PodTokenVerifier(issuer_keys, settings.tokens.issuer)
    manifests = ManifestClusterView(tuple(settings.manifests or ()), verifier, tokens, report_failure)
    local = LocalLeases(state)
    service = ReleaseService(manifests, UsedRequests(state), local, store)
    reload = _in_turn(keys.refresh, issuer_keys.refresh, manifests.reload_if_changed, hot.refresh)
    app = broker_app(service, reload, every, clock, unready=manifests.unready, meter=meter)
    return Service(app, hot, Exposition(BrokerCollector(meter, local.count, manifests.measures, clock, lost_lines)))


def _given(tls: Tls | None) -> Tls:
    if tls is None:
        raise AssertionError("settings name one certificate")
    return tls
