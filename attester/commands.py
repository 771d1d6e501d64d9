"""`nodewarden attester`: the composition root. Clock, randomness, environment and signals enter here only."""

from __future__ import annotations

import json
import logging
import random
import signal
import sys
import time
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from attester.client import Client, open_client
from attester.daemon import Bell, Service
from attester.doctor import examine
from attester.enrol import enrol as enrol_node
from attester.long_poll import LONGEST_HOLD_SECONDS, LongPoll
from attester.notify import Notifier
from attester.on_demand import on_demand
from attester.pauses import Pauses
from attester.recorder import record
from attester.release import fetch_secrets, read_pod_token, require_names
from attester.rounds import Rounds, attest, enrolled_node, using_tpm
from attester.secret_files import file_names
from attester.settings import DEFAULT_PATH, AttesterSettings, load_settings, process_environment
from edges.private_files import replace_private, require_private_directory
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence
from verifier.wire.result import Verdict

attester_app = typer.Typer(no_args_is_help=True, help="Collect this node's evidence and send it to the verifier.")

ConfigOption = Annotated[Path, typer.Option("--config", help="The attester's settings (YAML).")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@attester_app.command()
def enrol(config: ConfigOption = DEFAULT_PATH, as_json: JsonOption = False) -> None:  # noqa: FBT002 - typer's form of a flag
    """Make an attestation key and enrol this node; an older enrolment is replaced once the verifier accepts."""
    settings = _settings(config)
    with using_tpm(settings) as tpm, _verifier(settings) as client:
        enrolled = enrol_node(tpm, client, settings)
    node = enrolled.enrolment
    fields = {
        "node_id": node.node_id,
        "node_name": node.node_name,
        "admitted": enrolled.admitted,
        "admission": enrolled.admission,
    }
    waits = "" if enrolled.admitted else f"; not admitted yet, see 'nodewarden nodes show {node.node_name}'"
    _print(fields, as_json, f"enrolled {node.node_name} ({node.node_id}) by {enrolled.admission}{waits}")


@attester_app.command()
def once(config: ConfigOption = DEFAULT_PATH, as_json: JsonOption = False) -> None:  # noqa: FBT002 - typer's form of a flag
    """Attest once and show the verdict. Exit code 0 only for affirming."""
    settings = _settings(config)
    node = enrolled_node(settings)
    with _verifier(settings) as client:
        answer = attest(node, client, None, _now)
    lines = [f"verdict: {answer.verdict.value}"]
    lines += [f"  {reason.code}: {reason.claim}: {reason.observed}. {reason.remedy}" for reason in answer.reasons]
    _print(answer.model_dump(mode="json", exclude={"next_challenge"}), as_json, "\n".join(lines))
    if answer.verdict is not Verdict.AFFIRMING:
        raise typer.Exit(1)


@attester_app.command()
def collect(
    out: Annotated[Path, typer.Option("--out", help="Directory for the recording; made, must not exist.")],
    config: ConfigOption = DEFAULT_PATH,
    as_json: JsonOption = False,  # noqa: FBT002 - typer's form of a flag
) -> None:
    """Record evidence for a challenge of our own, for 'appraise' and 'policy learn'; needs no verifier.

    The IMA log is copied beside it where it can be read. It is not judged yet.
    """
    settings = _settings(config)
    with using_tpm(settings) as tpm:
        recording = record(tpm, settings, out, _now())
    ima = "with the IMA log" if recording.ima_log_bytes is not None else f"no IMA log ({recording.ima_log_problem})"
    _print(recording.as_json(), as_json, f"recorded {recording.node_id} in {out}, {ima}")


@attester_app.command()
def run(config: ConfigOption = DEFAULT_PATH) -> None:
    """Attest every interval until SIGTERM. Listens on no port."""
    _log_to_stderr()
    settings = _settings(config)
    node = enrolled_node(settings)
    bell = _stopped_by_signals()
    uniform = random.SystemRandom().uniform

    def pauses() -> Pauses:
        return Pauses(settings.retry_first_seconds, settings.retry_longest_seconds, uniform)

    with ExitStack() as stack:
        rounds = Rounds(node, stack.enter_context(_verifier(settings)), _now)
        early = None
        if settings.attest_now:
            # A connection of its own: the one for evidence must be free when the interval is over.
            timeouts = settings.connect_timeout_seconds, LONGEST_HOLD_SECONDS
            client = stack.enter_context(open_client(settings.verifier_url, settings.ca_file, *timeouts))
            poll = stack.enter_context(LongPoll(client, bell.ring))
            early = on_demand(node, poll, pauses(), _now, time.monotonic)
        Service(rounds, pauses(), uniform, Notifier(process_environment()), bell, early).run()


@attester_app.command()
def csi(config: ConfigOption = DEFAULT_PATH) -> None:
    """Hand pods their secrets as files, for the Secrets Store CSI Driver, until SIGTERM. Listens on a unix socket."""
    # Imported here: gRPC is heavy, and no other command of a node needs it.
    from attester.csi_mount import Mounts  # noqa: PLC0415 - as said
    from attester.csi_server import serve  # noqa: PLC0415 - as said

    _log_to_stderr()
    settings = _settings(config)
    serve(settings.csi_socket, Mounts(settings, _now), _stopped_by_signals())


@attester_app.command()
def doctor(config: ConfigOption = DEFAULT_PATH, as_json: JsonOption = False) -> None:  # noqa: FBT002 - typer's form of a flag
    """Say what works on this machine and what to do about the rest. Exit code 1 when something required does not."""
    checks = examine(_settings(config))
    lines: list[str] = []
    for check in checks:
        mark = "ok  " if check.ok else "FAIL" if check.required else "note"
        lines.append(f"{mark} {check.name}: {check.detail}")
        if check.code is not None:
            lines.append(f"     {check.code.value}: {check.code.remedy}")
    healthy = all(check.ok for check in checks if check.required)
    _print({"ok": healthy, "checks": [check.as_json() for check in checks]}, as_json, "\n".join(lines))
    if not healthy:
        raise typer.Exit(1)


@attester_app.command()
def secret(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Secrets to fetch: all of them, or none.")],
    token_file: Annotated[Path, typer.Option("--token-file", help="The pod's token (audience nodewarden-broker).")],
    out: Annotated[Path, typer.Option("--out", help="Directory (mode 0700) for the opened secrets, on a tmpfs.")],
    config: ConfigOption = DEFAULT_PATH,
    as_json: JsonOption = False,  # noqa: FBT002 - typer's form of a flag
) -> None:
    """Fetch a pod's secrets from the broker, open them in the TPM and write each to a file of mode 0600."""
    settings = _settings(config)
    if settings.broker_url is None:
        raise MalformedEvidence(ReasonCode.SETTING_INVALID, "broker_url", "not set")
    require_names(tuple(names))
    node = enrolled_node(settings)
    require_private_directory(out)
    token = read_pod_token(token_file)
    timeouts = settings.connect_timeout_seconds, settings.request_timeout_seconds
    with open_client(settings.broker_url, settings.ca_file, *timeouts) as broker:
        opened = fetch_secrets(node, broker, token, tuple(names), _now)
    files = [out / name for name in file_names(opened)]
    for file, one in zip(files, opened, strict=True):
        replace_private(file, one.content)
    written = [
        {"name": one.name, "file": str(file), "lease_id": one.lease_id, "expires_at": one.expires_at}
        for file, one in zip(files, opened, strict=True)
    ]
    _print({"secrets": written}, as_json, "\n".join(f"{entry['name']} -> {entry['file']}" for entry in written))


def _log_to_stderr() -> None:
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
    # httpx logs each request's address at INFO, which is ours to say or not.
    logging.getLogger("httpx").setLevel(logging.WARNING)


def _stopped_by_signals() -> Bell:
    bell = Bell()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: bell.stop())
    return bell


def _settings(path: Path) -> AttesterSettings:
    return load_settings(path, process_environment())


def _verifier(settings: AttesterSettings) -> AbstractContextManager[Client]:
    timeouts = settings.connect_timeout_seconds, settings.request_timeout_seconds
    return open_client(settings.verifier_url, settings.ca_file, *timeouts)


def _now() -> int:
    return int(time.time())  # noqa: TID251 - this is the composition root's clock


def _print(fields: dict[str, Any], as_json: bool, text: str) -> None:  # noqa: FBT001 - two forms of one output
    typer.echo(json.dumps(fields, indent=2, sort_keys=True) if as_json else text)
