"""`nodewarden demo`: set the stage in a private directory, tell the story, leave nothing behind."""

from __future__ import annotations

import json
import logging
import tempfile
import time
from pathlib import Path
from typing import Annotated

import structlog
import typer

from nodewarden_demo.stage import open_stage
from nodewarden_demo.steps import Story
from nodewarden_demo.story import tell

_INTRODUCTION = """\
Two machines with a real (software) TPM each, a verifier, an admission webhook and a secret broker, all on this machine.
A TPM keeps running hashes (PCRs) of all that firmware and boot loader start, and can sign them; nobody can set them
back without a reboot. The boot log says what was hashed, so a log that was edited no longer fits. A baseline lists what
a good boot looks like. The boot logs here are genuine: recorded on machines that really booted. Each line is what the
product answered: affirming (trusted), contraindicated (not trusted), or a refusal, with its reason and what to do."""


def demo(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON only.")] = False,  # noqa: FBT002 - a command-line switch
) -> None:
    """The whole flow on this machine: a node earns trust and a secret, then every cheat is refused with its reason."""
    # One step runs the webhook in this process: what it logs belongs to its own log, not between our lines.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    story = Story(quiet=as_json)
    started = time.perf_counter()
    story.note(_INTRODUCTION)
    with tempfile.TemporaryDirectory(prefix="nodewarden-demo-") as directory:
        try:
            with open_stage(Path(directory)) as stage:
                story.note(f"\nThe stage is set ({time.perf_counter() - started:.1f} s).")
                tell(story, stage)
        except (FileNotFoundError, RuntimeError) as error:
            typer.echo(f"error: demo-failed: {error}", err=True)
            raise typer.Exit(3) from error
    if as_json:
        typer.echo(json.dumps({"ok": story.ok, "steps": story.steps}, indent=1))
    else:
        kept = sum(1 for step in story.steps if step["ok"])
        story.note(f"\n{kept} of {len(story.steps)} steps went as promised, in {time.perf_counter() - started:.0f} s.")
    if not story.ok:
        raise typer.Exit(1)
