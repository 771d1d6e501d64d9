"""The `nodewarden` command line: mounts each part's commands and turns refusals into exit codes.

Exit codes: 0 accepted or done, 1 rejected or denied, 2 malformed input or usage, 3 temporarily unavailable.
A part is imported only when one of its commands is called, so that an image with one part's packages works.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Annotated

import typer

from policies.faults import BaselineFault
from verifier.wire.codes import ReasonCode
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


def command_line(arguments: list[str]) -> typer.Typer:
    """The command line for `arguments`: the part that they name is imported, of the others only the help is there."""
    app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.callback(invoke_without_command=True)(nodewarden)
    chosen = _chosen(arguments)
    for name, mount in _MOUNTS.items():
        if name == chosen:
            _mount(app, name, mount)
        else:
            app.command(name, help=mount.short_help)(_elsewhere)
    return app


def nodewarden(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,  # noqa: FBT002 - a command-line switch
) -> None:
    """Sensitive model workloads run, and get their secrets, only on nodes that have proved what they booted."""
    if version:
        typer.echo(f"nodewarden {metadata.version('nodewarden')}")
        raise typer.Exit


def _elsewhere() -> None:
    raise AssertionError("a command that was not named on the command line")


def _chosen(arguments: list[str]) -> str | None:
    return arguments[0] if arguments and arguments[0] in _MOUNTS else None


def _mount(app: typer.Typer, name: str, mount: _Mount) -> None:
    targets = [_target(path) for path in mount.parts]
    first = targets[0]
    if not isinstance(first, typer.Typer):
        app.command(name)(first)
        return
    if len(targets) == 1:
        app.add_typer(first, name=name, help=mount.short_help)
        return
    merged = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
    for target in targets:
        if isinstance(target, typer.Typer):
            merged.registered_commands.extend(target.registered_commands)
    app.add_typer(merged, name=name, help=mount.short_help)


def _target(path: str) -> typer.Typer | Callable[..., None]:
    module_name, attribute = path.split(":")
    target: typer.Typer | Callable[..., None] = getattr(importlib.import_module(module_name), attribute)
    return target


def main() -> None:
    """Run the command line; every refusal becomes one line on stderr and its exit code."""
    arguments = sys.argv[1:]
    try:
        command_line(arguments)()
    except BaselineFault as fault:
        _stop(fault.code.value, str(fault), MALFORMED)
    except Refusal as refusal:
        _stop(refusal.code.value, refusal.failure.line(), _exit_code(refusal), refusal.code.remedy)
    except ModuleNotFoundError as error:
        # The parts are extras: an image may hold one of them only.
        command = _chosen(arguments)
        if command is None:
            raise
        _stop("part-not-installed", f"{error.name} is missing: install nodewarden[{_MOUNTS[command].needs}]", MALFORMED)
    except Exception as error:  # noqa: BLE001 - the outermost edge: no traceback, which could quote what it handled
        _stop(ReasonCode.INTERNAL_ERROR.value, type(error).__name__, UNAVAILABLE, ReasonCode.INTERNAL_ERROR.remedy)


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


def _stop(code: str, line: str, exit_code: int, remedy: str = "") -> None:
    typer.echo(f"error: {code}: {line}. {remedy}".rstrip(". ") + ("." if remedy else ""), err=True)
    raise SystemExit(exit_code)


if __name__ == "__main__":
    main()
