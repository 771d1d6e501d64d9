"""The demo keeps every promise that it makes, on a real software TPM with every service as a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROMISED = {
    "enrol": None,
    "attest": None,
    "pod-admitted": None,
    "pod-bound": None,
    "secret-released": None,
    "other-cmdline": "cmdline-argument-forbidden",
    "secure-boot-off": "secure-boot-off",
    "replayed-bundle": "nonce-used",
    "edited-boot-log": "event-digest-mismatch",
    "foreign-ak": "quote-signature-invalid",
    "expired-result": "result-expired",
    "stolen-token": "possession-not-proved",
    "rebooted-tpm": "secret-does-not-open",
    "direct-node-name": "node-name-set-directly",
}


@pytest.mark.swtpm
def test_the_demo_shows_the_flow_and_refuses_each_attack_for_its_own_reason(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nodewarden", "demo", "--json"],
        capture_output=True,
        timeout=120,
        check=False,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(tmp_path), "TMPDIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr.decode()
    told = json.loads(done.stdout)
    steps = {step["name"]: step for step in told["steps"]}
    assert told["ok"] is True
    assert {name: step["ok"] for name, step in steps.items()} == dict.fromkeys(steps, True)
    for name, code in PROMISED.items():
        assert code is None or code in steps[name]["reasons"]
    assert list(tmp_path.iterdir()) == []
