"""`policy lint`: what loads and should still not be used, and the command's answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from policies.commands import policy_app
from policies.compiler import compile_baseline
from policies.faults import PolicyCode
from policies.lint import lint
from policies.loader import load_baseline
from tests.forge.baselines import compiled, document

Change = Callable[[dict[str, Any]], object]


def _codes(*changes: Change) -> list[PolicyCode]:
    changed = document()
    for change in changes:
        change(changed)
    return [fault.code for fault in lint(load_baseline(json.dumps(changed), "b"), "b")]


def _cmdline(**rules: list[str]) -> Change:
    return lambda d: d["bootSets"][0]["cmdline"].update(rules)


def _by_cmdline(d: dict[str, Any]) -> None:
    d["bootSets"][0]["lockdown"] = "cmdline"


def test_a_good_baseline_has_no_fault() -> None:
    assert _codes() == []


def test_a_validity_beyond_180_days_is_too_long() -> None:
    assert _codes(lambda d: d["metadata"].update(expires="2027-04-30T00:00:00Z")) == []
    assert _codes(lambda d: d["metadata"].update(expires="2027-04-30T00:00:01Z")) == [PolicyCode.VALIDITY_TOO_LONG]


def test_a_baseline_that_stops_kexec_in_no_way_is_refused() -> None:
    assert _codes(_by_cmdline) == [PolicyCode.KEXEC_NOT_STOPPED]
    for wrong in ("lockdown", "lockdown=none", "lockdown=integrityx"):
        assert _codes(_by_cmdline, _cmdline(require=[wrong])) == [PolicyCode.KEXEC_NOT_STOPPED]
    for right in ("lockdown=integrity", "lockdown=confidentiality"):
        assert _codes(_by_cmdline, _cmdline(require=[right])) == []


def test_merely_allowing_lockdown_does_not_stop_kexec() -> None:
    assert _codes(_by_cmdline, _cmdline(allow=["lockdown=integrity"])) == [PolicyCode.KEXEC_NOT_STOPPED]


@pytest.mark.parametrize("key", ["init", "lockdown", "ima-policy", "systemd.debug-shell", "module.sig-enforce", "lsm"])
def test_a_key_that_decides_what_runs_may_not_be_ignored(key: str) -> None:
    changes = _cmdline(ignoreKeys=["BOOT_IMAGE", key], require=["x=1"], forbid=["y"])
    assert _codes(changes) == [PolicyCode.IGNORED_KEY_UNSAFE]


def test_an_initrd_that_a_loader_reads_must_be_judged() -> None:
    without = lambda d: d["bootSets"][0].pop("files")  # noqa: E731 - one change
    assert _codes(without) == [PolicyCode.INITRD_UNJUDGED]
    # A unified kernel image carries its initrd inside the image that the firmware checks.
    unified = lambda d: d["bootSets"][0].update(images=d["bootSets"][0]["images"][2:])  # noqa: E731 - one change
    assert _codes(without, unified) == []


def test_the_example_baseline_is_good_and_says_what_the_tests_say() -> None:
    path = Path(__file__).parent.parent.parent / "policies" / "baselines" / "example.yaml"
    baseline = load_baseline(path.read_text(), path.name)
    assert lint(baseline, path.name) == ()
    same = document()
    same["metadata"] |= {"name": "example", "summary": baseline.metadata.summary}
    assert compile_baseline(baseline).sha256 == compiled(same).sha256


def _run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(policy_app, ["lint", *arguments])
    return result.exit_code, result.stdout, result.stderr


def test_the_command_answers_by_exit_code_and_one_line_for_each_fault(tmp_path: Path) -> None:
    good, weak, broken = (tmp_path / name for name in ("good.yaml", "weak.yaml", "broken.yaml"))
    good.write_text(json.dumps(document()))
    changed = document()
    changed["bootSets"][0]["lockdown"] = "cmdline"
    weak.write_text(json.dumps(changed))
    broken.write_text("kind: [")
    code, out, err = _run(str(good))
    assert (code, err) == (0, "")
    assert "test-nodes 1.0.0 sha256:" in out
    code, _, err = _run(str(good), str(weak))
    assert (code, err.splitlines()[0].split(":")[1].strip()) == (1, PolicyCode.KEXEC_NOT_STOPPED)
    code, _, err = _run(str(good), str(weak), str(broken))
    assert code == 2
    assert len(err.splitlines()) == 2


def test_the_command_reports_as_json(tmp_path: Path) -> None:
    good, missing = tmp_path / "good.yaml", tmp_path / "missing.yaml"
    good.write_text(json.dumps(document()))
    (tmp_path / "latin.yaml").write_bytes(b"summary: \xff")
    code, out, _ = _run("--json", str(good), str(missing), str(tmp_path / "latin.yaml"))
    report = json.loads(out)
    assert code == 2
    assert report["ok"] is False
    assert [entry["name"] for entry in report["baselines"]] == ["test-nodes", None, None]
    assert [fault["code"] for entry in report["baselines"] for fault in entry["faults"]] == [
        PolicyCode.YAML_INVALID,
        PolicyCode.YAML_INVALID,
    ]
