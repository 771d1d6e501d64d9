"""Settings: nothing unknown, nothing doubled, nothing that others may write."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from attester import settings as settings_module
from attester.settings import AttesterSettings, load_settings
from attester.templates import AkType, EkType
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence, Rejection, Unavailable


def write(directory: Path, changes: Mapping[str, object] | None = None, text: str | None = None) -> Path:
    """A valid settings file, with `changes`, or holding `text`."""
    ca_file = directory / "ca.pem"
    ca_file.write_text("-")
    ca_file.chmod(0o644)
    fields: dict[str, object] = {
        "verifier_url": "https://verifier.example:8443",
        "verifier_id": "https://verifier.example/",
        "ca_file": str(ca_file),
        "node_name": "node-a",
    }
    path = directory / "attester.yaml"
    path.write_text(yaml.safe_dump(fields | dict(changes or {})) if text is None else text)
    path.chmod(0o600)
    return path


def refused(path: Path, environment: dict[str, str] | None = None) -> ReasonCode:
    with pytest.raises((MalformedEvidence, Rejection)) as refusal:
        load_settings(path, environment or {})
    return refusal.value.code


def test_four_settings_are_enough_and_the_rest_have_defaults(tmp_path: Path) -> None:
    settings = load_settings(write(tmp_path), {})
    assert settings.tcti == "device:/dev/tpmrm0"
    assert (settings.ek_type, settings.ak_type) == (EkType.RSA_2048, AkType.P_256)
    assert settings.broker_url is None


@pytest.mark.parametrize("name", ["verifier_url", "verifier_id", "ca_file", "node_name"])
def test_each_required_setting_is_required(tmp_path: Path, name: str) -> None:
    path = write(tmp_path)
    fields = yaml.safe_load(path.read_text())
    del fields[name]
    path.write_text(yaml.safe_dump(fields))
    assert refused(path) is ReasonCode.SETTING_INVALID


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("verifier_url", "http://verifier.example"),
        ("verifier_url", "https://verifier.example/path"),
        ("verifier_url", "https://user@verifier.example"),
        ("verifier_url", "https://verifier.example\n"),
        ("broker_url", "http://broker.example"),
        ("verifier_id", ""),
        ("verifier_id", "a b"),
        ("node_name", "Node_A"),
        ("node_name", "node-a\n"),
        ("ek_type", "rsa-1024"),
        ("ak_type", "p-384"),
        ("request_timeout_seconds", "30"),
        ("request_timeout_seconds", True),
        ("request_timeout_seconds", 0),
        ("retry_longest_seconds", 1),
        ("attest_now", "false"),
        ("insecure", True),
    ],
)
def test_a_wrong_setting_is_refused(tmp_path: Path, name: str, value: object) -> None:
    assert refused(write(tmp_path, {name: value})) is ReasonCode.SETTING_INVALID


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "a: b: c",
        "node_name: a\nnode_name: b\n",
        "a: &x 1\nb: *x\n",
        "1: 2",
        "!!python/object/apply:os.system [id]",
        "[" * 5000,
        "\x00",
        "x" * 70_000,
    ],
)
def test_what_is_no_plain_mapping_is_refused(tmp_path: Path, text: str) -> None:
    assert refused(write(tmp_path, text=text)) is ReasonCode.SETTING_INVALID


def test_a_word_that_only_some_readers_of_yaml_take_for_true_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path)
    path.write_text(f"{path.read_text()}attest_now: true\n")
    assert load_settings(path, {}).attest_now is True
    path.write_text(path.read_text().replace("attest_now: true", "attest_now: on"))
    assert refused(path) is ReasonCode.SETTING_INVALID


def test_the_environment_overrides_the_file(tmp_path: Path) -> None:
    environment = {
        "NODEWARDEN_ATTESTER_NODE_NAME": "node-b",
        "NODEWARDEN_ATTESTER_EK_TYPE": "p-384",
        "NODEWARDEN_ATTESTER_REQUEST_TIMEOUT_SECONDS": "7",
        "NODEWARDEN_ATTESTER_ATTEST_NOW": "false",
        "UNRELATED": "x",
    }
    settings = load_settings(write(tmp_path), environment)
    assert (settings.node_name, settings.ek_type, settings.request_timeout_seconds) == ("node-b", EkType.P_384, 7)
    assert settings.attest_now is False


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NO_SUCH_SETTING", "1"),
        ("REQUEST_TIMEOUT_SECONDS", "7s"),
        ("VERIFIER_URL", "http://x"),
        ("ATTEST_NOW", "no"),
    ],
)
def test_a_wrong_variable_is_refused(tmp_path: Path, name: str, value: str) -> None:
    assert refused(write(tmp_path), {f"NODEWARDEN_ATTESTER_{name}": value}) is ReasonCode.SETTING_INVALID


def test_settings_or_ca_that_others_may_write_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path)
    path.chmod(0o622)
    assert refused(path) is ReasonCode.FILE_MODE_UNSAFE
    path.chmod(0o644)
    load_settings(path, {})
    (tmp_path / "ca.pem").chmod(0o666)
    assert refused(path) is ReasonCode.FILE_MODE_UNSAFE


def test_absent_settings_are_unreadable(tmp_path: Path) -> None:
    with pytest.raises(Unavailable) as failure:
        load_settings(tmp_path / "absent.yaml", {})
    assert failure.value.code is ReasonCode.FILE_UNREADABLE


def test_every_setting_is_documented() -> None:
    source = inspect.getsource(settings_module)
    for name in AttesterSettings.model_fields:
        declaration = source.partition(f"    {name}: ")[2].partition("\n")[2].lstrip()
        assert declaration.startswith('"""'), name


def test_every_setting_is_read_by_some_part_of_the_attester() -> None:
    # A setting that nothing reads protects nothing, whatever its documentation says.
    folder = Path(inspect.getsourcefile(settings_module) or "").parent
    parts = [path.read_text() for path in folder.rglob("*.py") if path.name != "settings.py"]
    unread = [name for name in AttesterSettings.model_fields if not any(f"settings.{name}" in part for part in parts)]
    assert unread == []
