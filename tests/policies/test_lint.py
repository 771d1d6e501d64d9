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
from policies.lint import advise, lint
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


@pytest.mark.parametrize(
    "key",
    [
        "init", "lockdown", "ima-policy", "systemd.debug-shell", "module.sig-enforce", "lsm", "root", "resume",
        "initcall_blacklist", "systemd.set_credential", "systemd.import_credentials", "rd.systemd.unit",
        "systemd.setenv", "kgdboc", "acpi_rsdp", "modprobe.blacklist", "bootconfig", "dyndbg", "ip", "rd.luks.key",
        "netconsole", "boot-image", "a_key_of_tomorrow",
    ],
)  # fmt: skip
def test_a_key_that_is_not_known_to_be_harmless_may_not_be_ignored(key: str) -> None:
    changes = _cmdline(ignoreKeys=["BOOT_IMAGE", key], require=["x=1"], forbid=["y"])
    assert _codes(changes) == [PolicyCode.IGNORED_KEY_UNSAFE]


@pytest.mark.parametrize("key", ["BOOT_IMAGE", "quiet", "crashkernel", "net.ifnames", "transparent-hugepage"])
def test_a_harmless_key_may_be_ignored(key: str) -> None:
    assert _codes(_cmdline(ignoreKeys=[key])) == []


def _without_files(d: dict[str, Any]) -> None:
    d["bootSets"][0].pop("files")


def _single_image(d: dict[str, Any]) -> None:
    d["bootSets"][0]["images"] = d["bootSets"][0]["images"][2:]


def _requiring(*pcrs: int) -> Change:
    return lambda d: d["evidence"].update(requirePcrReplay=[0, 1, 2, 3, 4, 5, 6, 7, *pcrs])


def test_what_a_loader_or_the_kernel_reads_must_be_judged() -> None:
    assert _codes(_without_files) == [PolicyCode.INITRD_UNJUDGED]
    # A kernel that the firmware starts measures its load options in PCR 9, under a name that is only a hint.
    assert _codes(_without_files, _single_image, _requiring(9, 11, 12, 14)) == [PolicyCode.INITRD_UNJUDGED]


@pytest.mark.parametrize("left_out", [8, 9, 14])
def test_the_pcrs_that_a_boot_through_grub_and_shim_is_judged_by_must_be_required(left_out: int) -> None:
    assert _codes(lambda d: d["evidence"]["requirePcrReplay"].remove(left_out)) == [PolicyCode.PCR_REQUIRED]


@pytest.mark.parametrize("left_out", [9, 11, 12, 14])
def test_the_pcrs_that_a_kernel_started_by_the_firmware_is_judged_by_must_be_required(left_out: int) -> None:
    needed = {9, 11, 12, 14}
    assert _codes(_single_image, _requiring(*needed)) == []
    assert _codes(_single_image, _requiring(*(needed - {left_out}))) == [PolicyCode.PCR_REQUIRED]


@pytest.mark.parametrize("left_out", [11, 12])
def test_command_lines_by_digest_need_the_pcrs_of_systemd_stub(left_out: int) -> None:
    needed = {8, 9, 11, 12, 14}
    by_digest = _cmdline(digests=["ab" * 32])
    assert _codes(by_digest, _requiring(*needed)) == []
    assert _codes(by_digest, _requiring(*(needed - {left_out}))) == [PolicyCode.PCR_REQUIRED]


def test_a_boot_set_that_is_there_twice_is_a_fault() -> None:
    again = lambda d: d["bootSets"].append({**d["bootSets"][0], "id": "again"})  # noqa: E731 - one change
    other = lambda d: d["bootSets"][1].update(files=["ab" * 32])  # noqa: E731 - one change
    assert _codes(again) == [PolicyCode.LIST_DUPLICATE]
    assert _codes(again, other) == []


@pytest.mark.parametrize(("seconds", "codes"), [(60, [PolicyCode.AGE_SHORT]), (119, [PolicyCode.AGE_SHORT]), (120, [])])
def test_an_age_that_one_lost_attempt_exceeds_is_a_warning_and_no_fault(seconds: int, codes: list[PolicyCode]) -> None:
    changed = document()
    changed["evidence"]["maxAgeSeconds"] = seconds
    baseline = load_baseline(json.dumps(changed), "b")
    assert [warning.code for warning in advise(baseline, "b")] == codes
    assert lint(baseline, "b") == ()


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
    short = document()
    short["evidence"]["maxAgeSeconds"] = 60
    (tmp_path / "short.yaml").write_text(json.dumps(short))
    code, _, err = _run(str(tmp_path / "short.yaml"))
    assert (code, err.split(": ")[:2]) == (0, ["warning", PolicyCode.AGE_SHORT])
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
