"""The baselines in force: loaded and compiled from one directory, as a whole or not at all."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from edges.private_files import require_unwritable
from policies.compiler import CompiledBaseline, compile_baseline
from policies.faults import BaselineFault
from policies.lint import lint
from policies.loader import load_baseline
from verifier.wire.challenge import DEFAULT_PCRS
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence, Unavailable

MAX_BASELINES = 1000
DEFAULT_BANK = "sha256"


@dataclass(frozen=True, slots=True)
class AssignedBaselines:
    """What judges one cohort, and what its nodes must quote for it."""

    baselines: tuple[CompiledBaseline, ...]
    pcr_bank: str
    pcrs: tuple[int, ...]


@dataclass(slots=True)
class BaselineSet:
    """All baselines of one load. `assigned` is remembered by tenant and cohort; a set never changes."""

    baselines: tuple[CompiledBaseline, ...]
    _assigned: dict[tuple[str, str], AssignedBaselines] = field(default_factory=dict)

    def assigned(self, tenant: str, cohort: str) -> AssignedBaselines:
        """The baselines that apply to nodes of `tenant` and `cohort`; none is possible, and then nothing affirms."""
        key = (tenant, cohort)
        found = self._assigned.get(key)
        if found is None:
            matching = tuple(baseline for baseline in self.baselines if baseline.applies_to(tenant, cohort))
            bank = matching[-1].pcr_bank if matching else DEFAULT_BANK
            # A challenge names one bank: the newest baseline's.
            pcrs = {pcr for baseline in matching for pcr in baseline.required_pcrs}.union(DEFAULT_PCRS)
            found = self._assigned[key] = AssignedBaselines(matching, bank, tuple(sorted(pcrs)))
        return found


def load_baselines(directory: Path) -> BaselineSet:
    """Every `*.yaml` in `directory`, compiled, ordered by name and version.

    Raises MalformedEvidence `baseline-invalid` naming the file and the fault, also when two files hold one name and
    version; Rejection `file-mode-unsafe`; Unavailable `file-unreadable`. An empty directory gives an empty set: no node
    is affirmed then.
    """
    try:
        paths = sorted(directory.glob("*.yaml"))
        for path in (directory, *paths):
            require_unwritable(path)
        if len(paths) > MAX_BASELINES or not directory.is_dir():
            raise MalformedEvidence(ReasonCode.BASELINE_INVALID, str(directory), f"{len(paths)} files", "a directory")
        compiled = [_load(path) for path in paths]
    except OSError as error:
        raise Unavailable(ReasonCode.FILE_UNREADABLE, str(directory), error.strerror) from error
    names = {(baseline.name, baseline.version) for baseline in compiled}
    if len(names) != len(compiled):
        raise MalformedEvidence(ReasonCode.BASELINE_INVALID, str(directory), "one name and version twice")
    compiled.sort(key=lambda baseline: (baseline.name, tuple(map(int, baseline.version.split(".")))))
    return BaselineSet(tuple(compiled))


def _load(path: Path) -> CompiledBaseline:
    try:
        baseline = load_baseline(path.read_text(encoding="utf-8"), path.name)
        faults = lint(baseline, path.name)
        if faults:
            # What should not be used is not used: nobody reads warnings of a running service.
            raise faults[0]
        return compile_baseline(baseline)
    except (BaselineFault, UnicodeDecodeError) as error:
        raise MalformedEvidence(ReasonCode.BASELINE_INVALID, path.name, str(error)) from error
