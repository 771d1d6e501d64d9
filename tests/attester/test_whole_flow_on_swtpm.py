"""The attester's commands against the real verifier and a real software TPM."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from itertools import product
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from attester.client import Client, open_client, refusal_code
from attester.commands import attester_app
from attester.enrol import Enrolled, enrol
from attester.keys import read_endorsement_key
from attester.rounds import ask_challenge, attest, enrolled_node, using_tpm
from attester.settings import AttesterSettings
from attester.state import read_enrolment
from attester.templates import AkType, EkType
from attester.tpm import open_tpm
from nodewarden_demo.software_tpm import LocalCa, SoftwareTpm
from tests.attester.live_verifier import LiveVerifier, serving
from tests.attester.machine import BOOT_LOG, settings_for
from verifier.clock import SystemClock
from verifier.wire.challenge import ChallengeResponse
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence, Refusal, Rejection
from verifier.wire.messages import bytes_of
from verifier.wire.recording import recording_from_files
from verifier.wire.result import Verdict

pytestmark = pytest.mark.swtpm
ROOT = Path(__file__).parent.parent.parent
every_pair = pytest.mark.parametrize(("ek", "ak"), list(product(EkType, AkType)), ids=lambda kind: kind.value)


@pytest.fixture
def live(tmp_path: Path, tpm_ca: LocalCa) -> Iterator[LiveVerifier]:
    with serving(tmp_path / "verifier", tpm_ca) as running:
        yield running


def now() -> int:
    return SystemClock().now_ms() // 1000


def settings_at(directory: Path, tpm: SoftwareTpm, live: LiveVerifier, **changes: object) -> AttesterSettings:
    return settings_for(directory, tpm.tcti, live.ca_file, verifier_url=live.url, **changes)


def enrol_listed(settings: AttesterSettings, live: LiveVerifier) -> Enrolled:
    """The node of `settings` enrolled, after the inventory has it with its one EK."""
    with using_tpm(settings) as tpm, client_of(settings) as client:
        ek = read_endorsement_key(tpm, settings.ek_type)
        live.list_node(settings.node_name, ek.node_id)
        return enrol(tpm, client, settings)


def client_of(settings: AttesterSettings) -> AbstractContextManager[Client]:
    return open_client(settings.verifier_url, settings.ca_file, 5, 30)


def config_file(directory: Path, settings: AttesterSettings) -> Path:
    """The settings as a file for the command line."""
    path = directory / "attester.yaml"
    path.write_text(yaml.safe_dump(settings.model_dump(mode="json", exclude_none=True)))
    path.chmod(0o600)
    return path


@every_pair
def test_a_listed_node_enrols_and_is_affirming(
    tpm: SoftwareTpm, live: LiveVerifier, tmp_path: Path, ek: EkType, ak: AkType
) -> None:
    settings = settings_at(tmp_path, tpm, live, ek_type=ek, ak_type=ak)
    tpm.extend_boot_log(BOOT_LOG)
    enrolled = enrol_listed(settings, live)
    assert (enrolled.admitted, enrolled.admission) == (True, "inventory")
    node = enrolled_node(settings)
    with client_of(settings) as client:
        answer = attest(node, client, None, now)
        assert [reason.code for reason in answer.reasons] == []
        assert answer.verdict is Verdict.AFFIRMING
        # The next round is one request: the challenge came along, and the log is known by its digest.
        assert answer.next_challenge is not None
        assert answer.next_challenge.collect.boot_log_known_sha256 is not None
        assert attest(node, client, answer.next_challenge, now).verdict is Verdict.AFFIRMING


def test_an_unlisted_node_is_refused_and_keeps_no_enrolment(
    tpm: SoftwareTpm, live: LiveVerifier, tmp_path: Path
) -> None:
    settings = settings_at(tmp_path, tpm, live)
    with using_tpm(settings) as connection, client_of(settings) as client, pytest.raises(Rejection) as refusal:
        enrol(connection, client, settings)
    assert refusal.value.code is ReasonCode.VERIFIER_REFUSED
    assert refusal_code(refusal.value) == ReasonCode.EK_NOT_IN_INVENTORY.value
    with pytest.raises(Rejection) as missing:
        read_enrolment(settings.state_dir)
    assert missing.value.code is ReasonCode.NOT_ENROLLED


def test_after_clear_enrolment_makes_a_new_ak_for_the_same_node(
    tpm: SoftwareTpm, live: LiveVerifier, tmp_path: Path
) -> None:
    settings = settings_at(tmp_path, tpm, live)
    tpm.extend_boot_log(BOOT_LOG)
    first = enrol_listed(settings, live).enrolment
    tpm.clear()
    with client_of(settings) as client:
        with pytest.raises(Rejection) as refusal:
            attest(enrolled_node(settings), client, None, now)
        assert refusal.value.code is ReasonCode.AK_NOT_LOADABLE
        with using_tpm(settings) as connection:
            second = enrol(connection, client, settings).enrolment
        assert (second.node_id, second.node_name) == (first.node_id, first.node_name)
        assert second.ak.public != first.ak.public
        assert attest(enrolled_node(settings), client, None, now).verdict is Verdict.AFFIRMING


def test_a_reboot_into_nothing_measured_falls_from_affirming(
    tpm: SoftwareTpm, live: LiveVerifier, tmp_path: Path
) -> None:
    settings = settings_at(tmp_path, tpm, live)
    tpm.extend_boot_log(BOOT_LOG)
    enrol_listed(settings, live)
    node = enrolled_node(settings)
    with client_of(settings) as client:
        assert attest(node, client, None, now).verdict is Verdict.AFFIRMING
        tpm.reset()
        answer = attest(node, client, None, now)
        assert answer.verdict is Verdict.CONTRAINDICATED
        assert ReasonCode.PCR_REPLAY_MISMATCH.value in [reason.code for reason in answer.reasons]
        tpm.extend_boot_log(BOOT_LOG)
        assert attest(node, client, None, now).verdict is Verdict.AFFIRMING


def test_a_verifier_that_forgot_the_boot_log_gets_it_in_the_same_round(
    tpm: SoftwareTpm, live: LiveVerifier, tmp_path: Path
) -> None:
    settings = settings_at(tmp_path, tpm, live)
    tpm.extend_boot_log(BOOT_LOG)
    enrol_listed(settings, live)
    node = enrolled_node(settings)
    with client_of(settings) as client:
        challenge = ask_challenge(node, client, now())
        assert challenge.collect.boot_log_known_sha256 is None
        claimed = challenge.collect.model_copy(update={"boot_log_known_sha256": hashlib.sha256(BOOT_LOG).hexdigest()})
        mistaken: ChallengeResponse = challenge.model_copy(update={"collect": claimed})
        assert attest(node, client, mistaken, now).verdict is Verdict.AFFIRMING


def test_a_verifier_with_another_name_is_not_adopted(tpm: SoftwareTpm, live: LiveVerifier, tmp_path: Path) -> None:
    settings = settings_at(tmp_path, tpm, live, verifier_id="https://another.example/")
    with pytest.raises(Rejection) as refusal:
        enrol_listed(settings, live)
    assert refusal.value.code is ReasonCode.VERIFIER_ID_MISMATCH
    with pytest.raises(Rejection) as missing:
        read_enrolment(settings.state_dir)
    assert missing.value.code is ReasonCode.NOT_ENROLLED


@pytest.mark.parametrize("fault", ["another name of the verifier", "a state directory that cannot be made"])
def test_an_enrolment_that_fails_on_our_side_leaves_the_old_one_good(
    fault: str, tpm: SoftwareTpm, live: LiveVerifier, tmp_path: Path
) -> None:
    settings = settings_at(tmp_path, tpm, live)
    tpm.extend_boot_log(BOOT_LOG)
    enrol_listed(settings, live)
    changes: dict[str, dict[str, object]] = {
        "another name of the verifier": {"verifier_id": "https://another.example/"},
        "a state directory that cannot be made": {"state_dir": Path("/proc/state")},
    }
    with pytest.raises(Refusal):
        enrol_listed(settings.model_copy(update=changes[fault]), live)
    with client_of(settings) as client:
        assert attest(enrolled_node(settings), client, None, now).verdict is Verdict.AFFIRMING


def test_an_enrolment_for_other_settings_is_not_used(tpm: SoftwareTpm, live: LiveVerifier, tmp_path: Path) -> None:
    settings = settings_at(tmp_path, tpm, live)
    enrol_listed(settings, live)
    enrolled_node(settings)
    for changes in ({"node_name": "node-b"}, {"verifier_id": "https://another.example/"}, {"ek_type": EkType.P_384}):
        with pytest.raises(Rejection) as refusal:
            enrolled_node(settings.model_copy(update=changes))
        assert refusal.value.code is ReasonCode.NOT_ENROLLED


def test_the_commands_enrol_attest_collect_and_diagnose(tpm: SoftwareTpm, live: LiveVerifier, tmp_path: Path) -> None:
    settings = settings_at(tmp_path, tpm, live, broker_url=None)
    config = config_file(tmp_path, settings)
    tpm.extend_boot_log(BOOT_LOG)
    with open_tpm(tpm.tcti) as connection:
        live.list_node("node-a", read_endorsement_key(connection, settings.ek_type).node_id)
    cli = CliRunner()

    before = cli.invoke(attester_app, ["doctor", "--config", str(config), "--json"])
    assert before.exit_code == 1
    failed = {check["name"]: check["code"] for check in json.loads(before.stdout)["checks"] if not check["ok"]}
    assert failed == {
        "ima-log": ReasonCode.LOG_UNREADABLE.value,
        "node-token": ReasonCode.NODE_TOKEN_MISSING.value,
        "enrolment": ReasonCode.NOT_ENROLLED.value,
        "challenge": ReasonCode.NOT_ENROLLED.value,
    }

    enrolled = cli.invoke(attester_app, ["enrol", "--config", str(config), "--json"])
    assert enrolled.exit_code == 0, enrolled.output
    assert json.loads(enrolled.stdout)["admitted"] is True

    once = cli.invoke(attester_app, ["once", "--config", str(config), "--json"])
    assert once.exit_code == 0, once.output
    assert json.loads(once.stdout)["verdict"] == "affirming"

    after = cli.invoke(attester_app, ["doctor", "--config", str(config)])
    assert after.exit_code == 0, after.output
    assert "ok   enrolment" in after.stdout
    assert "ok   challenge" in after.stdout

    tpm.reset()
    fallen = cli.invoke(attester_app, ["once", "--config", str(config)])
    assert fallen.exit_code == 1
    assert ReasonCode.PCR_REPLAY_MISMATCH.value in fallen.stdout


@pytest.mark.parametrize("enrolled", [False, True])
def test_collect_records_what_the_verifier_reads_with_the_ima_log_beside_it(
    tpm: SoftwareTpm, live: LiveVerifier, tmp_path: Path, enrolled: bool
) -> None:
    ima_log = tmp_path / "ima"
    ima_log.write_bytes(b"entries")
    settings = settings_at(tmp_path, tpm, live, ima_log_path=ima_log)
    tpm.extend_boot_log(BOOT_LOG)
    if enrolled:
        enrol_listed(settings, live)
    out = tmp_path / "recorded"
    done = CliRunner().invoke(
        attester_app, ["collect", "--out", str(out), "--config", str(config_file(tmp_path, settings)), "--json"]
    )
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["ima_log_bytes"] == 7
    assert out.stat().st_mode & 0o7777 == 0o700
    files = {path.name: path.read_bytes() for path in out.iterdir()}
    assert files.pop("ima.bin") == b"entries"
    recording = recording_from_files(files)
    assert files["ak.public.bin"] == bytes_of(recording.enrolment.ak_public)
    assert recording.challenge.form == "bound"
    assert recording.bundle.claimed_node_id == recording.enrolment.node_id
    # Unenrolled, the binding key is forgotten: another AK's certificate must not be offered later.
    assert (settings.runtime_dir / "binding-key.json").exists() is enrolled


def test_a_collected_recording_is_judged_affirming_by_the_appraise_command(
    tpm: SoftwareTpm, live: LiveVerifier, tmp_path: Path
) -> None:
    tpm.extend_boot_log(BOOT_LOG)
    config = config_file(tmp_path, settings_at(tmp_path, tpm, live))
    out = tmp_path / "recorded"
    done = CliRunner().invoke(attester_app, ["collect", "--out", str(out), "--config", str(config)])
    assert done.exit_code == 0, done.output
    verifier = tmp_path / "verifier"
    options = ["--baseline", str(verifier / "baselines/test.yaml"), "--endorsements", str(verifier / "endorsements")]
    judged = subprocess.run(
        [sys.executable, str(ROOT / "nodewarden.py"), "appraise", str(out), *options, "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert judged.returncode == 0, judged.stdout + judged.stderr
    assert json.loads(judged.stdout)["verdict"] == "affirming"


def test_collect_says_that_there_is_no_ima_log_and_writes_over_nothing(
    tpm: SoftwareTpm, live: LiveVerifier, tmp_path: Path
) -> None:
    settings = settings_at(tmp_path, tpm, live)
    config = config_file(tmp_path, settings)
    out = tmp_path / "recorded"
    arguments = ["collect", "--out", str(out), "--config", str(config), "--json"]
    done = CliRunner().invoke(attester_app, arguments)
    assert done.exit_code == 0, done.output
    printed = json.loads(done.stdout)
    assert printed["ima_log_bytes"] is None
    assert printed["ima_log_problem"]
    again = CliRunner().invoke(attester_app, arguments)
    assert isinstance(again.exception, MalformedEvidence)
    assert again.exception.code is ReasonCode.SETTING_INVALID
