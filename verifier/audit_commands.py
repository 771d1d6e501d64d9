"""`nodewarden audit`: prove the log, and write it out. Both read the database; neither changes it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from verifier.audit_log import read_checkpoint, verify_audit
from verifier.settings import load_settings
from verifier.store.audit_reader import AuditReader
from verifier.tokens import load_signer
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Unavailable

audit_app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode=None)

Config = Annotated[Path, typer.Option("--config", help="The verifier's settings file.")]
_DEFAULT = Path("/etc/nodewarden/verifier.yaml")


@audit_app.command()
def verify(
    config: Config = _DEFAULT,
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="Checkpoints, the last of which must be in the log. Default: those of the settings."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on stdout.")] = False,  # noqa: FBT002 - a switch
) -> None:
    """Recompute the chain against every signed head and the last checkpoint; count the rows that none covers yet.

    Reads only. A database, signing key or checkpoint file that is not there is an error: without the checkpoint, a log
    that was cut off at one of its heads looks whole.
    """
    settings = load_settings(config)
    if not any(settings.keys_dir.glob("*.pem")):
        raise Unavailable(ReasonCode.FILE_UNREADABLE, str(settings.keys_dir), "no key", "the verifier's signing keys")
    jwks = load_signer(settings.keys_dir).jwks
    anchor = read_checkpoint(checkpoint or settings.audit_checkpoint_file)
    store = AuditReader(settings.database)
    try:
        proof = verify_audit(store, jwks, anchor)
    finally:
        store.close()
    if as_json:
        typer.echo(json.dumps(asdict(proof)))
        return
    typer.echo(f"proved {proof.rows} rows, up to row {proof.last_id}; unanchored tail: {proof.unanchored} rows")


@audit_app.command()
def export(
    config: Config = _DEFAULT,
    after: Annotated[int, typer.Option(help="Rows after this one.", min=0)] = 0,
) -> None:
    """All rows, one JSON object a line."""
    store = AuditReader(load_settings(config).database)
    try:
        while page := store.audit_after(after, 1000):
            for row in page:
                typer.echo(json.dumps({"id": row.id, "record": json.loads(row.record)}))
            after = page[-1].id
    finally:
        store.close()
