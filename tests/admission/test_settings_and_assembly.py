"""Settings: closed and checked; and the assembled services, from files to HTTPS."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from fastapi import FastAPI
from fastapi.responses import PlainTextResponse, Response

from admission.assembly import CurrentKeys, build_broker, build_webhook, result_keys
from admission.key_sets import KeySet, fetch_key_set, load_key_set, parse_key_set
from admission.kinds import attestation_manifest
from admission.results import ALGORITHMS
from admission.sealed_store import SealedStore
from admission.settings import BrokerSettings, Results, WebhookSettings, load_settings
from tests.admission.served import Certificate, make_certificate, served, trusting
from tests.admission.test_webhook import BINDING, a_review
from tests.admission.world import (
    AUDIENCE,
    ISSUER,
    NODE,
    NODE_UID,
    NOW,
    TOKEN_ISSUER,
    EccAk,
    Signer,
    a_result,
    envelope,
    jwk_of,
    token_claims,
)
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence, Refusal, Unavailable
from verifier.wire.messages import text_of
from verifier.wire.result import Verdict

VECTORS = Path(__file__).parent.parent / "vectors/manifests"


class Site:
    """A folder with everything that webhook and broker need, and the keys behind it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.verifier, self.issuer, self.ak, self.binding = Signer(), Signer("sa-1"), EccAk(), Signer()
        self.certificate = make_certificate(folder)
        (folder / "manifests").mkdir()
        (folder / "manifests/cluster.yaml").write_text((VECTORS / "cluster.yaml").read_text())
        (folder / "verifier.jwks").write_text(json.dumps(self.verifier.jwks()))
        (folder / "issuer.jwks").write_text(json.dumps(self.issuer.jwks()))
        SealedStore.create(folder / "secrets", folder / "secrets.key").put("llm/key", b"content")
        self.attest()
        self.settings: dict[str, Any] = {
            "listen": {"port": 0},
            "tls": {"certificate": "tls.pem", "key": "tls.key"},
            "manifests": ["manifests"],
            "results": {"issuer": ISSUER, "audience": AUDIENCE, "jwks_file": "verifier.jwks"},
            "reload_seconds": 1,
            "state_file": "state.sqlite",
        }
        self.broker: dict[str, Any] = {
            **self.settings,
            "tokens": {"issuer": TOKEN_ISSUER, "jwks_file": "issuer.jwks"},
            "secrets": {"store": "secrets", "key": "secrets.key"},
        }

    def attest(self, **changes: Any) -> None:
        keys = {"binding_key": jwk_of(self.binding.key.public_key()), "ak_public": text_of(self.ak.public)}
        token = self.verifier.result(a_result(**{**keys, **changes}))
        temporary = self.folder / "attestation.new"
        temporary.write_text(yaml.safe_dump(attestation_manifest(NODE, NODE_UID, token)))
        temporary.replace(self.folder / "manifests/attestation.yaml")

    def file(self, settings: dict[str, Any]) -> Path:
        path = self.folder / "settings.yaml"
        path.write_text(yaml.safe_dump(settings))
        return path


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_settings_are_read_with_paths_beside_their_file(site: Site) -> None:
    settings = load_settings(BrokerSettings, site.file(site.broker))
    assert settings.secrets.store == site.folder / "secrets"
    assert settings.manifests == [site.folder / "manifests"]
    assert settings.listen.host == "127.0.0.1"


@pytest.mark.parametrize(
    "changes",
    [
        {"insecure": True},
        {"tls": {"certificate": "tls.pem"}},
        {"tls": None},
        {"manifests": []},
        {"manifests": [""]},
        {"listen": {"port": "9443"}},
        {"listen": {"port": 70000}},
        {"reload_seconds": 0},
        {"reload_seconds": 11},
        {"results": {"issuer": ISSUER, "audience": AUDIENCE}},
        {"results": {"issuer": "", "audience": AUDIENCE, "jwks_file": "verifier.jwks"}},
        {"results": {"issuer": ISSUER, "audience": AUDIENCE, "jwks_url": "https://x"}},
        {"results": {"issuer": ISSUER, "audience": AUDIENCE, "jwks_file": "a", "jwks_ca_file": "b"}},
        {"results": {"issuer": ISSUER, "audience": AUDIENCE, "jwks_file": "a", "jwks_url": "b", "jwks_ca_file": "c"}},
        {"state_file": None},
        {"state_file": "x\0y"},
        {"manifests": ["\ud800"]},
        {"listen": {"host": "\ud800"}},
    ],
)
def test_a_setting_that_is_unknown_missing_or_out_of_range_is_refused(site: Site, changes: dict[str, Any]) -> None:
    with pytest.raises(Refusal) as caught:
        load_settings(BrokerSettings, site.file({**site.broker, **changes}))
    assert caught.value.code is ReasonCode.SETTING_INVALID


