"""The example files are read by the code that will read them, and explain every setting that there is."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from pydantic import BaseModel
from typer.testing import CliRunner

from admission.commands import admission_app
from admission.manifests import load_manifests
from admission.offline_test import run_offline_test
from admission.settings import (
    BrokerSettings,
    Kubernetes,
    Listen,
    ManagedTls,
    Results,
    Secrets,
    Tls,
    Tokens,
    WebhookSettings,
    load_settings,
)
from attester.settings import AttesterSettings
from attester.settings import load_settings as load_attester_settings
from tests.admission.served import make_certificate
from verifier.inventory import load_inventory
from verifier.settings import ClusterSettings, Settings
from verifier.settings import load_settings as load_verifier_settings
from verifier.wire.codes import ReasonCode

EXAMPLES = Path(__file__).parents[2] / "deploy/examples"
NOW = 1_800_000_000
_COMMENTED = re.compile(r"^# ([a-z_]+): ([^#]+?)(?:\s+#.*)?$", re.MULTILINE)
_ALTERNATIVES = frozenset({"tls_certificate", "tls_key", "node_token_path"})
"""Shown with a value that is no default."""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The examples beside the files that they name."""
    shutil.copytree(EXAMPLES, tmp_path, dirs_exist_ok=True)
    (tmp_path / "tls").mkdir()
    for name in ("webhook", "broker"):
        made = make_certificate(tmp_path / "made")
        made.key.rename(tmp_path / f"tls/{name}.key")
        made.certificate.rename(tmp_path / f"tls/{name}.pem")
    return tmp_path


def with_defaults_written_out(path: Path) -> None:
    text = _COMMENTED.sub(lambda m: m[0] if m[1] in _ALTERNATIVES else f"{m[1]}: {m[2]}", path.read_text())
    assert text != path.read_text()
    path.write_text(text)


def test_the_verifiers_settings_load_and_show_the_real_defaults(copy: Path) -> None:
    path = copy / "verifier.yaml"
    settings = load_verifier_settings(path)
    assert settings.issuer == "https://verifier.example"
    with_defaults_written_out(path)
    assert load_verifier_settings(path) == settings


def test_the_attesters_settings_load_and_show_the_real_defaults(copy: Path) -> None:
    path, environment = copy / "attester.yaml", {"NODEWARDEN_ATTESTER_CA_FILE": str(copy / "ca.pem")}
    shutil.copy(copy / "tls/webhook.pem", copy / "ca.pem")
    for file in (path, copy / "ca.pem"):
        file.chmod(0o600)
    settings = load_attester_settings(path, environment)
    assert settings.node_name == "worker-1"
    with_defaults_written_out(path)
    assert load_attester_settings(path, environment) == settings


def test_webhook_and_broker_settings_load(copy: Path) -> None:
    webhook = load_settings(WebhookSettings, copy / "webhook.yaml")
    broker = load_settings(BrokerSettings, copy / "broker.yaml")
    verifier = load_verifier_settings(copy / "verifier.yaml")
    for settings in (webhook, broker):
        assert settings.manifests == [copy / "cluster"]
        # A cluster that names another verifier or audience than the verifier itself would trust nothing.
        assert (settings.results.issuer, settings.results.audience) == (verifier.issuer, verifier.audience)
    assert webhook.tls is not None
    assert webhook.tls.client_ca == copy / "tls/api-server-ca.pem"


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("verifier.yaml", (Settings, ClusterSettings)),
        ("attester.yaml", (AttesterSettings,)),
        ("webhook.yaml", (WebhookSettings, Listen, Tls, Kubernetes, ManagedTls, Results)),
        ("broker.yaml", (Tokens, Secrets)),
    ],
)
def test_every_setting_is_explained(name: str, kinds: tuple[type[BaseModel], ...]) -> None:
    text = (EXAMPLES / name).read_text()
    for kind in kinds:
        for field in kind.model_fields:
            assert re.search(rf"\b{field}:", text), field


def test_the_inventory_loads() -> None:
    inventory = load_inventory((EXAMPLES / "inventory.yaml").read_text(), "inventory.yaml")
    assert [entry.node_name for entry in inventory.entries] == ["worker-1", "worker-2"]


def test_the_offline_test_of_the_examples_says_where_the_pod_may_run() -> None:
    (report,) = run_offline_test([EXAMPLES / "cluster", EXAMPLES / "pod.yaml"], EXAMPLES / "verdicts.yaml", NOW)
    assert report.ok
    assert report.nodes == ("worker-1",)
    refused = {node: [failure.code for failure in failures] for node, failures in report.refused.items()}
    assert refused == {"worker-2": [ReasonCode.NODE_NOT_VERIFIED], "worker-3": [ReasonCode.BOOT_MISMATCH]}


def test_the_brokers_store_is_made_as_its_settings_say(copy: Path) -> None:
    broker = load_settings(BrokerSettings, copy / "broker.yaml")
    place = ["--store", str(broker.secrets.store), "--key", str(broker.secrets.key)]
    runner = CliRunner()
    put = runner.invoke(admission_app, ["secrets", "put", "llm/key", *place, "--from-file", "-"], input="content")
    assert put.exit_code == 0, put.output
    listed = runner.invoke(admission_app, ["secrets", "list", *place, "--json"])
    granted = load_manifests([EXAMPLES / "cluster"]).workloads["llm"].secrets
    assert [secret["name"] for secret in json.loads(listed.stdout)["secrets"]] == list(granted)
