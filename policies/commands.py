"""`nodewarden policy lint`: the faults of baselines, before anything is judged by them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from policies.compiler import CompiledBaseline, compile_baseline
from policies.faults import BaselineFault, PolicyCode
from policies.lint import advise, lint
from policies.loader import MAX_BASELINE_CHARACTERS, load_baseline
from policies.schema import Baseline

policy_app = typer.Typer(help="Baselines: check, compile, learn.", no_args_is_help=True)


@policy_app.callback()
def _policy() -> None:
    """Keeps `lint` a named command while it is the only one."""


@policy_app.command("lint")
def lint_command(
    files: Annotated[list[Path], typer.Argument(help="Baselines in YAML.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,  # noqa: FBT002 - a typer option
) -> None:
    """Check baselines. Exit 0: no fault. Exit 1: they load, and should not be used. Exit 2: they do not load."""
    reports = [lint_file(file) for file in files]
    for report in reports:
        for fault in report.faults:
            typer.echo(f"error: {fault.code}: {fault.path}: {fault.message}", err=True)
        for warning in report.warnings:
            typer.echo(f"warning: {warning.code}: {warning.path}: {warning.message}", err=True)
        if report.compiled is not None and not report.faults and not as_json:
            compiled = report.compiled
            typer.echo(f"{report.file}: {compiled.name} {compiled.version} sha256:{compiled.sha256}")
    faulty = any(report.faults for report in reports)
    if as_json:
        typer.echo(json.dumps({"ok": not faulty, "baselines": [report.as_json() for report in reports]}, indent=2))
    if any(report.compiled is None for report in reports):
        raise typer.Exit(2)
    raise typer.Exit(1 if faulty else 0)


@dataclass(frozen=True, slots=True)
class LintReport:
    """What was found in one file; `compiled` where it loads."""

    file: str
    compiled: CompiledBaseline | None
    faults: tuple[BaselineFault, ...]
    warnings: tuple[BaselineFault, ...] = ()

    def as_json(self) -> dict[str, object]:
        compiled = self.compiled
        return {
            "file": self.file,
            "name": None if compiled is None else compiled.name,
            "version": None if compiled is None else compiled.version,
            "sha256": None if compiled is None else compiled.sha256,
            "faults": [fault.as_json() for fault in self.faults],
            "warnings": [warning.as_json() for warning in self.warnings],
        }


def lint_file(file: Path) -> LintReport:
    """Every fault of the baseline in `file`."""
    try:
        baseline = read_baseline(file)
    except BaselineFault as fault:
        return LintReport(str(file), None, fault.every)
    return LintReport(str(file), compile_baseline(baseline), lint(baseline, file.name), advise(baseline, file.name))


def read_baseline(file: Path) -> Baseline:
    """The baseline in `file`. Raises BaselineFault, also where the file cannot be read."""
    try:
        with file.open("rb") as stream:
            content = stream.read(4 * MAX_BASELINE_CHARACTERS + 1)
        return load_baseline(content.decode("utf-8"), file.name)
    except OSError as error:
        raise BaselineFault(PolicyCode.YAML_INVALID, str(file), f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BaselineFault(PolicyCode.YAML_INVALID, str(file), "is not UTF-8") from error
