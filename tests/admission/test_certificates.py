"""Certificates of our own: what overlaps, what is renewed, and that a server takes up new ones and drops nobody."""

from __future__ import annotations

import base64
import datetime as dt
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store

from admission.certificates import (
    CA_SECONDS,
    DAY_SECONDS,
    PUBLISH_SECONDS,
    RENEW_SECONDS,
    SERVING_SECONDS,
    Bundle,
    read_bundle,
    renewed_bundle,
)
from admission.server import server_of
from admission.serving_certificate import HotCertificate, ManagedCertificate
from admission.settings import Listen, ManagedTls, Tls
from admission.webhook import webhook_app
from tests.admission.scripted_api import Asked, Said, a_status, scripted_api
from tests.admission.served import make_certificate, serving, trusting
from tests.admission.world import NOW, a_cluster
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence

NAMES = ("nodewarden-webhook.nodewarden-system.svc",)


def trusts(authorities: bytes, bundle: Bundle, at: int) -> bool:
    """Whether someone who knows `authorities` accepts the serving certificate of `bundle` at that time."""
    store = Store(x509.load_pem_x509_certificates(authorities))
    builder = PolicyBuilder().store(store).time(x509_time(at))
    try:
        builder.build_server_verifier(x509.DNSName(NAMES[0])).verify(bundle.serving.certificate, [])
    except x509.verification.VerificationError:
        return False
    return True


def x509_time(at: int) -> Any:
    return dt.datetime.fromtimestamp(at, dt.UTC).replace(tzinfo=None)


def test_a_first_bundle_is_one_ca_and_a_certificate_that_it_signed() -> None:
    bundle = renewed_bundle(None, NAMES, NOW)
    assert len(bundle.authorities) == 1
    assert trusts(bundle.ca_bundle, bundle, NOW)
    assert renewed_bundle(bundle, NAMES, NOW + DAY_SECONDS) is bundle


def test_over_three_years_whoever_looked_yesterday_trusts_what_is_served_today() -> None:
    bundle = renewed_bundle(None, NAMES, NOW)
    seen = {1}
    for day in range(1, 3 * 365):
        now = NOW + day * DAY_SECONDS
        known = bundle.ca_bundle
        bundle = renewed_bundle(bundle, NAMES, now)
        seen.add(len(bundle.authorities))
        assert trusts(known, bundle, now), day
        assert bundle.serving.not_after - now > RENEW_SECONDS
    assert seen == {1, 2}


def test_a_new_ca_signs_nothing_in_its_first_day() -> None:
    first = renewed_bundle(None, NAMES, NOW)
    later = NOW + CA_SECONDS // 2 + DAY_SECONDS
    second = renewed_bundle(first, NAMES, later)
    assert len(second.authorities) == 2
    second.serving.certificate.verify_directly_issued_by(second.authorities[0].certificate)
    third = renewed_bundle(second, NAMES, later + PUBLISH_SECONDS)
    third.serving.certificate.verify_directly_issued_by(second.authorities[1].certificate)


def test_a_certificate_is_made_anew_for_other_names_and_before_it_ends() -> None:
    bundle = renewed_bundle(None, NAMES, NOW)
    other = renewed_bundle(bundle, ("other.svc",), NOW)
    assert other.authorities == bundle.authorities
    assert other.serving != bundle.serving
    due = NOW + SERVING_SECONDS - RENEW_SECONDS
    assert renewed_bundle(bundle, NAMES, due).serving != bundle.serving


