"""Every boot that our test machines recorded, judged by the baseline of the good one. Needs NODEWARDEN_CORPUS."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.forge import baselines
from tests.forge.vm_recordings import RECORDED_AT, vm_recording
from verifier.recording import appraise_recording, authenticate_recording, recorded_node
from verifier.wire.codes import ReasonCode
from verifier.wire.result import Verdict

_CORPUS = os.environ.get("NODEWARDEN_CORPUS")
if _CORPUS is None and os.environ.get("CI") == "true":
    raise RuntimeError("NODEWARDEN_CORPUS must be set where CI is")
pytestmark = pytest.mark.skipif(_CORPUS is None, reason="NODEWARDEN_CORPUS is not set")
VM = Path(_CORPUS or "absent") / "vm"
CASES = sorted(path.parent.name for path in VM.glob("*/eventlog.bin") if path.stat().st_size)

SAME_BOOT = {
    "first-boot-sb-on", "fw-bootorder", "fw-dbx-hash-added", "ima-grows-1", "ima-grows-2", "python-node", "reboot-1",
    "reboot-2", "sb-on-good", "sb-on-good-again", "tpm-tis",
}  # fmt: skip
"""Boots that differ in nothing that the baseline judges: boot order, a longer dbx, IMA, later reboots."""
OTHER_BOOT: dict[str, ReasonCode] = {
    "fw-other-build": ReasonCode.FIRMWARE_NOT_ALLOWED,
    "sb-off": ReasonCode.SECURE_BOOT_OFF,
    "sb-on-cmdline": ReasonCode.CMDLINE_ARGUMENT_FORBIDDEN,
    "sb-on-efistub": ReasonCode.CMDLINE_ARGUMENT_NOT_ALLOWED,
    "sb-on-initrd-tampered": ReasonCode.BOOT_FILE_NOT_ALLOWED,
    "sb-on-kernel-backports": ReasonCode.BOOT_IMAGE_NOT_ALLOWED,
    "uki-first-boot": ReasonCode.SECURE_BOOT_AUTHORITY_UNTRUSTED,
    "uki-sb-off": ReasonCode.SECURE_BOOT_OFF,
    "uki-sb-on": ReasonCode.SECURE_BOOT_AUTHORITY_UNTRUSTED,
}


def test_every_recorded_boot_has_an_expectation() -> None:
    assert set(CASES) == SAME_BOOT | OTHER_BOOT.keys()


@pytest.mark.parametrize("case", CASES)
def test_a_recorded_boot_is_judged_for_what_it_was(case: str) -> None:
    changed = baselines.document()
    changed["tpm"] = {"ekChain": "inventory"}
    recording = vm_recording(VM / case)
    node = recorded_node(recording, None, RECORDED_AT)
    appraisal = appraise_recording(authenticate_recording(recording, node), (baselines.compiled(changed),), RECORDED_AT)
    if case in SAME_BOOT:
        assert appraisal.failures == ()
        assert appraisal.verdict is Verdict.AFFIRMING
    else:
        assert appraisal.verdict is Verdict.CONTRAINDICATED
        assert OTHER_BOOT[case] in {failure.code for failure in appraisal.failures}
