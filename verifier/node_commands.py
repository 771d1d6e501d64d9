"""`nodewarden nodes` and `nodewarden inventory`: people's acts, over HTTPS with a bearer token."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from verifier.admin_client import AdminClient
from verifier.inventory import load_inventory
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence, Unavailable, printable

nodes_app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode=None)
inventory_app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode=None)

Node = Annotated[str, typer.Argument(help="Node name or node id.")]
Json = Annotated[bool, typer.Option("--json", help="JSON on stdout.")]


@dataclass(frozen=True, slots=True)
class _Target:
    """Which verifier, and as whom: options of the group, so that every command has them."""

    url: str
    ca: Path | None
    token_file: Path | None

    def client(self) -> AdminClient:
        if self.token_file is None:
            raise MalformedEvidence(ReasonCode.SETTING_INVALID, "--token-file", "absent", "a file with a bearer token")
        return AdminClient(self.url, self.ca, self.token_file)


def _target(
    context: typer.Context,
    url: Annotated[
        str, typer.Option(envvar="NODEWARDEN_URL", help="The verifier, https://...")
    ] = "https://localhost:8443",
    ca: Annotated[Path | None, typer.Option(envvar="NODEWARDEN_CA", help="Its CA (PEM).")] = None,
    token_file: Annotated[
        Path | None, typer.Option(envvar="NODEWARDEN_TOKEN_FILE", help="Bearer token, in a file of mode 0600.")
    ] = None,
) -> None:
    context.obj = _Target(url, ca, token_file)


nodes_app.callback()(_target)
inventory_app.callback()(_target)


def _client(context: typer.Context) -> AdminClient:
    target = context.obj
    if not isinstance(target, _Target):
        raise TypeError("the group's options are missing")
    return target.client()


def _path(node: str, act: str = "") -> str:
    return f"/v1/nodes/{quote(node, safe='')}{act}"


@nodes_app.command("list")
def list_nodes(context: typer.Context, as_json: Json = False) -> None:  # noqa: FBT002 - a command-line switch
    """All nodes, with their present verdicts."""
    answer = _client(context).get("/v1/nodes")
    if as_json:
        _print_json(answer)
        return
    for node in answer["nodes"]:
        typer.echo(f"{node['node_name']:<32} {node['verdict']:<16} {node['state']:<10} {node['cohort']}")


@nodes_app.command()
def show(context: typer.Context, node: Node, as_json: Json = False) -> None:  # noqa: FBT002 - a command-line switch
    """One node, with its signed result."""
    answer = _client(context).get(_path(node))
    if as_json:
        _print_json(answer)
        return
    _print_fields(answer)


@nodes_app.command()
def explain(context: typer.Context, node: Node, as_json: Json = False) -> None:  # noqa: FBT002 - a command-line switch
    """Why the node is trusted or not, and what to do."""
    answer = _client(context).get(_path(node, "/explain"))
    if as_json:
        _print_json(answer)
        return
    typer.echo(f"{answer['node_name']}: {answer['verdict']} ({answer['state']})")
    _print_reasons(answer["reasons"], "  ")
    for candidate in answer["candidates"]:
        typer.echo(f"  baseline {candidate['baseline']} {candidate['version']}")
        _print_reasons(candidate["failures"], "    ")


@nodes_app.command()
def approve(context: typer.Context, node: Node) -> None:
    """Admit a node that waits for a person, or restore a revoked one."""
    answer = _client(context).post(_path(node, "/approve"))
    typer.echo(f"{answer['node_name']}: {answer['state']}")


@nodes_app.command()
def revoke(context: typer.Context, node: Node) -> None:
    """Refuse the node from now on, and tell every relying party."""
    answer = _client(context).post(_path(node, "/revoke"))
    typer.echo(f"{answer['node_name']}: {answer['state']}")


@nodes_app.command()
def replace(
    context: typer.Context,
    node: Node,
    public_key_sha256: Annotated[str | None, typer.Option(help="The new TPM's EK, by its public key.")] = None,
    certificate_sha256: Annotated[str | None, typer.Option(help="The new TPM's EK, by its certificate.")] = None,
) -> None:
    """After a mainboard change: let the new TPM take the node's name, and the old one nothing."""
    answer = _client(context).post(_path(node, "/replace"), _ek(public_key_sha256, certificate_sha256))
    typer.echo(f"{answer['node_name']}: waits for {answer['waits_for']}")


@nodes_app.command()
def forget(context: typer.Context, node: Node) -> None:
    """Remove a decommissioned node and its inventory entry."""
    answer = _client(context).post(_path(node, "/forget"))
    typer.echo(f"{answer['node_name']}: forgotten")


@inventory_app.command("list")
def list_inventory(context: typer.Context, as_json: Json = False) -> None:  # noqa: FBT002 - a command-line switch
    """All entries."""
    answer = _client(context).get("/v1/inventory")
    if as_json:
        _print_json(answer)
        return
    for entry in answer["entries"]:
        eks = " ".join(f"{kind}={digest}" for ek in entry["eks"] for kind, digest in ek.items())
        typer.echo(f"{entry['nodeName']:<32} {entry['tenant']} {entry['cohort']} {eks}")


@inventory_app.command()
def add(
    context: typer.Context,
    node_name: Annotated[str, typer.Argument(help="Kubernetes node name.")],
    tenant: Annotated[str, typer.Option(help="Whose machine it is.")],
    cohort: Annotated[str, typer.Option(help="Which baselines apply to it.")],
    public_key_sha256: Annotated[str | None, typer.Option(help="The TPM's EK, by its public key.")] = None,
    certificate_sha256: Annotated[str | None, typer.Option(help="The TPM's EK, by its certificate.")] = None,
) -> None:
    """Write down which TPM a machine has, before it enrols."""
    ek = _ek(public_key_sha256, certificate_sha256)
    entry = {"nodeName": node_name, "tenant": tenant, "cohort": cohort, "eks": [ek]}
    answer = _client(context).post("/v1/inventory", {"entries": [entry]})
    typer.echo(f"written: {answer['written']}")


@inventory_app.command("import")
def import_inventory(context: typer.Context, file: Annotated[Path, typer.Argument(help="YAML file.")]) -> None:
    """Write all entries of a YAML file, or none."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Unavailable(ReasonCode.FILE_UNREADABLE, str(file), type(error).__name__) from error
    inventory = load_inventory(text, file.name)
    answer = _client(context).post("/v1/inventory", inventory.model_dump(by_alias=True))
    typer.echo(f"written: {answer['written']}")


def _ek(public_key_sha256: str | None, certificate_sha256: str | None) -> dict[str, Any]:
    return {"publicKeySha256": public_key_sha256, "certificateSha256": certificate_sha256}


def _print_json(answer: dict[str, Any]) -> None:
    typer.echo(json.dumps(answer, indent=1))


def _print_fields(answer: dict[str, Any]) -> None:
    for name, value in answer.items():
        typer.echo(f"{name:<18} {'-' if value is None else printable(str(value))}")


def _print_reasons(reasons: list[dict[str, Any]], indent: str) -> None:
    for reason in reasons:
        where = "" if reason["pcr"] is None else f" (PCR {reason['pcr']})"
        seen = "" if reason["observed"] is None else f": {printable(reason['observed'])}"
        typer.echo(f"{indent}{reason['code']}{where} {printable(reason['claim'])}{seen}")
        typer.echo(f"{indent}  -> {printable(reason['remedy'])}")
