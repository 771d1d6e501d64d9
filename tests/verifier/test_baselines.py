"""The baselines that a verifier takes into force: none that `policy lint` finds a fault in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.forge import baselines
from tests.verifier import fleet
from verifier.baselines import load_baselines
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence

WEAK: dict[str, Callable[[dict[str, Any]], object]] = {
    "a validity of decades": lambda d: d["metadata"].update(expires="2099-01-01T00:00:00Z"),
    "nothing that stops kexec": lambda d: d["bootSets"][0].update(lockdown="cmdline"),
    "an initrd that nothing judges": lambda d: d["bootSets"][0].pop("files"),
    "an ignored key that is not harmless": lambda d: d["bootSets"][0]["cmdline"].update(ignoreKeys=["root"]),
    "a PCR of facts that is not required": lambda d: d["evidence"]["requirePcrReplay"].remove(8),
}


def test_a_baseline_without_a_fault_is_taken(tmp_path: Path) -> None:
    fleet.write_baseline(tmp_path)
    assert [baseline.name for baseline in load_baselines(tmp_path).baselines] == ["test-nodes"]


@pytest.mark.parametrize("name", WEAK)
def test_a_baseline_with_a_fault_of_lint_is_refused_though_it_loads(name: str, tmp_path: Path) -> None:
    document = baselines.document()
    WEAK[name](document)
    assert baselines.compiled(document).name == "test-nodes"
    fleet.write_baseline(tmp_path, document)
    with pytest.raises(MalformedEvidence) as refused:
        load_baselines(tmp_path)
    assert refused.value.code is ReasonCode.BASELINE_INVALID


def test_nodes_are_asked_for_the_pcrs_that_their_baselines_need_beyond_the_usual(tmp_path: Path) -> None:
    document = baselines.document()
    document["bootSets"][0]["cmdline"]["digests"] = ["ab" * 32]
    document["evidence"]["requirePcrReplay"] += [11, 12]
    fleet.write_baseline(tmp_path, document)
    assigned = load_baselines(tmp_path).assigned("ml", "prod-a")
    assert assigned.pcrs == (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 14)