def test_a_bundle_is_read_as_it_is_kept() -> None:
    bundle = renewed_bundle(renewed_bundle(None, NAMES, NOW), NAMES, NOW + CA_SECONDS // 2 + DAY_SECONDS)
    read = read_bundle(bundle.as_files())
    assert read == bundle
    assert renewed_bundle(read, NAMES, NOW + CA_SECONDS // 2 + DAY_SECONDS) is read


@pytest.mark.parametrize("name", ["ca.crt", "ca.key", "tls.crt", "tls.key"])
@pytest.mark.parametrize("content", [None, b"", b"no PEM", "other"])
def test_files_that_do_not_belong_together_are_refused(name: str, content: bytes | str | None) -> None:
    files = renewed_bundle(None, NAMES, NOW).as_files()
    if content is None:
        del files[name]
    elif isinstance(content, bytes):
        files[name] = content
    else:
        files[name] = renewed_bundle(None, NAMES, NOW).as_files()[name]
    with pytest.raises(MalformedEvidence) as caught:
        read_bundle(files)
    assert caught.value.code is ReasonCode.SETTING_INVALID
    assert "PRIVATE" not in str(caught.value)


# --- a live server ---


def served_serial(port: int) -> int:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", port), 5) as raw, context.wrap_socket(raw) as connection:
        der = connection.getpeercert(binary_form=True)
    assert der is not None
    return x509.load_der_x509_certificate(der).serial_number


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def answered(connection: ssl.SSLSocket) -> bool:
    connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: w\r\n\r\n")
    answer = b""
    while not answer.endswith(b"}"):
        part = connection.recv(65536)
        if not part:
            return False
        answer += part
    return answer.startswith(b"HTTP/1.1 200")


def test_a_changed_certificate_is_taken_up_and_open_connections_stay(tmp_path: Path) -> None:
    old, new = make_certificate(tmp_path / "served"), make_certificate(tmp_path / "new")
    hot = HotCertificate(Tls(certificate=old.certificate, key=old.key))
    trust = trusting(old)
    app = webhook_app(a_cluster, lambda: None, 60, lambda: NOW)
    with (
        serving(server_of(app, Listen(port=0), hot)) as address,
        socket.create_connection(("127.0.0.1", port_of(address)), 5) as raw,
        trust.wrap_socket(raw, server_hostname="127.0.0.1") as connection,
    ):
        port = port_of(address)
        assert answered(connection)
        before = served_serial(port)
        hot.refresh()
        assert served_serial(port) == before
        # Half a change, as a writer without renames leaves it: the pair that fits goes on being served.
        old.certificate.write_bytes(new.certificate.read_bytes())
        hot.refresh()
        assert served_serial(port) == before
        old.key.write_bytes(new.key.read_bytes())
        hot.refresh()
        assert served_serial(port) != before
        assert answered(connection)
        # A key that others may read is not taken up.
        third = make_certificate(tmp_path / "third")
        now_served = served_serial(port)
        old.certificate.write_bytes(third.certificate.read_bytes())
        old.key.write_bytes(third.key.read_bytes())
        old.key.chmod(0o644)
        hot.refresh()
        assert served_serial(port) == now_served


class Secrets:
    """A Secret and two webhook configurations, with the API server's rule for conflicting writes."""

    def __init__(self) -> None:
        self.secret: dict[str, Any] | None = None
        self.version = 0
        self.hooks: dict[str, dict[str, Any]] = {}
        self.conflicts = 0

    def register(self) -> None:
        for kind in ("validating", "mutating"):
            hooks = [{"name": "a", "clientConfig": {"url": "https://x"}}, {"name": "b", "clientConfig": {}}]
            self.hooks[f"{kind}webhookconfigurations/nodewarden"] = {"webhooks": hooks}

    def __call__(self, asked: Asked) -> Said:
        if "/secrets" in asked.path:
            return self._secret(asked)
        name = "/".join(asked.path.split("/")[-2:])
        if name not in self.hooks:
            return Said(a_status(404, "NotFound"), 404)
        if asked.method == "PUT":
            self.hooks[name] = asked.body
        return Said(self.hooks[name])

    def _secret(self, asked: Asked) -> Said:
        if asked.method == "GET":
            return Said(self.secret) if self.secret else Said(a_status(404, "NotFound"), 404)
        if self.conflicts > 0:
            self.conflicts -= 1
            return Said(a_status(409, "Conflict"), 409)
        self.version += 1
        metadata = {**asked.body["metadata"], "resourceVersion": str(self.version)}
        self.secret = {**asked.body, "metadata": metadata}
        return Said(self.secret)

    def bundles(self) -> set[str]:
        return {hook["clientConfig"].get("caBundle", "") for found in self.hooks.values() for hook in found["webhooks"]}


def test_the_webhook_is_ready_only_once_every_configuration_knows_its_cas(tmp_path: Path) -> None:
    api, now = Secrets(), [NOW]
    with scripted_api(tmp_path, api) as (client, asked):
        managed = ManagedCertificate(client, ManagedTls(names=list(NAMES)), lambda: now[0])
        failure = managed.unready()
        assert failure is not None
        managed.refresh()
        assert managed.unready() is not None
        api.register()
        managed.refresh()
        assert managed.unready() is None
        assert api.secret is not None
        assert api.bundles() == {api.secret["data"]["ca.crt"]}
        # Nothing to do: nothing asked before a minute is over.
        before = len(asked)
        managed.refresh()
        assert len(asked) == before
        # Someone put the configurations back: within a minute they have our CAs again.
        api.register()
        now[0] += 60
        managed.refresh()
        assert api.bundles() == {api.secret["data"]["ca.crt"]}
        managed.close()


def test_replicas_serve_the_one_certificate_of_the_secret_and_a_lost_race_is_run_again(tmp_path: Path) -> None:
    api = Secrets()
    api.register()
    with scripted_api(tmp_path, api) as (client, _):
        first = ManagedCertificate(client, ManagedTls(names=list(NAMES)), lambda: NOW)
        second = ManagedCertificate(client, ManagedTls(names=list(NAMES)), lambda: NOW)
        assert first.tls.certificate.read_bytes() == second.tls.certificate.read_bytes()
        assert first.tls.key.stat().st_mode & 0o777 == 0o600
        api.secret, api.conflicts = None, 2
        third = ManagedCertificate(client, ManagedTls(names=list(NAMES)), lambda: NOW)
        assert api.secret is not None
        kept = base64.b64decode(api.secret["data"]["tls.crt"])
        assert third.tls.certificate.read_bytes() == kept
        for managed in (first, second, third):
            managed.close()


def test_a_secret_that_someone_broke_is_not_served(tmp_path: Path) -> None:
    api = Secrets()
    with scripted_api(tmp_path, api) as (client, _):
        ManagedCertificate(client, ManagedTls(names=list(NAMES)), lambda: NOW).close()
        assert api.secret is not None
        api.secret["data"]["tls.key"] = base64.b64encode(b"nothing").decode()
        with pytest.raises(MalformedEvidence) as caught:
            ManagedCertificate(client, ManagedTls(names=list(NAMES)), lambda: NOW)
        assert caught.value.code is ReasonCode.SETTING_INVALID