def test_the_webhook_has_to_remember_sequences_too(site: Site) -> None:
    without = {name: value for name, value in site.settings.items() if name != "state_file"}
    with pytest.raises(Refusal) as caught:
        load_settings(WebhookSettings, site.file(without))
    assert caught.value.code is ReasonCode.SETTING_INVALID


def test_a_restarted_webhook_does_not_go_back_to_an_older_result(site: Site) -> None:
    settings = load_settings(WebhookSettings, site.file(site.settings))
    review = a_review(BINDING, sub="binding")

    def allowed() -> bool:
        with (
            served(build_webhook(settings, lambda: NOW).app, site.certificate) as address,
            httpx.Client(base_url=address, verify=trusting(site.certificate)) as client,
        ):
            answer: bool = client.post("/validate", json=review).json()["response"]["allowed"]
            return answer

    assert allowed()
    site.attest(sequence=NOW * 1000 + 5, verdict=Verdict.CONTRAINDICATED)
    assert not allowed()
    site.attest(sequence=NOW * 1000)
    assert not allowed()


def test_a_settings_file_that_is_no_single_document_is_refused(site: Site) -> None:
    for content in (b"", b"a: 1\n---\nb: 2\n", b"\xff"):
        path = site.folder / "settings.yaml"
        path.write_bytes(content)
        with pytest.raises(Refusal) as caught:
            load_settings(WebhookSettings, path)
        assert caught.value.code is ReasonCode.SETTING_INVALID
    with pytest.raises(Refusal) as caught:
        load_settings(WebhookSettings, site.folder / "absent.yaml")
    assert caught.value.code is ReasonCode.FILE_UNREADABLE


def test_a_tls_key_that_others_can_read_is_refused(site: Site) -> None:
    site.certificate.key.chmod(0o644)
    with pytest.raises(Refusal) as caught:
        load_settings(WebhookSettings, site.file(site.settings))
    assert caught.value.code is ReasonCode.FILE_MODE_UNSAFE


def test_the_assembled_webhook_follows_its_manifests(site: Site) -> None:
    settings = load_settings(WebhookSettings, site.file(site.settings))
    app = build_webhook(settings, lambda: NOW).app
    review = a_review(BINDING, sub="binding")
    with (
        served(app, site.certificate) as address,
        httpx.Client(base_url=address, verify=trusting(site.certificate)) as client,
    ):
        assert client.post("/validate", json=review).json()["response"]["allowed"] is True
        site.attest(sequence=NOW * 1000 + 1, verdict=Verdict.CONTRAINDICATED)
        deadline = time.monotonic() + 10
        while client.post("/validate", json=review).json()["response"]["allowed"]:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_the_assembled_broker_releases_over_https(site: Site) -> None:
    settings = load_settings(BrokerSettings, site.file(site.broker))
    app = build_broker(settings, lambda: NOW).app
    posted = envelope(site.ak, site.issuer.token(token_claims()), ["llm/key"])
    with (
        served(app, site.certificate) as address,
        httpx.Client(base_url=address, verify=trusting(site.certificate)) as client,
    ):
        answer = client.post("/v1/secrets/release", content=posted.model_dump_json())
        assert answer.status_code == 200, answer.text
        assert client.get("/v1/secrets/release").status_code == 405
        assert client.get("/docs").status_code == 404


def test_a_broker_does_not_start_on_an_altered_store_or_an_unreadable_key_set(site: Site) -> None:
    settings = load_settings(BrokerSettings, site.file(site.broker))
    (site.folder / "issuer.jwks").write_text("{}")
    with pytest.raises(Refusal) as caught:
        build_broker(settings, lambda: NOW)
    assert caught.value.code is ReasonCode.SETTING_INVALID
    (site.folder / "secrets").write_bytes(b"x")
    with pytest.raises(Refusal) as caught:
        build_broker(settings, lambda: NOW)
    assert caught.value.code is ReasonCode.SECRET_STORE_INVALID


