"""`nodewarden attester run` as a process of its own, against the real verifier."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodewarden_demo.software_tpm import LocalCa, SoftwareTpm
from tests.attester.live_verifier import LiveVerifier, serving
from tests.attester.machine import BOOT_LOG
from tests.attester.test_whole_flow_on_swtpm import config_file, enrol_listed, settings_at

pytestmark = pytest.mark.swtpm
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def live(tmp_path: Path, tpm_ca: LocalCa) -> Iterator[LiveVerifier]:
    with serving(tmp_path / "verifier", tpm_ca) as running:
        yield running


def listening_sockets(process: int) -> set[str]:
    """Inodes of the TCP sockets on which `process` listens."""
    links = [str(link.readlink()) for link in Path(f"/proc/{process}/fd").iterdir() if link.is_symlink()]
    own = {link.removeprefix("socket:[").rstrip("]") for link in links if link.startswith("socket:[")}
    listen_state = "0A"
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return own & {row[9] for row in rows if row[3] == listen_state}


def test_the_service_attests_tells_systemd_listens_on_nothing_and_stops_on_sigterm(
    tpm: SoftwareTpm, live: LiveVerifier, tmp_path: Path
) -> None:
    settings = settings_at(tmp_path, tpm, live)
    tpm.extend_boot_log(BOOT_LOG)
    enrol_listed(settings, live)
    config = config_file(tmp_path, settings)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(20)
        environment = {**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "60000000"}
        process = subprocess.Popen(
            [sys.executable, str(ROOT / "nodewarden.py"), "attester", "run", "--config", str(config)],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert manager.recv(100) == b"READY=1"
            # The first round is over when the loop says that it still turns.
            assert manager.recv(100) == b"WATCHDOG=1"
            verdict = live.ask("GET", "/v1/nodes/node-a")
            assert "affirming" in str(verdict)
            assert listening_sockets(process.pid) == set()
            started = time.monotonic()
            process.send_signal(signal.SIGTERM)
            _, log = process.communicate(timeout=10)
            assert time.monotonic() - started < 5
            assert process.returncode == 0
            assert manager.recv(100) == b"STOPPING=1"
        finally:
            process.kill()
            process.wait()
    assert "attested verdict=affirming reasons=none" in log
    assert log.rstrip().endswith("stopped")


def test_a_service_without_enrolment_ends_at_once_with_its_code(
    tpm: SoftwareTpm, live: LiveVerifier, tmp_path: Path
) -> None:
    config = config_file(tmp_path, settings_at(tmp_path, tpm, live))
    done = subprocess.run(
        [sys.executable, str(ROOT / "nodewarden.py"), "attester", "run", "--config", str(config)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: not-enrolled: ")
