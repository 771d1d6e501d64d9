"""`nodewarden appraise` and `nodewarden policy learn`: what recorded evidence is worth, and what it teaches."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from policies.commands import read_baseline
from policies.compiler import CompiledBaseline, compile_baseline
from verifier.appraisal.appraise import Appraisal
from verifier.appraisal.context import EnrolledNode
from verifier.appraisal.endorsements import Endorsements
from verifier.draft_baseline import Observed, draft_baseline
from verifier.endorsement_files import load_endorsements
from verifier.recording import (
    UNASSIGNED,
    appraise_recording,
    authenticate_recording,
    read_recording,
    recorded_node,
    verify_recording,
)
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence
from verifier.wire.messages import format_time
from verifier.wire.result import BaselineRef, Verdict

policy_app = typer.Typer(help="Baselines: learn from recorded evidence.", no_args_is_help=True)

RecordingArgument = Annotated[Path, typer.Argument(metavar="DIR", help="A recording, as `attester collect` writes it.")]
EndorsementsOption = Annotated[
    Path | None, typer.Option("--endorsements", help="Directory with roots/, intermediates/ and crls/ of TPM makers.")
]
AtOption = Annotated[str | None, typer.Option("--at", help="Judge at this time (YYYY-MM-DDTHH:MM:SSZ).")]


def appraise(
    directory: RecordingArgument,
    baseline: Annotated[Path, typer.Option("--baseline", help="The baseline in YAML.")],
    *,
    at: AtOption = None,
    endorsements: EndorsementsOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Judge recorded evidence by a baseline, at the recorded time. Exit 0 only if it would be affirmed.

    The result is never signed: a recording proves nothing about now.
    """
    compiled = compile_baseline(read_baseline(baseline))
    recording = read_recording(directory)
    now = recording.challenge.issued_at if at is None else _seconds(at)
    node = recorded_node(recording, _endorsements(endorsements), now)
    assumed = UNASSIGNED in (node.tenant, node.cohort)
    if assumed:
        # Whoever names the baseline says that it is this node's: the node itself does not know its assignment.
        node = _assigned(node, compiled)
    appraisal = appraise_recording(authenticate_recording(recording, node), (compiled,), now)
    report = _report(appraisal, compiled, now, assumed=assumed)
    if as_json:
        typer.echo(json.dumps(report, indent=2))
    else:
        typer.echo(f"{appraisal.verdict.value}: {directory} by {compiled.name} {compiled.version}, freshness recorded")
        for failure in appraisal.failures:
            typer.echo(f"  {failure.code.value}: {failure.line()}. {failure.code.remedy}")
    if appraisal.failures:
        first = appraisal.failures[0]
        typer.echo(f"error: {first.code.value}: {first.line()}", err=True)
    raise typer.Exit(0 if appraisal.verdict is Verdict.AFFIRMING else 1)


@policy_app.command("learn")
def learn(
    directories: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Recordings of machines that are good.")],
    *,
    name: Annotated[str, typer.Option("--name", help="The baseline's name.")] = "draft",
    version: Annotated[str, typer.Option("--version", help="The baseline's version.")] = "0.1.0",
    endorsements: EndorsementsOption = None,
) -> None:
    """Print a draft baseline of what recorded machines booted, each fact with its origin.

    Evidence that does not verify teaches nothing: it is refused with its reason.
    """
    trusted = _endorsements(endorsements)
    observed: list[Observed] = []
    newest = 0
    for directory in directories:
        recording = read_recording(directory)
        now = recording.challenge.issued_at
        newest = max(newest, now)
        node = recorded_node(recording, trusted, now)
        observed.append(Observed(directory.name, verify_recording(authenticate_recording(recording, node))))
    typer.echo(draft_baseline(tuple(observed), name, version, newest), nl=False)


def _endorsements(directory: Path | None) -> Endorsements | None:
    return None if directory is None else load_endorsements(directory)


def _assigned(node: EnrolledNode, baseline: CompiledBaseline) -> EnrolledNode:
    """`node` as one that `baseline` applies to."""
    return replace(node, tenant=baseline.tenants.example(), cohort=baseline.cohorts.example())


def _seconds(text: str) -> int:
    try:
        return int(datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp())
    except ValueError as error:
        raise MalformedEvidence(ReasonCode.SETTING_INVALID, "--at", text, "YYYY-MM-DDTHH:MM:SSZ") from error


def _report(appraisal: Appraisal, baseline: CompiledBaseline, now: int, *, assumed: bool) -> dict[str, Any]:
    return {
        "verdict": appraisal.verdict.value,
        "freshness": "recorded",
        "judged_at": _utc(now),
        "assignment": "assumed" if assumed else "recorded",
        "submods": {
            name: {"status": part.verdict.value, "vector": dict(part.vector)}
            for name, part in appraisal.submodules.items()
        },
        "reasons": [failure.as_json() for failure in appraisal.failures],
        "baseline": _reference(BaselineRef(baseline.name, baseline.version, baseline.sha256)),
        "boot_id": appraisal.boot_id,
        "evidence_sha256": appraisal.evidence_sha256,
    }


def _reference(baseline: BaselineRef) -> dict[str, str]:
    return {"name": baseline.name, "version": baseline.version, "sha256": baseline.sha256}


def _utc(seconds: int) -> str:
    return format_time(datetime.fromtimestamp(seconds, UTC))