def test_keys_that_cannot_be_read_again_stay_as_they_were(site: Site) -> None:
    path = site.folder / "verifier.jwks"
    keys = CurrentKeys(lambda: load_key_set(path, ALGORITHMS))
    path.write_text("broken")
    keys.refresh()
    assert set(keys().keys) == {"key-1"}
    path.write_text(json.dumps(Signer("key-2").jwks()))
    keys.refresh()
    assert set(keys().keys) == {"key-2"}


def test_keys_are_not_fetched_more_often_than_said() -> None:
    reads: list[int] = []

    def read() -> KeySet:
        reads.append(1)
        return KeySet({})

    keys = CurrentKeys(read, 3600.0)
    keys.refresh()
    assert len(reads) == 1


def test_keys_that_may_come_later_come_once_the_verifier_answers_and_never_from_what_is_no_key_set() -> None:
    answers: list[KeySet | Refusal] = []

    def read() -> KeySet:
        answer = answers.pop(0)
        if isinstance(answer, Refusal):
            raise answer
        return answer

    down = Unavailable(ReasonCode.VERIFIER_UNREACHABLE, "verifier", "down")
    broken = MalformedEvidence(ReasonCode.SETTING_INVALID, "verifier", "no key set")
    good = parse_key_set(json.dumps(Signer("key-1").jwks()), ALGORITHMS, "verifier")
    answers += [down, down, broken, good]
    keys = CurrentKeys(read, 3600.0, may_come_later=True)
    for _ in range(2):
        keys.refresh()
        assert keys().keys == {}
    keys.refresh()
    assert set(keys().keys) == {"key-1"}
    keys.refresh()
    assert answers == []

    answers += [down]
    with pytest.raises(Refusal) as caught:
        CurrentKeys(read, 3600.0)
    assert caught.value.code is ReasonCode.VERIFIER_UNREACHABLE
    answers += [broken]
    with pytest.raises(Refusal) as caught:
        CurrentKeys(read, 3600.0, may_come_later=True)
    assert caught.value.code is ReasonCode.SETTING_INVALID


def _jwks_server(answer: Response) -> FastAPI:
    app = FastAPI()
    app.add_api_route("/.well-known/jwks.json", lambda: answer)
    return app


def test_keys_are_fetched_over_tls_from_the_pinned_ca_alone(tmp_path: Path) -> None:
    certificate, stranger = make_certificate(tmp_path / "a"), make_certificate(tmp_path / "b")
    signer = Signer()
    with served(_jwks_server(PlainTextResponse(json.dumps(signer.jwks()))), certificate) as address:
        url = f"{address}/.well-known/jwks.json"
        results = Results(issuer=ISSUER, audience=AUDIENCE, jwks_url=url, jwks_ca_file=certificate.certificate)
        assert set(result_keys(results)().keys) == {"key-1"}
        assert _fetch_code(url, stranger) is ReasonCode.VERIFIER_UNREACHABLE
        assert _fetch_code(f"{address}/absent", certificate) is ReasonCode.VERIFIER_UNREACHABLE
        assert _fetch_code(url.replace("https", "http"), certificate) is ReasonCode.SETTING_INVALID
    assert _fetch_code(url, certificate) is ReasonCode.VERIFIER_UNREACHABLE


class LateVerifier:
    """Its keys come when `comes` is called; `results` are the settings that name it."""

    def __init__(self, url: str, site: Site) -> None:
        by_url = {"jwks_url": f"{url}/jwks.json", "jwks_ca_file": "tls.pem"}
        self.results = {"issuer": ISSUER, "audience": AUDIENCE, **by_url}
        self._keys = json.dumps(site.verifier.jwks())
        self.answer = PlainTextResponse("not yet", 503)

    def comes(self) -> None:
        self.answer = PlainTextResponse(self._keys)


@contextmanager
def late_verifier(site: Site) -> Iterator[LateVerifier]:
    app = FastAPI()
    with served(app, site.certificate) as url:
        made = LateVerifier(url, site)
        app.add_api_route("/jwks.json", lambda: made.answer)
        yield made


