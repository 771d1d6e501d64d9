"""The chart's cert-manager mode with cert-manager's own controllers: issued, injected, asked for, and renewed.

The webhook is the rendered chart's: its settings, and the side container that hands it the Secret's files, run as
processes with the paths of this machine. The API server finds it by the Service's name, as in a cluster.
"""

from __future__ import annotations

import base64
import json
import socket
import ssl
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509

from admission.serving_certificate import KINDS
from tests.admission.world import AUDIENCE, ISSUER
from tests.deploy.rendered import render
from tests.e2e.authority import Authority
from tests.e2e.cert_manager import ISSUES_SECONDS, SPACE, Issued, start_cert_manager
from tests.e2e.client import Client
from tests.e2e.control_plane import ControlPlane, Options, control_plane
from tests.e2e.install import NAMESPACE, ROOT, WEBHOOKS, apply, install, install_manifests
from tests.e2e.machines import start_nodewarden
from tests.e2e.pods import a_pod, pods_path
from tests.e2e.programs import Program, Programs, free_port, wait_until
from tests.e2e.relay import Relay
from tests.e2e.watched import CONFIGURATIONS, GROUP, POLICY, Watched, watched_namespace

SERVICE = "nodewarden-webhook"
NAME = f"{SERVICE}.{NAMESPACE}.svc"
MOUNTED, OWN = "/run/nodewarden/secret", "/run/nodewarden/tls"
INJECTOR = ("cert-manager", "cert-manager-cainjector")


@dataclass
class SecretVolume:
    """A Secret as a kubelet mounts it: all files change at once, by a link, and later than the Secret."""

    issued: Issued
    folder: Path

    def sync(self) -> None:
        """The files are the Secret's of now."""
        files = self.issued.files()
        fresh = Path(tempfile.mkdtemp(prefix="..", dir=self.folder))
        for name, content in files.items():
            (fresh / name).write_bytes(content)
        link = self.folder / "..data_tmp"
        link.symlink_to(fresh.name)
        link.replace(self.folder / "..data")
        for name in files:
            if not (self.folder / name).is_symlink():
                (self.folder / name).symlink_to(f"..data/{name}")


@dataclass
class Pod:
    """The webhook's pod, as far as it runs here, and what the API server knows of it."""

    admin: Client
    folder: Path
    programs: Programs
    rendered: Path
    ca: Issued
    serving: Issued
    volume: SecretVolume
    kubeconfig: Path
    port: int
    link: Relay

    def start(self, jwks: dict[str, Any]) -> Program:
        """Side container and webhook run, in this order, with the rendered settings."""
        found = {(d["kind"], d["metadata"]["name"]): d for d in install_manifests(self.rendered)}
        spec = found["Deployment", SERVICE]["spec"]["template"]["spec"]
        (copier,) = spec["initContainers"]
        assert "sleep 60;" in copier["command"][-1]
        command = [self._here(part).replace("sleep 60;", "sleep 1;") for part in copier["command"]]
        self.programs.start(Path(command[0]), *command[1:], name="own-files")
        probe = [self._here(part) for part in copier["startupProbe"]["exec"]["command"]]
        wait_until("the files are there", lambda: subprocess.run(probe, check=False).returncode == 0, 10)
        config = self._settings(yaml.safe_load(found["ConfigMap", SERVICE]["data"]["webhook.yaml"]), jwks)
        return start_nodewarden(self.programs, "webhook", "admission", "webhook", "--config", str(config))

    def _settings(self, settings: dict[str, Any], jwks: dict[str, Any]) -> Path:
        """The rendered settings, less the addresses that only a pod has."""
        keys = self.folder / "jwks.json"
        keys.write_text(json.dumps(jwks))
        settings |= {
            "listen": {"port": self.port},
            "kubernetes": {"kubeconfig": str(self.kubeconfig)},
            "results": {"issuer": ISSUER, "audience": AUDIENCE, "jwks_file": str(keys)},
            "tls": {name: self._here(path) for name, path in settings["tls"].items()},
            "state_file": str(self.folder / "webhook.db"),
        }
        config = self.folder / "webhook.yaml"
        config.write_text(yaml.safe_dump(settings))
        return config

    def _here(self, text: str) -> str:
        own = self.folder / "tls"
        own.mkdir(exist_ok=True)
        return text.replace(MOUNTED, str(self.volume.folder)).replace(OWN, str(own))

    def bundle(self) -> bytes:
        """The CAs (PEM) that every webhook of both configurations has, once all have the same."""
        wait_until("all webhooks have the same CAs", lambda: len(self._bundles()) == 1, 10)
        return base64.b64decode(self._bundles().pop())

    def _bundles(self) -> set[str]:
        found = [self.admin.must_get(f"{CONFIGURATIONS}/{kind}/nodewarden")["webhooks"] for kind in KINDS]
        return {webhook["clientConfig"].get("caBundle", "") for webhooks in found for webhook in webhooks}

    def knows(self, ca: bytes) -> bool:
        """Whether the API server trusts `ca` (PEM), among others or alone."""
        return x509.load_pem_x509_certificate(ca) in x509.load_pem_x509_certificates(self.bundle())

    def served(self, bundle: bytes) -> x509.Certificate:
        """What the webhook presents to who trusts `bundle` alone and asks for the Service's name."""
        context = ssl.create_default_context(cadata=bundle.decode())
        with (
            socket.create_connection(("127.0.0.1", self.port), timeout=5) as raw,
            context.wrap_socket(raw, server_hostname=NAME) as secured,
        ):
            presented = secured.getpeercert(binary_form=True)
        assert presented is not None
        return x509.load_der_x509_certificate(presented)

    def point_service_at(self, port: int) -> None:
        """Both configurations call the Service at `port`: all of an address that a Service of another name can have."""
        for manifest in install_manifests(self.rendered):
            if manifest["kind"] in WEBHOOKS:
                for webhook in manifest["webhooks"]:
                    webhook["clientConfig"]["service"]["port"] = port
                apply(self.admin, manifest)


