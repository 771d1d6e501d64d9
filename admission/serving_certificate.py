"""Keeps the webhook's serving certificate: as a Secret that all replicas share, in the open server, and known to the
API server by the `caBundle` of our webhook configurations.

Files of an operator or of cert-manager are served the same way: re-read when they change, without a dropped connection.
"""

from __future__ import annotations

import base64
import ssl
import tempfile
import threading
from pathlib import Path
from typing import Any, Literal

import structlog

from admission.certificates import Bundle, read_bundle, renewed_bundle
from admission.clock import Clock
from admission.kube import KubeClient, KubeConflict, KubeNotFound
from admission.settings import ManagedTls, Tls
from admission.trust_objects import SYSTEM_NAMESPACE
from edges.private_files import require_private, unreadable
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure, Refusal

LOOK_SECONDS = 60
_SECRETS = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/secrets"
_CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1"
ConfigurationKind = Literal["validatingwebhookconfigurations", "mutatingwebhookconfigurations"]
KINDS: tuple[ConfigurationKind, ...] = ("validatingwebhookconfigurations", "mutatingwebhookconfigurations")


class HotCertificate:
    """The certificate in `tls`, loaded into the contexts that were attached, and again whenever the files change."""

    def __init__(self, tls: Tls) -> None:
        self.tls = tls
        self._contexts: list[ssl.SSLContext] = []
        self._loaded = self._fingerprint()

    def attach(self, context: ssl.SSLContext) -> None:
        """`context`, which has the certificate of now, gets the later ones too. Connections that are open stay."""
        self._contexts.append(context)

    def refresh(self) -> None:
        """Loads the files again if they changed; says so when they cannot be loaded, and keeps the last good ones."""
        try:
            found = self._fingerprint()
            if found == self._loaded:
                return
            require_private(self.tls.key)
            # A pair that does not belong together must not reach the live context.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.tls.certificate, self.tls.key)
            for context in self._contexts:
                context.load_cert_chain(self.tls.certificate, self.tls.key)
            self._loaded = found
            structlog.get_logger().info("certificate_reloaded")
        except (OSError, Refusal) as error:
            structlog.get_logger().error("certificate_not_reloaded", error=type(error).__name__)

    def _fingerprint(self) -> tuple[tuple[int, int, int], ...]:
        facts = []
        for path in (self.tls.certificate, self.tls.key):
            try:
                facts.append(path.stat())
            except (OSError, ValueError) as error:
                raise unreadable(path, error) from error
        return tuple((fact.st_mtime_ns, fact.st_size, fact.st_ino) for fact in facts)


class ManagedCertificate:
    """A certificate that we make ourselves; `tls` names private files with the one in force."""

    def __init__(self, client: KubeClient, settings: ManagedTls, clock: Clock) -> None:
        """Reads or makes the Secret once. Raises as `KubeClient.request`, `setting-invalid`."""
        self._client, self._settings, self._clock = client, settings, clock
        self._bundle = self._agreed_bundle()
        self._folder = tempfile.TemporaryDirectory(prefix="nodewarden-tls-")
        folder = Path(self._folder.name)
        self.tls = Tls(certificate=folder / "tls.crt", key=folder / "tls.key", client_ca=settings.client_ca)
        self._lock = threading.Lock()
        self._looked_at: int | None = None
        self._missing: Failure | None = Failure(ReasonCode.VIEW_STALE, "caBundle", "not injected yet")
        self._write(self._bundle)
        self.hot = HotCertificate(self.tls)

    def close(self) -> None:
        """Removes the private files; the end of the process does so too."""
        self._folder.cleanup()

    def unready(self) -> Failure | None:
        """Why the API server could not yet trust us; None once every configuration has our CAs."""
        return self._missing

    def refresh(self) -> None:
        """Looks once a minute, and at once until all is well, for what is due. Raises as `KubeClient.request`."""
        with self._lock:
            now = self._clock()
            due = self._looked_at is None or now - self._looked_at >= LOOK_SECONDS
            if not due and self._missing is None:
                return
            bundle = self._agreed_bundle()
            # First the CAs, then what they signed: nobody meets a certificate whose CA he does not know.
            self._inject(bundle)
            if bundle != self._bundle:
                self._write(bundle)
                self._bundle = bundle
            self.hot.refresh()
            self._looked_at = now

    def _agreed_bundle(self) -> Bundle:
        """The bundle in the Secret, renewed in the Secret first where that is due. Replicas race; one wins."""
        for _ in range(5):
            now = self._clock()
            try:
                secret: dict[str, Any] = self._client.request("GET", f"{_SECRETS}/{self._settings.secret}")
            except KubeNotFound:
                secret = {}
            data = secret.get("data") or {}
            files = {name: base64.b64decode(text) for name, text in data.items()}
            old = read_bundle(files) if files else None
            bundle = renewed_bundle(old, tuple(self._settings.names), now)
            if bundle is old:
                return bundle
            content = {name: base64.b64encode(pem).decode("ascii") for name, pem in bundle.as_files().items()}
            body = {
                "apiVersion": "v1",
                "kind": "Secret",
                "type": "Opaque",
                "metadata": {**secret.get("metadata", {}), "name": self._settings.secret},
                "data": content,
            }
            try:
                if secret:
                    self._client.request("PUT", f"{_SECRETS}/{self._settings.secret}", body)
                else:
                    self._client.request("POST", _SECRETS, body)
            except KubeConflict:
                continue
            return bundle
        raise KubeConflict(409, "Conflict", self._settings.secret, "another replica keeps writing the Secret")

    def _inject(self, bundle: Bundle) -> None:
        wanted = base64.b64encode(bundle.ca_bundle).decode("ascii")
        missing: Failure | None = None
        for kind in KINDS:
            path = f"{_CONFIGURATIONS}/{kind}/{self._settings.configuration}"
            try:
                found = self._client.request("GET", path)
                hooks = found.get("webhooks") or []
                if any(hook["clientConfig"].get("caBundle") != wanted for hook in hooks):
                    for hook in hooks:
                        hook["clientConfig"]["caBundle"] = wanted
                    self._client.request("PUT", path, found)
            except (KubeNotFound, KubeConflict) as refusal:
                missing = refusal.failure
        self._missing = missing

    def _write(self, bundle: Bundle) -> None:
        files = bundle.as_files()
        for path, name in ((self.tls.certificate, "tls.crt"), (self.tls.key, "tls.key")):
            fresh = path.with_suffix(".new")
            fresh.touch(mode=0o600)
            fresh.write_bytes(files[name])
            fresh.replace(path)
