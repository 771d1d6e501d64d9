"""No byte of a boot log can change what is believed without being noticed."""

from __future__ import annotations

import pytest

from tests.evidence.logs import vm_log
from verifier.appraisal.boot import measure_boot
from verifier.appraisal.boot_facts import BootFacts
from verifier.wire.failures import MalformedEvidence


def _believed(facts: BootFacts) -> tuple[object, ...]:
    """All facts but hints: no path, name, guessed role, type, nor which digest of PCR 9 is a command line.

    The version counts as one more blob, since a baseline demands it: as a blob it is listed nowhere.
    """
    version = facts.firmware.crtm_version
    code = [blob.digest for blob in facts.firmware.blobs] + ([version.digest] if version is not None else [])
    return (
        facts.secure_boot,
        sorted(code),
        [image.digest for image in facts.images],
        [(line.text, line.digest) for line in facts.command_lines if line.origin.pcr != 9],
        [file.digest for file in facts.files],
        facts.stub_sections,
        facts.loader_commands,
    )


@pytest.mark.parametrize(("case", "stride"), [("sb-off", 1), ("sb-on-good", 5), ("uki-sb-on", 3)])
def test_a_changed_byte_is_refused_or_replays_otherwise_or_contradicts_itself_or_is_a_hint(
    case: str, stride: int
) -> None:
    log = vm_log(case)
    genuine = measure_boot(log, "sha256")
    believed = _believed(genuine.facts)
    outcomes = {"refused": 0, "replays otherwise": 0, "contradicts itself": 0, "hint": 0}
    for position in range(0, len(log), stride):
        changed = bytearray(log)
        changed[position] ^= 1 << position % 8
        try:
            measured = measure_boot(bytes(changed), "sha256")
        except MalformedEvidence:
            outcomes["refused"] += 1
            continue
        if measured.pcrs != genuine.pcrs:
            outcomes["replays otherwise"] += 1
        elif measured.failures:
            outcomes["contradicts itself"] += 1
        else:
            assert _believed(measured.facts) == believed, position
            outcomes["hint"] += 1
    assert all(outcomes.values()), outcomes