@pytest.fixture(scope="module")
def plane(folder: Path) -> Iterator[ControlPlane]:
    """A control plane of this module's own: with cert-manager, the chart's objects differ."""
    with control_plane(folder / "cm", Options(nodes=1)) as running:
        programs = Programs(folder / "cm")
        try:
            start_cert_manager(running, programs)
            rendered = running.folder / "rendered.yaml"
            rendered.write_text(render("--set", "certManager.enabled=true", required=True))
            install(running, rendered)
            service = {"type": "ExternalName", "externalName": "localhost"}
            named = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": SERVICE, "namespace": NAMESPACE}}
            apply(running.admin, {**named, "spec": service})
            running.admin.must_create(f"{GROUP}/nodetrustpolicies", POLICY)
            yield running
            programs.require_running()
        finally:
            programs.stop()


@pytest.fixture
def watched(plane: ControlPlane, namespace: str) -> Iterator[Watched]:
    with watched_namespace(plane, namespace) as made:
        yield made


@pytest.fixture
def pod(plane: ControlPlane, watched: Watched, tmp_path: Path) -> Iterator[Pod]:
    """The webhook serves what cert-manager issued, and the API server asks it."""
    admin = watched.admin
    ca = Issued(admin, "nodewarden-webhook-ca", "nodewarden-webhook-ca")
    serving = Issued(admin, SERVICE, "nodewarden-webhook-tls")
    wait_until("the Certificates are Ready", lambda: ca.ready() and serving.ready(), ISSUES_SECONDS)
    mounted = tmp_path / "secret"
    mounted.mkdir()
    volume, programs, port = SecretVolume(serving, mounted), Programs(tmp_path), free_port()
    volume.sync()
    account = plane.service_account_kubeconfig(NAMESPACE, SERVICE)
    link = Relay(f"https://127.0.0.1:{port}")
    made = Pod(admin, tmp_path, programs, plane.folder / "rendered.yaml", ca, serving, volume, account, port, link)
    try:
        made.start(watched.verifier.jwks())
        wait_until("the webhook listens", lambda: _listens(port), 60, programs.require_running)
        made.point_service_at(int(link.url.rpartition(":")[2]))
        wait_until("the API server asks the webhook", watched.reviewed, ISSUES_SECONDS, programs.require_running)
        yield made
        programs.require_running()
    finally:
        for kind in KINDS:
            admin.delete(f"{CONFIGURATIONS}/{kind}/nodewarden")
        programs.stop()
        link.close()


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def _reconnected(watched: Watched, pod: Pod) -> None:
    """The API server shook hands anew, and trusts what it met."""
    pod.link.drop()
    wait_until("the API server asks again", watched.reviewed, 5)


def test_cert_manager_issues_the_certificate_and_fills_in_its_ca_and_the_api_server_asks(
    watched: Watched, pod: Pod
) -> None:
    authority = pod.ca.files()["tls.crt"]
    assert pod.knows(authority)
    assert pod.served(authority) == pod.serving.certificate()
    assert watched.reviewed()


