"""Whom a webhook with a client CA serves: the API server, by the files of docs/installing.md, and nobody else."""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml

from tests.admission.test_webhook import a_review
from tests.admission.world import AUDIENCE, ISSUER
from tests.e2e.api_server_client import ApiServerClient
from tests.e2e.authority import Certificate
from tests.e2e.control_plane import ControlPlane
from tests.e2e.install import NAMESPACE, ROOT
from tests.e2e.machines import start_nodewarden
from tests.e2e.pods import a_pod, pods_path
from tests.e2e.programs import Programs, wait_until
from tests.e2e.relay import Relay
from tests.e2e.watched import CONFIGURATIONS, Watched, registered

LOOPBACK = ("127.0.0.1", "localhost")


@pytest.fixture(scope="module")
def plane(live_plane: ControlPlane) -> ControlPlane:
    return live_plane


@pytest.fixture
def address(watched: Watched, api_server_client: ApiServerClient, tmp_path: Path) -> Iterator[str]:
    """A webhook with a client CA and its own certificate, as its ServiceAccount; the API server asks it."""
    jwks = tmp_path / "jwks.json"
    jwks.write_text(json.dumps(watched.verifier.jwks()))
    account = watched.plane.service_account_kubeconfig(NAMESPACE, "nodewarden-webhook")
    settings = {
        "listen": {"port": api_server_client.port},
        "kubernetes": {"kubeconfig": str(account)},
        "results": {"issuer": ISSUER, "audience": AUDIENCE, "jwks_file": str(jwks)},
        "managed_tls": {"names": ["localhost"], "client_ca": str(api_server_client.authority.ca)},
        "state_file": str(tmp_path / "webhook.db"),
    }
    config = tmp_path / "webhook.yaml"
    config.write_text(yaml.safe_dump(settings))
    programs = Programs(tmp_path)
    start_nodewarden(programs, "webhook", "admission", "webhook", "--config", str(config))
    try:
        url = f"https://localhost:{api_server_client.port}"
        with registered(watched.admin, url):
            wait_until("the API server asks the webhook", watched.reviewed, 60, programs.require_running)
            yield url
    finally:
        programs.stop()


def ask(watched: Watched, address: str, client: Certificate | None) -> httpx.Response:
    """A review sent to the webhook directly, by someone who trusts its certificate."""
    found = watched.admin.must_get(f"{CONFIGURATIONS}/validatingwebhookconfigurations/nodewarden")
    bundle = base64.b64decode(found["webhooks"][0]["clientConfig"]["caBundle"]).decode()
    context = ssl.create_default_context(cadata=bundle)
    if client is not None:
        context.load_cert_chain(client.certificate, client.key)
    with httpx.Client(verify=context, trust_env=False) as http:
        review = a_review(a_pod("bad", serviceAccountName="llm"), namespace=watched.namespace)
        return http.post(f"{address}/validate", content=json.dumps(review).encode())


def test_the_api_server_is_served_and_who_has_no_certificate_of_the_client_ca_is_not(
    watched: Watched, address: str, api_server_client: ApiServerClient
) -> None:
    with pytest.raises(httpx.TransportError):
        ask(watched, address, None)
    # Attack: any kubelet's certificate. The cluster's own CA signs too much to stand for its API server.
    kubelet = watched.plane.authority.client("a-kubelet", "system:node:fake-0", "system:nodes")
    with pytest.raises(httpx.TransportError):
        ask(watched, address, kubelet)
    assert ask(watched, address, api_server_client.certificate).json()["response"]["allowed"] is False
    assert watched.reviewed()


def test_an_api_server_that_presents_no_certificate_denies_in_the_words_that_the_guide_explains(
    watched: Watched, address: str
) -> None:
    # At another address it has none to present: as without its AdmissionConfiguration.
    link = Relay(address)
    path = f"{CONFIGURATIONS}/validatingwebhookconfigurations/nodewarden"
    try:
        found = watched.admin.must_get(path)
        for hook in found["webhooks"]:
            hook["clientConfig"]["url"] = hook["clientConfig"]["url"].replace(address, link.url.replace(*LOOPBACK))
        assert watched.admin.replace(path, found).accepted
        path = pods_path(watched.namespace)

        def denied() -> bool:
            answer = watched.admin.create(path, a_pod("p"), dry_run=True)
            return answer.fails_calling("pods.nodewarden.dev") and answer.message.endswith(": EOF")

        wait_until("the API server says so", denied, 10)
        assert "| `EOF` |" in (ROOT / "docs/installing.md").read_text()
    finally:
        link.close()
