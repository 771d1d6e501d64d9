"""The `nodewarden` command line: mounts each part's commands and turns refusals into exit codes.

Exit codes: 0 accepted or done, 1 rejected or denied, 2 malformed input or usage, 3 temporarily unavailable.
A part is imported only when one of its commands is called, so that an image with one part's packages works.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass

import click
import typer
from typer.core import TyperGroup

from policies.faults import BaselineFault
from verifier.wire.failures import MalformedEvidence, Refusal, Rejection, Unavailable

REJECTED, MALFORMED, UNAVAILABLE = 1, 2, 3


@dataclass(frozen=True, slots=True)
class _Mount:
    """Where a top-level command lives; `parts` are `module:attribute` of Typer apps or functions, merged in order."""

    parts: tuple[str, ...]
    short_help: str
    needs: str
    """The extra whose packages the command needs, for the error line."""


_MOUNTS: Mapping[str, _Mount] = {
    "demo": _Mount(
        ("nodewarden_demo.commands:demo",), "The whole flow on this machine, on a real software TPM.", "all"
    ),
    "attester": _Mount(("attester.commands:attester_app",), "Collect and send a node's evidence.", "attester"),
    "verifier": _Mount(("verifier.commands:verifier_app",), "Run the verifier.", "verifier"),
    "nodes": _Mount(("verifier.node_commands:nodes_app",), "Nodes and why they are trusted or not.", "verifier"),
    "inventory": _Mount(("verifier.node_commands:inventory_app",), "Which TPMs may enrol, and as what.", "verifier"),
    "appraise": _Mount(("verifier.policy_commands:appraise",), "Judge recorded evidence by a baseline.", "verifier"),
    "inspect": _Mount(("verifier.inspect_commands:inspect_app",), "Show what a piece of evidence says.", "verifier"),
    "policy": _Mount(
        ("policies.commands:policy_app", "verifier.policy_commands:policy_app"),
        "Write and check baselines.",
        "verifier",
    ),
    "admission": _Mount(("admission.commands:admission_app",), "Run the webhook and the secret broker.", "admission"),
    "test": _Mount(
        ("admission.commands:test_manifests",), "Test manifests against nodes' verdicts, offline.", "admission"
    ),
    "audit": _Mount(("verifier.audit_commands:audit_app",), "Prove and export the audit log.", "verifier"),
}


class _LazyGroup(TyperGroup):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(_MOUNTS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        mount = _MOUNTS.get(cmd_name)
        return None if mount is None else _load(cmd_name, mount)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        with formatter.section("Commands"):
            formatter.write_dl([(name, mount.short_help) for name, mount in _MOUNTS.items()])


def _load(name: str, mount: _Mount) -> click.Command:
    commands = [_part(path) for path in mount.parts]
    first = commands[0]
    if len(commands) > 1 and isinstance(first, TyperGroup):
        for other in commands[1:]:
            if isinstance(other, TyperGroup):
                first.commands.update(other.commands)
    first.name = name
    return first


def _part(path: str) -> click.Command:
    module_name, attribute = path.split(":")
    target = getattr(importlib.import_module(module_name), attribute)
    if isinstance(target, typer.Typer):
        return typer.main.get_group(target)
    app = typer.Typer(add_completion=False)
    app.command()(target)
    return typer.main.get_command(app)


app = typer.Typer(cls=_LazyGroup, add_completion=False, no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def nodewarden() -> None:
    """Sensitive model workloads run, and get their secrets, only on nodes that have proved what they booted."""


def main() -> None:
    """Run the command line; every refusal becomes one line on stderr and its exit code."""
    try:
        app()
    except BaselineFault as fault:
        _stop(fault.code.value, str(fault), MALFORMED)
    except Refusal as refusal:
        _stop(refusal.code.value, refusal.failure.line(), _exit_code(refusal))
    except ModuleNotFoundError as error:
        # The parts are extras: an image may hold one of them only.
        command = next((argument for argument in sys.argv[1:] if argument in _MOUNTS), None)
        if command is None:
            raise
        _stop("part-not-installed", f"{error.name} is missing: install nodewarden[{_MOUNTS[command].needs}]", MALFORMED)


def _exit_code(refusal: Refusal) -> int:
    match refusal:
        case MalformedEvidence():
            return MALFORMED
        case Rejection():
            return REJECTED
        case Unavailable():
            return UNAVAILABLE
        case _:
            raise AssertionError(type(refusal))


def _stop(code: str, line: str, exit_code: int) -> None:
    typer.echo(f"error: {code}: {line}", err=True)
    raise SystemExit(exit_code)


if __name__ == "__main__":
    main()
