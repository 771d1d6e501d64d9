"""`nodewarden verifier`: start it for the first time, migrate its database, serve."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from verifier.clock import SystemClock
from verifier.first_start import SETTINGS_FILE, initialise
from verifier.server import serve as serve_verifier
from verifier.settings import load_settings
from verifier.store.migrate import migrate as migrate_database
from verifier.store.migrate import open_engine
from verifier.store.schema import SCHEMA_VERSION

verifier_app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode=None)

Config = Annotated[Path, typer.Option("--config", help="Settings file (YAML).")]


@verifier_app.command()
def serve(config: Config = Path("/etc/nodewarden/verifier.yaml")) -> None:
    """Serve until stopped. SIGHUP reads the baselines again."""
    serve_verifier(load_settings(config))


@verifier_app.command()
def migrate(config: Config = Path("/etc/nodewarden/verifier.yaml")) -> None:
    """Bring the database to this release's schema; a newer one is refused."""
    engine = open_engine(load_settings(config).database)
    try:
        before = migrate_database(engine, SystemClock().now_ms())
    finally:
        engine.dispose()
    typer.echo(f"schema {before} -> {max(before, SCHEMA_VERSION)}")


@verifier_app.command()
def init(
    directory: Annotated[Path, typer.Option("--dir", help="A new directory.")],
    issuer: Annotated[str, typer.Option(help="The verifier id: `iss` of results; attesters must be told it.")],
    audience: Annotated[str, typer.Option(help="The cluster: `aud` of results.")] = "nodewarden",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=1, max=65535)] = 8443,
    name: Annotated[list[str] | None, typer.Option(help="DNS name or address in the certificate; repeat it.")] = None,
) -> None:
    """Make settings, CA, certificate, signing key and one token for each role."""
    names = tuple(name or ("localhost", "127.0.0.1"))
    settings = initialise(directory, issuer, audience, host, port, names, SystemClock().now_ms() // 1000)
    typer.echo(f"settings    {directory / SETTINGS_FILE}")
    typer.echo(f"CA to pin   {settings.tls_dir / 'ca.pem'}")
    typer.echo(f"tokens      {directory / 'tokens'}")
