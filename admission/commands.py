"""Commands of admission: the two services, the sealed store, and the offline test for CI."""

from __future__ import annotations

import json
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import structlog
import typer
from pydantic import TypeAdapter, ValidationError

from admission.assembly import Service, build_broker, build_webhook
from admission.clock import system_clock
from admission.controller.commands import controller, uninstall
from admission.events import configure_logging
from admission.log_lines import LineWriter
from admission.metrics_server import serving_metrics
from admission.offline_test import PodReport, run_offline_test
from admission.sealed_store import MAX_SECRET_BYTES, SealedStore, require_secret_size
from admission.server import server_of, tune_process
from admission.settings import BrokerSettings, Listen, WebhookSettings, load_settings
from edges.private_files import read_bounded
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure, MalformedEvidence, printable
from verifier.wire.release import SecretName

admission_app = typer.Typer(no_args_is_help=True, help="Admission of pods and release of secrets.")
secrets_app = typer.Typer(no_args_is_help=True, help="The broker's sealed secret store.")
admission_app.add_typer(secrets_app, name="secrets")
admission_app.command()(controller)
admission_app.command()(uninstall)

ConfigOption = Annotated[Path, typer.Option("--config", help="Settings file (YAML).")]
StoreOption = Annotated[Path, typer.Option("--store", help="Sealed store file.")]
KeyOption = Annotated[Path, typer.Option("--key", help="Key file of the store, 0600.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Plain JSON on standard output.")]
NameArgument = Annotated[str, typer.Argument(help="Name of the secret.")]


@admission_app.command()
def webhook(config: ConfigOption) -> None:
    """Serve the admission webhook until SIGTERM."""
    lines = configure_logging()
    settings = load_settings(WebhookSettings, config)
    service = build_webhook(settings, system_clock, lambda: lines.lost)
    _serve("webhook", service, settings.listen, lines, settings.metrics)


@admission_app.command()
def broker(config: ConfigOption) -> None:
    """Serve the secret broker until SIGTERM."""
    lines = configure_logging()
    settings = load_settings(BrokerSettings, config)
    service = build_broker(settings, system_clock, lambda: lines.lost)
    _serve("broker", service, settings.listen, lines, settings.metrics)


def _serve(name: str, service: Service, listen: Listen, lines: LineWriter, metrics: Listen | None = None) -> None:
    structlog.get_logger().info("service_starting", service=name, host=listen.host, port=listen.port)
    server = server_of(service.app, listen, service.certificate)
    tune_process()
    # uvicorn stops at SIGTERM and then raises it again: without a handler that would end us before the log is written.
    signal.signal(signal.SIGTERM, lambda *_: None)
    with ExitStack() as stack:
        if metrics is not None and service.figures is not None:
            port = stack.enter_context(serving_metrics(service.figures, metrics))
            structlog.get_logger().info("metrics_ready", host=metrics.host, port=port)
        stack.enter_context(lines.in_background())
        server.run()


@secrets_app.command("put")
def put(
    name: NameArgument,
    store: StoreOption,
    key: KeyOption,
    from_file: Annotated[str, typer.Option("--from-file", help="File with the content; '-' is standard input.")],
) -> None:
    """Store a secret as its next version; the first one makes store and key. The content is never an argument."""
    if from_file == "-":
        content = sys.stdin.buffer.read(MAX_SECRET_BYTES + 1)
    else:
        content = read_bounded(Path(from_file), MAX_SECRET_BYTES)
    # Both before the first store is made: a refused secret leaves nothing behind.
    name = _secret_name(name)
    require_secret_size(name, content)
    sealed = SealedStore(store, key)
    if not sealed.exists():
        sealed = SealedStore.create(store, key)
    stored = sealed.put(name, content)
    typer.echo(f"{stored.name} version {stored.version}")


@secrets_app.command("list")
def list_secrets(store: StoreOption, key: KeyOption, *, as_json: JsonOption = False) -> None:
    """List names and versions; contents are never shown."""
    found = SealedStore(store, key).names()
    if as_json:
        typer.echo(json.dumps({"secrets": [{"name": s.name, "version": s.version} for s in found]}))
        return
    for secret in found:
        typer.echo(f"{secret.name} version {secret.version}")


@secrets_app.command("delete")
def delete(name: NameArgument, store: StoreOption, key: KeyOption) -> None:
    """Delete a secret. Pods that hold it keep what they read."""
    SealedStore(store, key).delete(name)


def _secret_name(name: str) -> str:
    try:
        return TypeAdapter(SecretName).validate_python(name)
    except ValidationError as error:
        wanted = "letters, digits, '.', '_', '-' and '/'"
        raise MalformedEvidence(ReasonCode.SETTING_INVALID, "NAME", name, wanted) from error


def test_manifests(
    manifests: Annotated[list[Path], typer.Option("--filename", "-f", help="Manifest file or directory; repeatable.")],
    nodes: Annotated[Path, typer.Option("--nodes", help="YAML of supposed node verdicts.")],
    *,
    as_json: JsonOption = False,
) -> None:
    """Test pods, workloads and policies against supposed node verdicts, offline: for CI."""
    reports = run_offline_test(manifests, nodes, system_clock())
    if as_json:
        typer.echo(json.dumps({"ok": all(r.ok for r in reports), "pods": [r.as_json() for r in reports]}))
    else:
        for report in reports:
            _print(report)
    if not all(report.ok for report in reports):
        raise typer.Exit(1)


def _print(report: PodReport) -> None:
    kind = f"sensitive ({', '.join(report.policies) or 'no policy'})" if report.sensitive else "not sensitive"
    # Attack: names with line breaks or escape sequences, which forge lines of this report.
    typer.echo(f"{'ok  ' if report.ok else 'FAIL'} pod {printable(report.pod)}: {kind}")
    for failure in report.denied:
        typer.echo(f"       denied: {_line(failure)}")
    for failure in report.warnings:
        typer.echo(f"       warning: {_line(failure)}")
    if report.sensitive:
        typer.echo(f"       may run on: {', '.join(map(printable, report.nodes)) or 'no node'}")
        for node, failures in report.refused.items():
            for failure in failures:
                typer.echo(f"       not on {printable(node)}: {_line(failure)}")


def _line(failure: Failure) -> str:
    return f"{failure.code.value}: {failure.line()}. {failure.code.remedy}"
