"""`nodewarden nodes` and `nodewarden inventory`: people's acts, over HTTPS with a bearer token."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from verifier.admin_client import AdminClient
from verifier.inventory import load_inventory
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence, Rejection, Unavailable, printable
from verifier.wire.messages import format_time

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
    if not answer["nodes"]:
        typer.echo("no node has enrolled")
        return
    typer.echo(f"{'NODE':<32} {'VERDICT':<16} {'SINCE':<21} {'STATE':<9} {'COHORT':<16} REASON")
    for node in answer["nodes"]:
        typer.echo(
            f"{node['node_name']:<32} {node['verdict']:<16} {_time(node['issued_at']):<21} {node['state']:<9} "
            f"{node['cohort']:<16} {node['reason'] or '-'}"
        )


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
    typer.echo(f"{answer['node_name']}: {answer['verdict']} ({answer['state']}), since {_time(answer['issued_at'])}")
    _print_reasons(answer["reasons"], "  ")
    for candidate in answer["candidates"]:
        # With one baseline, its failures are the reasons above.
        more = [failure for failure in candidate["failures"] if failure not in answer["reasons"]]
        outcome = "satisfied" if not candidate["failures"] else "failed" if more else "failed, as above"
        typer.echo(f"  baseline {candidate['baseline']} {candidate['version']}: {outcome}")
        _print_reasons(more, "    ")


@nodes_app.command()
def approve(context: typer.Context, node: Node) -> None:
    """Admit a node that waits for a person, or restore a revoked one.

    A name may be another TPM's by now: name the node by the id that you looked at.
    """
    answer = _client(context).post(_path(node, "/approve"))
    typer.echo(f"{answer['node_name']}: {answer['state']}, its EK's public key has SHA-256 {answer['node_id']}")
    if answer["verdict"] != "affirming":
        typer.echo(f"  its verdict stays {answer['verdict']} until its next attestation, which it was asked for")


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
    if not answer["entries"]:
        typer.echo("the inventory is empty")
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
    client = _client(context)
    ek = {name: value for name, value in _ek(public_key_sha256, certificate_sha256).items() if value is not None}
    eks = _listed_eks(client, node_name) or [ek]
    if ek and ek not in eks:
        seen = ", ".join(digest for listed in eks for digest in listed.values())
        wanted = "the TPM that is listed; 'inventory import' lists another, 'nodes replace' exchanges it"
        raise Rejection(ReasonCode.EK_CONFLICT, f"inventory.{node_name}", seen, wanted)
    entry = {"nodeName": node_name, "tenant": tenant, "cohort": cohort, "eks": eks}
    answer = client.post("/v1/inventory", {"entries": [entry]})
    typer.echo(f"written: {answer['written']}")


def _listed_eks(client: AdminClient, node_name: str) -> list[dict[str, Any]]:
    entries = client.get("/v1/inventory")["entries"]
    return next((list(entry["eks"]) for entry in entries if entry["nodeName"] == node_name), [])


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
        shown = _time(value) if name.endswith("_at") else "-" if value is None else printable(str(value))
        typer.echo(f"{name:<18} {shown}")


def _time(seconds: int | None) -> str:
    return "-" if seconds is None else format_time(datetime.fromtimestamp(seconds, UTC))


def _print_reasons(reasons: list[dict[str, Any]], indent: str) -> None:
    for reason in reasons:
        event = "" if reason["event_index"] is None else f", event {reason['event_index']}"
        where = "" if reason["pcr"] is None else f" (PCR {reason['pcr']}{event})"
        seen = "" if reason["observed"] is None else f": {printable(reason['observed'])}"
        typer.echo(f"{indent}{reason['code']}{where} {printable(reason['claim'])}{seen}")
        typer.echo(f"{indent}  -> {printable(reason['remedy'])}")
