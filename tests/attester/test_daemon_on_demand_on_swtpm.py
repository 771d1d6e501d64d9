"""`nodewarden attester run` with the real verifier: a change reaches the verdict at once, a stop waits for no hold."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from nodewarden_demo.software_tpm import LocalCa, SoftwareTpm
from tests.attester.live_verifier import LiveVerifier, serving
from tests.attester.machine import BOOT_LOG
from tests.attester.test_whole_flow_on_swtpm import config_file, enrol_listed, settings_at
from verifier.wire.codes import ReasonCode

pytestmark = pytest.mark.swtpm
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def live(tmp_path: Path, tpm_ca: LocalCa) -> Iterator[LiveVerifier]:
    with serving(tmp_path / "verifier", tpm_ca) as running:
        yield running


@contextmanager
def running(
    tpm: SoftwareTpm, live: LiveVerifier, directory: Path, first: str = "affirming", **changes: object
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """An enrolled node's service after its first verdict, and the node's id. Its interval is a minute."""
    settings = settings_at(directory, tpm, live, **changes)
    tpm.extend_boot_log(BOOT_LOG)
    node_id = enrol_listed(settings, live).enrolment.node_id
    command = [sys.executable, str(ROOT / "nodewarden.py"), "attester", "run", "--config"]
    process = subprocess.Popen(
        [*command, str(config_file(directory, settings))], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    try:
        within(30, lambda: verdict(live) == first)
        yield process, node_id
    finally:
        process.kill()
        process.communicate()


def within(seconds: float, holds: Callable[[], bool]) -> float:
    """After how many seconds it holds."""
    started = time.monotonic()
    while not holds():
        assert time.monotonic() - started < seconds
        time.sleep(0.02)
    return time.monotonic() - started


def verdict(live: LiveVerifier) -> str | None:
    found = live.ask("GET", "/v1/nodes/node-a")["verdict"]
    return None if found is None else str(found)


def log_of(process: subprocess.Popen[str]) -> str:
    """What the service said, after SIGTERM and its end."""
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=10)
    assert process.returncode == 0
    return log


def require_another_argument(live: LiveVerifier) -> None:
    """The baseline as it might be tightened: the next version asks for a kernel argument that the machine lacks."""
    path = live.verifier.settings.baselines_dir / "test.yaml"
    baseline = json.loads(path.read_text())
    baseline["metadata"]["version"] = "99.0.0"
    baseline["bootSets"][0]["cmdline"]["require"].append("nodewarden.test=1")
    path.write_text(json.dumps(baseline))


def test_a_changed_baseline_reaches_the_verdict_within_two_seconds(
    tpm: SoftwareTpm, live: LiveVerifier, tmp_path: Path
) -> None:
    with running(tpm, live, tmp_path) as (process, node_id):
        within(10, lambda: live.holds(node_id))
        require_another_argument(live)
        live.reload_baselines()
        assert within(2, lambda: verdict(live) == "contraindicated") < 2
        log = log_of(process)
    assert "evidence_wanted" in log
    assert f"verdict=contraindicated reasons={ReasonCode.CMDLINE_ARGUMENT_MISSING.value}" in log
    assert log.count("attested verdict=") == 2


def test_an_approved_node_is_affirming_within_two_seconds(tpm: SoftwareTpm, tpm_ca: LocalCa, tmp_path: Path) -> None:
    with (
        serving(tmp_path / "verifier", tpm_ca, admission="manual") as live,
        running(tpm, live, tmp_path, first="none") as (process, node_id),
    ):
        within(10, lambda: live.holds(node_id))
        live.ask("POST", "/v1/nodes/node-a/approve")
        assert within(2, lambda: verdict(live) == "affirming") < 2
        log = log_of(process)
    assert f"reasons={ReasonCode.NODE_NOT_ADMITTED.value}" in log and "verdict=affirming" in log


def test_a_stop_during_a_hold_takes_less_than_a_second(tpm: SoftwareTpm, live: LiveVerifier, tmp_path: Path) -> None:
    with running(tpm, live, tmp_path) as (process, node_id):
        within(10, lambda: live.holds(node_id))
        started = time.monotonic()
        log = log_of(process)
        assert time.monotonic() - started < 1
    assert log.rstrip().endswith("stopped")
    assert "Traceback" not in log and "attest_now_failed" not in log


def test_a_verifier_that_stops_lets_the_hold_go_and_gets_no_evidence_for_that(
    tpm: SoftwareTpm, live: LiveVerifier, tmp_path: Path
) -> None:
    with running(tpm, live, tmp_path) as (process, node_id):
        within(10, lambda: live.holds(node_id))
        live.loop.call_soon_threadsafe(live.verifier.let_go)
        within(5, lambda: not live.holds(node_id))
        time.sleep(0.5)
        log = log_of(process)
    assert log.count("attested verdict=") == 1
    assert "attest_now_failed" not in log


def test_a_full_verifier_closes_the_held_request_for_a_newcomer_and_the_node_stays_verified(
    tpm: SoftwareTpm, tpm_ca: LocalCa, tmp_path: Path
) -> None:
    with (
        serving(tmp_path / "verifier", tpm_ca, max_connections=20) as live,
        running(tpm, live, tmp_path) as (process, node_id),
        ExitStack() as stack,
    ):
        within(10, lambda: live.holds(node_id))
        for _ in range(18):
            known = stack.enter_context(live.connected())
            assert known.get("/v1/nodes").status_code == 200
        # The node has the other two.
        assert verdict(live) == "affirming"
        log = log_of(process)
    failed = [line for line in log.splitlines() if "attest_now_failed" in line]
    assert len(failed) == 1 and ReasonCode.VERIFIER_UNREACHABLE.value in failed[0]
    assert "attestation_failed" not in log


def test_a_node_that_is_told_not_to_holds_no_request(tpm: SoftwareTpm, live: LiveVerifier, tmp_path: Path) -> None:
    with running(tpm, live, tmp_path, attest_now=False) as (process, node_id):
        time.sleep(1)
        assert not live.holds(node_id)
        assert "attested verdict=affirming" in log_of(process)
