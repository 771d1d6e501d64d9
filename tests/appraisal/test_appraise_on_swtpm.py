"""What a node records of itself is what the verifier's commands read: two implementations of one layout."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import nodewarden
from attester.recorder import record
from attester.tpm import open_tpm
from nodewarden_demo.software_tpm import LocalCa, SoftwareTpm
from tests.attester.machine import BOOT_LOG, settings_for
from tests.forge.baselines import document
from tests.forge.evidence import NOW


@pytest.mark.swtpm
def test_what_a_node_collects_is_judged_and_taught_from(tpm: SoftwareTpm, tpm_ca: LocalCa, tmp_path: Path) -> None:
    tpm.extend_boot_log(BOOT_LOG)
    settings = settings_for(tmp_path, tpm.tcti, tmp_path / "ca.pem")
    directory = tmp_path / "recording"
    with open_tpm(tpm.tcti) as device:
        record(device, settings, directory, NOW + 365 * 86400)
    trusted = tmp_path / "makers"
    for folder, content in (("roots", tpm_ca.root_pem), ("intermediates", tpm_ca.issuer_pem)):
        (trusted / folder).mkdir(parents=True)
        (trusted / folder / "ca.pem").write_bytes(content)
    baseline = tmp_path / "baseline.yaml"
    changed = document()
    changed["metadata"] |= {"notBefore": "2027-11-01T00:00:00Z", "expires": "2028-04-01T00:00:00Z"}
    baseline.write_text(json.dumps(changed))
    arguments = ["appraise", str(directory), "--baseline", str(baseline), "--endorsements", str(trusted), "--json"]
    result = CliRunner().invoke(nodewarden.command_line(arguments), arguments)
    report = json.loads(result.stdout)
    assert (result.exit_code, report["verdict"], report["assignment"]) == (0, "affirming", "assumed")
    learning = ["policy", "learn", str(directory), "--endorsements", str(trusted)]
    learnt = CliRunner().invoke(nodewarden.command_line(learning), learning)
    assert learnt.exit_code == 0
    assert '"00001014"' in learnt.stdout
