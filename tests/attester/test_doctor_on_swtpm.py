"""The doctor: each check fails for its own cause and names what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tpm2_pytss.constants import ESYS_TR

from attester import tpm as tpm_module
from attester.doctor import Check, examine
from attester.settings import AttesterSettings
from attester.templates import EK_CERTIFICATE_INDEX, AkType, EkType
from attester.tpm import open_tpm
from nodewarden_demo.software_tpm import SoftwareTpm
from tests.attester.csi_provider import socket_in
from tests.attester.machine import boot, enrolment_of, settings_for, write_enrolment
from verifier.clock import SystemClock
from verifier.tls import ensure_tls
from verifier.wire.codes import ReasonCode

pytestmark = pytest.mark.swtpm


@pytest.fixture
def healthy(tpm: SoftwareTpm, tmp_path: Path) -> AttesterSettings:
    """An enrolled, booted machine, of which only the verifier does not answer."""
    ensure_tls(tmp_path / "tls", ("127.0.0.1",), SystemClock().now_ms() // 1000)
    for name in ("ima", "token"):
        (tmp_path / name).write_text("content")
    with open_tpm(tpm.tcti) as connection:
        machine = boot(tpm, connection, tmp_path, EkType.RSA_2048, AkType.P_256)
    settings = settings_for(
        tmp_path,
        tpm.tcti,
        tmp_path / "tls/ca.pem",
        ima_log_path=tmp_path / "ima",
        node_token_path=tmp_path / "token",
        csi_socket=socket_in(tmp_path),
        verifier_url="https://127.0.0.1:1",
    )
    write_enrolment(settings.state_dir, enrolment_of(machine))
    return settings


def failed(settings: AttesterSettings) -> dict[str, ReasonCode | None]:
    """The checks that fail, those of the absent servers aside."""
    checks = {check.name: check.code for check in examine(settings) if not check.ok}
    assert checks.pop("verifier") is checks.pop("broker") is ReasonCode.VERIFIER_UNREACHABLE
    # Needs a TPM, an enrolment and a verifier, so it fails with whichever is missing first.
    assert checks.pop("challenge") is not None
    return checks


def test_a_healthy_machine_fails_nothing_but_the_absent_verifier(healthy: AttesterSettings) -> None:
    assert failed(healthy) == {}


def test_each_failure_says_what_to_do(healthy: AttesterSettings) -> None:
    shown = [check.as_json() for check in examine(healthy) if not check.ok]
    assert {entry["remedy"] for entry in shown} == {ReasonCode.VERIFIER_UNREACHABLE.remedy}
    good = Check("tpm", required=True, ok=True, detail="there", code=None).as_json()
    assert (good["code"], good["remedy"]) == (None, None)


def test_a_boot_that_measured_nothing_is_told(healthy: AttesterSettings, tpm: SoftwareTpm) -> None:
    tpm.reset()
    assert failed(healthy) == {"tpm-pcr-bank": ReasonCode.BOOT_LOG_ABSENT}


def test_a_tpm_without_certificate_is_told_with_the_command_that_lists_it(
    healthy: AttesterSettings, tpm: SoftwareTpm
) -> None:
    with open_tpm(tpm.tcti) as connection:
        handle = connection.esapi.tr_from_tpmpublic(EK_CERTIFICATE_INDEX[EkType.P_256])
        connection.esapi.nv_undefine_space(handle, auth_handle=ESYS_TR.PLATFORM)
    checks = examine(healthy.model_copy(update={"ek_type": EkType.P_256}))
    missing = next(check for check in checks if check.name == "ek-certificate")
    assert missing.code is ReasonCode.EK_CERTIFICATE_MISSING
    assert not missing.required
    assert "--public-key-sha256" in missing.detail


def test_a_cleared_tpm_is_told_as_an_enrolment_to_renew(healthy: AttesterSettings, tpm: SoftwareTpm) -> None:
    tpm.clear()
    assert failed(healthy) == {"enrolment": ReasonCode.AK_NOT_LOADABLE}


def test_another_tpm_is_told(healthy: AttesterSettings, other_tpm: SoftwareTpm) -> None:
    checks = failed(healthy.model_copy(update={"tcti": other_tpm.tcti}))
    assert checks["enrolment"] is ReasonCode.AK_NOT_LOADABLE


def test_no_tpm_fails_only_what_needs_one(healthy: AttesterSettings, tpm: SoftwareTpm) -> None:
    tpm.stop()
    names = ("tpm", "tpm-counter-policy", "tpm-pcr-bank", "ek-certificate", "enrolment")
    assert failed(healthy) == dict.fromkeys(names, ReasonCode.TPM_UNAVAILABLE)


def test_a_tpm_without_the_counter_policy_is_told(healthy: AttesterSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tpm_module, "REQUIRED_COMMAND", 0x19B)
    assert failed(healthy) == {"tpm-counter-policy": ReasonCode.TPM_COMMAND_MISSING}


@pytest.mark.parametrize(
    ("name", "setting", "code"),
    [
        ("boot-log", "boot_log_path", ReasonCode.LOG_UNREADABLE),
        ("ima-log", "ima_log_path", ReasonCode.LOG_UNREADABLE),
        ("node-token", "node_token_path", ReasonCode.NODE_TOKEN_MISSING),
    ],
)
def test_an_absent_file_is_told(healthy: AttesterSettings, name: str, setting: str, code: ReasonCode) -> None:
    assert failed(healthy.model_copy(update={setting: Path("/absent")})) == {name: code}


def test_a_node_without_the_csi_driver_is_told_where_a_broker_is_set(healthy: AttesterSettings) -> None:
    without = healthy.model_copy(update={"csi_socket": Path("/absent/nodewarden.sock")})
    assert failed(without) == {"csi-socket": ReasonCode.CSI_DRIVER_MISSING}
    checks = {check.name: check for check in examine(without.model_copy(update={"broker_url": None}))}
    assert checks["csi-socket"].ok
    # Nodes attest without it.
    assert not checks["csi-socket"].required


@pytest.mark.parametrize(
    "spoil", [lambda path: path.chmod(0o755), lambda path: (path / "enrolment.json").chmod(0o644)], ids=["dir", "file"]
)
def test_state_that_others_may_read_is_told(healthy: AttesterSettings, spoil: Callable[[Path], None]) -> None:
    spoil(healthy.state_dir)
    told = failed(healthy)
    assert told.pop("enrolment") is ReasonCode.FILE_MODE_UNSAFE
    assert set(told.values()) <= {ReasonCode.FILE_MODE_UNSAFE}