def test_a_webhook_that_starts_without_the_verifier_denies_sensitive_pods_alone_until_it_answers(site: Site) -> None:
    with late_verifier(site) as verifier:
        settings = load_settings(WebhookSettings, site.file({**site.settings, "results": verifier.results}))
        with (
            served(build_webhook(settings, lambda: NOW).app, site.certificate) as address,
            httpx.Client(base_url=address, verify=trusting(site.certificate)) as client,
        ):

            def response(to: dict[str, Any]) -> dict[str, Any]:
                told: dict[str, Any] = client.post("/validate", json=to).json()["response"]
                return told

            denied = response(a_review(BINDING, sub="binding"))
            causes = [cause["reason"] for cause in denied["status"]["details"]["causes"]]
            assert causes == [ReasonCode.RESULT_SIGNATURE_INVALID.value]
            ordinary = {
                "kind": "Pod",
                "metadata": {"name": "p", "namespace": "elsewhere"},
                "spec": {"containers": [{"name": "a", "image": "b:1"}]},
            }
            assert response(a_review(ordinary, namespace="elsewhere"))["allowed"] is True

            verifier.comes()
            deadline = time.monotonic() + 10
            while not response(a_review(BINDING, sub="binding"))["allowed"]:
                assert time.monotonic() < deadline
                time.sleep(0.05)


def test_a_broker_that_starts_without_the_verifier_releases_nothing_until_it_answers(site: Site) -> None:
    with late_verifier(site) as verifier:
        settings = load_settings(BrokerSettings, site.file({**site.broker, "results": verifier.results}))
        with (
            served(build_broker(settings, lambda: NOW).app, site.certificate) as address,
            httpx.Client(base_url=address, verify=trusting(site.certificate)) as client,
        ):

            def release() -> httpx.Response:
                posted = envelope(site.ak, site.issuer.token(token_claims()), ["llm/key"])
                return client.post("/v1/secrets/release", content=posted.model_dump_json())

            assert release().json()["code"] == ReasonCode.RESULT_SIGNATURE_INVALID.value
            verifier.comes()
            deadline = time.monotonic() + 10
            while release().status_code != 200:
                assert time.monotonic() < deadline
                time.sleep(0.05)


def test_an_endless_key_set_is_given_up(tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path)
    with served(_jwks_server(PlainTextResponse("x" * 300_000)), certificate) as address:
        assert _fetch_code(f"{address}/.well-known/jwks.json", certificate) is ReasonCode.SETTING_INVALID


def _fetch_code(url: str, certificate: Certificate) -> ReasonCode:
    with pytest.raises(Refusal) as caught:
        fetch_key_set(url, certificate.certificate, ALGORITHMS)
    return caught.value.code


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


@pytest.mark.parametrize("service", ["webhook", "broker"])
def test_a_service_serves_from_its_settings_file_until_it_is_told_to_stop(site: Site, service: str) -> None:
    port = free_port()
    settings = {**(site.broker if service == "broker" else site.settings), "listen": {"port": port}}
    command = [sys.executable, "-m", "nodewarden", "admission", service, "--config", str(site.file(settings))]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        with httpx.Client(verify=trusting(site.certificate)) as client:
            deadline = time.monotonic() + 30
            while True:
                try:
                    assert client.get(f"https://127.0.0.1:{port}/healthz").json() == {"status": "ok"}
                    break
                except httpx.ConnectError:
                    assert process.poll() is None
                    assert time.monotonic() < deadline
                    time.sleep(0.05)
    finally:
        process.terminate()
        _, errors = process.communicate(timeout=20)
    assert process.returncode in (0, -15)
    events = [json.loads(line)["event"] for line in errors.splitlines()]
    assert events[0] == "service_starting"


def test_a_service_with_a_bad_setting_says_so_in_one_line_and_exits_2(site: Site) -> None:
    command = [sys.executable, "-m", "nodewarden", "admission", "webhook"]
    path = site.file({**site.settings, "insecure": True})
    done = subprocess.run([*command, "--config", str(path)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {ReasonCode.SETTING_INVALID.value}: ")
    assert len(done.stderr.splitlines()) == 1
