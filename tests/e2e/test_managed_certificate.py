"""The webhook's own certificate on a real API server, under the webhook's own rights: made, renewed, and asked for.

The certificates' times are real ones for the API server. So the past is played: a CA was made half a year ago, and the
test lives through what follows until today. Reviews go through the API server all the while.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from cryptography import x509

from admission.certificates import DAY_SECONDS, Bundle, read_bundle
from admission.clock import system_clock
from admission.kube import KubeDenied
from admission.server import server_of
from admission.serving_certificate import KINDS, ManagedCertificate
from admission.settings import Listen, ManagedTls
from admission.trust_objects import SYSTEM_NAMESPACE
from admission.webhook import Gates, webhook_app
from tests.admission.served import serving
from tests.e2e.control_plane import ControlPlane
from tests.e2e.programs import wait_until
from tests.e2e.relay import Relay
from tests.e2e.watched import CONFIGURATIONS, Watched, registered
from verifier.wire.codes import ReasonCode

SECRET = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/secrets/nodewarden-webhook-tls"
SETTINGS = ManagedTls(names=["localhost"])


@pytest.fixture(scope="module")
def plane(live_plane: ControlPlane) -> ControlPlane:
    return live_plane


@dataclass
class Webhook:
    """A webhook that serves its own certificate, to an API server that asks it, and its idea of the time."""

    watched: Watched
    now: int
    link: Relay = field(init=False)
    """Between the API server and the webhook."""
    managed: ManagedCertificate = field(init=False)

    def at(self, now: int) -> Bundle:
        """What is in the Secret once the webhook has looked at `now`."""
        self.now = now
        self.managed.refresh()
        assert self.managed.unready() is None
        data = self.watched.admin.must_get(SECRET)["data"]
        return read_bundle({name: base64.b64decode(text) for name, text in data.items()})

    def known_authorities(self) -> set[bytes]:
        """The serials of the CAs that both configurations hold."""
        bundles = set()
        for kind in KINDS:
            for webhook in self.watched.admin.must_get(f"{CONFIGURATIONS}/{kind}/nodewarden")["webhooks"]:
                bundles.add(webhook["clientConfig"]["caBundle"])
        (bundle,) = bundles
        return _serials(x509.load_pem_x509_certificates(base64.b64decode(bundle)))

    def met_again(self) -> None:
        """The API server asks over a new handshake: a connection that is open sees no new certificate."""
        self.link.drop()
        wait_until("the API server comes again", self.watched.reviewed, 5)


def _serials(certificates: list[x509.Certificate]) -> set[bytes]:
    return {certificate.serial_number.to_bytes(20) for certificate in certificates}


def _authorities(bundle: Bundle, *numbers: int) -> set[bytes]:
    return _serials([bundle.authorities[number].certificate for number in numbers])


def _signed_by(bundle: Bundle, number: int) -> bool:
    return bundle.serving.certificate.issuer == bundle.authorities[number].certificate.subject


@contextmanager
def webhook_since(watched: Watched, now: int) -> Iterator[Webhook]:
    """A webhook whose first certificate was made at `now`, into the empty Secret of the installation."""
    watched.admin.must_patch(SECRET, {"data": None})
    made = Webhook(watched, now)
    made.managed = ManagedCertificate(watched.client, SETTINGS, lambda: made.now)
    try:
        app = webhook_app(watched.view.state, made.managed.refresh, 60, system_clock, gates=Gates())
        with serving(server_of(app, Listen(port=0), made.managed.hot)) as address:
            # Nothing to inject into yet: not ready.
            made.managed.refresh()
            assert made.managed.unready() is not None
            made.link = Relay(address)
            try:
                with registered(watched.admin, made.link.url.replace("127.0.0.1", "localhost")):
                    yield made
            finally:
                made.link.close()
    finally:
        made.managed.close()


def test_the_api_server_trusts_the_certificate_that_the_webhook_made(watched: Watched) -> None:
    with webhook_since(watched, system_clock()) as webhook:
        assert not watched.reviewed()
        bundle = webhook.at(system_clock())
        assert webhook.known_authorities() == _authorities(bundle, 0)
        wait_until("the webhook is asked", watched.reviewed, 20)
        # Another replica serves what the Secret says.
        other = ManagedCertificate(watched.client, SETTINGS, system_clock)
        assert other._bundle == bundle
        other.close()


def test_reviews_go_on_while_two_cas_overlap_and_when_the_second_one_signs(watched: Watched) -> None:
    today = system_clock()
    with webhook_since(watched, today - 185 * DAY_SECONDS) as webhook:
        first = webhook.at(today - 185 * DAY_SECONDS)
        overlap = webhook.at(today - 2 * DAY_SECONDS)
        assert _authorities(overlap, 0) == _authorities(first, 0)
        assert len(overlap.authorities) == 2
        assert webhook.known_authorities() == _authorities(overlap, 0, 1)
        # The new CA is known, and the old one still signs.
        assert _signed_by(overlap, 0)
        wait_until("the webhook is asked", watched.reviewed, 20)
        with watched.asked_all_the_while():
            later = webhook.at(today)
        webhook.met_again()
        assert later.authorities == overlap.authorities
        assert _signed_by(later, 1)


def test_reviews_go_on_when_the_first_ca_is_gone(watched: Watched) -> None:
    today = system_clock()
    with webhook_since(watched, today - 366 * DAY_SECONDS) as webhook:
        webhook.at(today - 182 * DAY_SECONDS)
        overlap = webhook.at(today - 2 * DAY_SECONDS)
        assert webhook.known_authorities() == _authorities(overlap, 0, 1)
        assert _signed_by(overlap, 1)
        # For the API server, whose clock is right, the first one has ended already.
        wait_until("the webhook is asked", watched.reviewed, 20)
        with watched.asked_all_the_while():
            later = webhook.at(today)
        webhook.met_again()
        assert _authorities(later, 0) == _authorities(overlap, 1)
        assert len(later.authorities) == 1
        assert webhook.known_authorities() == _authorities(later, 0)


def test_the_webhook_has_the_one_secret_of_the_installation_and_can_make_no_other(watched: Watched) -> None:
    with pytest.raises(KubeDenied) as caught:
        ManagedCertificate(watched.client, ManagedTls(secret="another", names=["localhost"]), system_clock)
    assert caught.value.code is ReasonCode.KUBERNETES_REFUSED
