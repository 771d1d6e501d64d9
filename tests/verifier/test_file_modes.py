"""Files on which trust rests are refused when others may write them, or read the secret ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.verifier import fleet
from verifier.cluster_tokens import NodeTokens
from verifier.endorsement_files import load_endorsements
from verifier.server import build_verifier, server_config
from verifier.settings import ClusterSettings, Settings, load_settings
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Rejection


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings of a verifier that ran once."""
    verifier = fleet.start(tmp_path / "v", fleet.SetClock())
    server_config(verifier)
    verifier.close()
    (tmp_path / "v/endorsements/roots/.keep").touch()
    return verifier.settings


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("baselines", 0o770),
        ("baselines", 0o702),
        ("baselines/good.yaml", 0o660),
        ("baselines/good.yaml", 0o602),
        ("endorsements/roots", 0o770),
        ("verifier.db", 0o660),
        ("verifier.db", 0o644),
        ("tokens.json", 0o640),
        ("keys/0001.pem", 0o640),
    ],
)
def test_a_verifier_does_not_start_on_files_that_others_may_change(settings: Settings, name: str, mode: int) -> None:
    build_verifier(settings, fleet.SetClock()).close()
    (settings.database.parent / name).chmod(mode)
    with pytest.raises(Rejection) as refused:
        build_verifier(settings, fleet.SetClock())
    assert refused.value.code is ReasonCode.FILE_MODE_UNSAFE


def test_readable_rules_are_no_secret(settings: Settings) -> None:
    for name, mode in (("baselines", 0o755), ("baselines/good.yaml", 0o644), ("endorsements/roots", 0o755)):
        (settings.database.parent / name).chmod(mode)
    build_verifier(settings, fleet.SetClock()).close()


def test_a_certificate_or_setting_or_cluster_key_that_others_may_write_is_refused(settings: Settings) -> None:
    directory = settings.database.parent
    root = directory / "endorsements/roots/root.pem"
    jwks = directory / "jwks.json"
    cluster = ClusterSettings(issuer="x", jwks_file=jwks, namespace="x", service_account="x")
    for path, load in (
        (root, lambda: load_endorsements(directory / "endorsements")),
        (jwks, lambda: NodeTokens(cluster)),
        (directory / "verifier.yaml", lambda: load_settings(directory / "verifier.yaml")),
    ):
        path.touch()
        path.chmod(0o664)
        with pytest.raises(Rejection) as refused:
            load()
        assert refused.value.code is ReasonCode.FILE_MODE_UNSAFE


def test_a_tls_key_of_ones_own_is_as_secret_as_ours(settings: Settings) -> None:
    directory = settings.database.parent
    key = directory / "tls/server.key"
    own = settings.model_copy(update={"tls_certificate": directory / "tls/server.pem", "tls_key": key})
    verifier = build_verifier(own, fleet.SetClock())
    server_config(verifier)
    key.chmod(0o644)
    with pytest.raises(Rejection) as refused:
        server_config(verifier)
    verifier.close()
    assert refused.value.code is ReasonCode.FILE_MODE_UNSAFE