def test_a_renewed_certificate_is_taken_up_without_a_restart_and_no_review_is_lost(watched: Watched, pod: Pod) -> None:
    before, bundle = pod.serving.certificate(), pod.bundle()
    with watched.asked_all_the_while():
        pod.serving.lose()
    # The kubelet is a minute behind: the webhook serves the old certificate to an API server that knows the new one.
    after = pod.serving.certificate()
    assert after.public_key() != before.public_key()
    assert pod.bundle() == bundle
    assert pod.served(pod.bundle()) == before
    _reconnected(watched, pod)
    with watched.asked_all_the_while():
        pod.volume.sync()
        wait_until("the new certificate is served", lambda: pod.served(bundle) == after, 20)
    _reconnected(watched, pod)


def test_reviews_go_on_when_the_ca_is_renewed_and_what_it_signs_next(watched: Watched, pod: Pod) -> None:
    before, old = pod.serving.certificate(), pod.ca.certificate()
    with watched.asked_all_the_while():
        pod.ca.renew()
    new = pod.ca.files()["tls.crt"]
    assert pod.ca.certificate().public_key() == old.public_key()
    # Also for an injector that replaces the bundle, as those before cert-manager 1.19 do.
    assert pod.served(new) == before
    _reconnected(watched, pod)
    with watched.asked_all_the_while():
        pod.serving.renew()
        wait_until("the new CA is known", lambda: pod.knows(new), 20)
    assert pod.served(pod.bundle()) == before
    _reconnected(watched, pod)
    with watched.asked_all_the_while():
        pod.volume.sync()
        wait_until("the new one is served", lambda: pod.served(new) == pod.serving.certificate(), 20)
    _reconnected(watched, pod)


def test_a_webhook_with_a_certificate_that_cert_manager_did_not_issue_is_refused(watched: Watched, pod: Pod) -> None:
    stranger = Authority(pod.folder, "stranger").server("stranger", NAME)
    port = free_port()
    settings = yaml.safe_load((pod.folder / "webhook.yaml").read_text()) | {
        "listen": {"port": port},
        "tls": {"certificate": str(stranger.certificate), "key": str(stranger.key)},
        "state_file": str(pod.folder / "stranger.db"),
    }
    config = pod.folder / "stranger.yaml"
    config.write_text(yaml.safe_dump(settings))
    start_nodewarden(pod.programs, "stranger", "admission", "webhook", "--config", str(config))
    wait_until("the stranger listens", lambda: _listens(port), 60, pod.programs.require_running)
    pod.point_service_at(port)
    words = "x509: certificate signed by unknown authority"

    def refused() -> bool:
        answer = watched.admin.create(pods_path(watched.namespace), a_pod("p"), dry_run=True)
        return answer.fails_calling("pods.nodewarden.dev") and words in answer.message

    wait_until("the API server refuses", refused, 10)
    # cert-manager itself may start, which has to mend this.
    assert watched.admin.create(pods_path(SPACE), a_pod("p"), dry_run=True).accepted
    assert f"| `{words}` |" in (ROOT / "docs/installing.md").read_text()


def test_only_cainjector_changes_the_bundle_and_nobody_whose_ca_it_takes(plane: ControlPlane, pod: Pod) -> None:
    path = f"{CONFIGURATIONS}/validatingwebhookconfigurations/nodewarden"
    found = pod.admin.must_get(path)
    # The webhook has nothing to write there in this mode.
    with plane.as_service_account(NAMESPACE, SERVICE) as webhook:
        assert webhook.replace(path, found).status == 403
    with plane.as_service_account(*INJECTOR) as injector:
        found["webhooks"][0]["failurePolicy"] = "Ignore"
        assert injector.replace(path, found).denied_by_policy("nodewarden-webhooks")
        found = pod.admin.must_get(path)
        found["webhooks"][0]["clientConfig"]["caBundle"] = base64.b64encode(pod.ca.files()["ca.crt"]).decode()
        assert injector.replace(path, found).accepted
    # Attack: a CA of one's own, brought in by cert-manager.
    stranger = {"cert-manager.io/inject-ca-from": f"{NAMESPACE}/stranger"}
    api_server = {"cert-manager.io/inject-ca-from": None, "cert-manager.io/inject-apiserver-ca": "true"}
    with plane.as_user("platform", "system:masters") as platform:
        for annotations in (stranger, api_server):
            answer = platform.patch(path, {"metadata": {"annotations": annotations}})
            assert answer.denied_by_policy("nodewarden-webhooks")
        assert platform.patch(path, {"metadata": {"annotations": {"example.org/seen": "yes"}}}).accepted
