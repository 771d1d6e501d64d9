"""The commands, and the real server that they start: over TLS, by its own CA, until SIGTERM."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from edges.http_protocol import MAX_HEAD_BYTES
from tests.forge import baselines
from tests.verifier import fleet
from verifier import node_commands
from verifier.admin_client import AdminClient
from verifier.audit_commands import audit_app
from verifier.commands import verifier_app
from verifier.first_start import initialise
from verifier.inventory import load_inventory
from verifier.server import build_verifier, server_config
from verifier.settings import MAX_RESULT_SECONDS, load_settings
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence, Refusal, Rejection, Unavailable

RUN = CliRunner()
ROOT = Path(__file__).parent.parent.parent


@dataclass(frozen=True)
class Served:
    """A verifier in a process of its own."""

    directory: Path
    port: int
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}"

    @property
    def context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.directory / "tls/ca.pem"))

    def options(self, role: str = "operator") -> list[str]:
        """What every `nodes` and `inventory` command is told."""
        token = self.directory / "tokens" / f"{role}.token"
        return ["--url", self.url, "--ca", str(self.directory / "tls/ca.pem"), "--token-file", str(token)]

    def connect(self) -> ssl.SSLSocket:
        """A TLS connection."""
        return self.context.wrap_socket(
            socket.create_connection(("127.0.0.1", self.port), 5), server_hostname="localhost"
        )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def serving(directory: Path, settings: str = "", **environment: str) -> Iterator[Served]:
    """`nodewarden verifier init` and `serve`, until the end of the block."""
    port = _free_port()
    made = RUN.invoke(
        verifier_app,
        ["init", "--dir", str(directory), "--issuer", "https://verifier.example", "--port", str(port)],
    )
    assert made.exit_code == 0, made.output
    with (directory / "verifier.yaml").open("a") as file:
        file.write(settings)
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "nodewarden", "verifier", "serve", "--config", str(directory / "verifier.yaml")],
            stderr=log,
            cwd=ROOT,
            env={**os.environ, **environment},
        )
    served = Served(directory, port, process)
    try:
        _await(served)
        yield served
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        finally:
            process.kill()
            process.wait()


def _await(served: Served) -> None:
    for _ in range(150):
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{served.url}/readyz", verify=served.context).status_code == 200:
                return
        assert served.process.poll() is None, (served.directory / "log").read_text()
        time.sleep(0.1)
    raise TimeoutError("the verifier does not start")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("served") / "v") as running:
        yield running


def test_a_first_start_makes_files_that_only_the_owner_reads(served: Served) -> None:
    private = ["verifier.yaml", "tokens.json", "tls/ca.key", "tls/server.key", "keys/0001.pem", "verifier.db"]
    private += [f"tokens/{role}.token" for role in ("viewer", "operator", "approver", "machine")]
    assert {oct((served.directory / name).stat().st_mode & 0o777) for name in private} == {"0o600"}
    again = RUN.invoke(verifier_app, ["init", "--dir", str(served.directory), "--issuer", "x"])
    assert isinstance(again.exception, MalformedEvidence)


def test_nodes_and_inventory_work_over_tls_with_a_token(served: Served, tmp_path: Path) -> None:
    file = tmp_path / "inventory.yaml"
    file.write_text(
        "entries:\n  - nodeName: worker-1\n    tenant: ml\n    cohort: prod-a\n"
        f"    eks:\n      - publicKeySha256: '{'11' * 32}'\n"
    )
    added = ["add", "worker-2", "--tenant", "ml", "--cohort", "prod-a", "--certificate-sha256", "22" * 32]
    for arguments in (["import", str(file)], added):
        done = RUN.invoke(node_commands.inventory_app, [*served.options(), *arguments])
        assert done.exit_code == 0, done.exception
    listed = RUN.invoke(node_commands.inventory_app, [*served.options(), "list", "--json"])
    assert [entry["nodeName"] for entry in json.loads(listed.output)["entries"]] == ["worker-1", "worker-2"]
    assert "worker-2" in RUN.invoke(node_commands.inventory_app, [*served.options(), "list"]).output
    nodes = RUN.invoke(node_commands.nodes_app, [*served.options("viewer"), "list", "--json"])
    assert json.loads(nodes.output) == {"nodes": []}
    for command in ("show", "explain", "approve", "revoke", "forget"):
        unknown = RUN.invoke(node_commands.nodes_app, [*served.options(), command, "nobody"])
        assert isinstance(unknown.exception, Rejection) and unknown.exception.code is ReasonCode.NODE_UNKNOWN
    forbidden = RUN.invoke(node_commands.nodes_app, [*served.options("viewer"), "revoke", "nobody"])
    assert isinstance(forbidden.exception, Rejection) and forbidden.exception.code is ReasonCode.ROLE_FORBIDDEN


def test_the_command_line_gives_one_error_line_and_its_exit_code(served: Served) -> None:
    command = [sys.executable, "-m", "nodewarden", "nodes", *served.options(), "show", "nobody"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("error: node-unknown: ") and done.stderr.count("\n") == 1


def test_a_token_file_that_others_may_read_is_refused(served: Served, tmp_path: Path) -> None:
    loose = tmp_path / "token"
    loose.write_text("x")
    loose.chmod(0o644)
    with pytest.raises(Rejection) as refused:
        AdminClient(served.url, None, loose)
    assert refused.value.code is ReasonCode.FILE_MODE_UNSAFE


def test_a_server_by_another_ca_is_not_spoken_to(served: Served, tmp_path: Path) -> None:
    initialise(tmp_path / "other", "x", "y", "127.0.0.1", 8443, ("localhost",), fleet.NOW)
    token = served.directory / "tokens/viewer.token"
    client = AdminClient(served.url, tmp_path / "other/tls/ca.pem", token)
    with pytest.raises(Unavailable) as refused:
        client.get("/v1/nodes")
    assert refused.value.code is ReasonCode.VERIFIER_UNREACHABLE
    with pytest.raises(MalformedEvidence) as plain:
        AdminClient("http://localhost", None, token)
    assert plain.value.code is ReasonCode.SETTING_INVALID


def test_a_connection_serves_many_requests(served: Served) -> None:
    with served.connect() as connection, connection.makefile("rb") as answers:
        for _ in range(3):
            connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert answers.readline() == b"HTTP/1.1 200 OK\r\n"
            while (line := answers.readline().lower()) != b"\r\n":
                assert line != b"connection: close\r\n"
            answers.read(len(b'{"status": "alive"}'))


def test_the_server_keeps_connections_for_longer_than_an_interval(tmp_path: Path) -> None:
    verifier = fleet.start(tmp_path / "v", fleet.SetClock(), interval_seconds=300)
    config = server_config(verifier)
    verifier.close()
    assert config.timeout_keep_alive > 300
    assert not config.proxy_headers and config.ssl is not None
    assert config.ssl.minimum_version is ssl.TLSVersion.TLSv1_2


def test_the_stream_is_open_to_machines_over_tls(served: Served) -> None:
    token = (served.directory / "tokens/machine.token").read_text().strip()
    headers = {"authorization": f"Bearer {token}"}
    with (
        httpx.Client(base_url=served.url, verify=served.context) as client,
        client.stream("GET", "/v1/results?watch=true", headers=headers) as stream,
    ):
        assert stream.headers["content-type"] == "text/event-stream"
        assert next(stream.iter_lines()) == "event: snapshot-complete"


def test_a_client_that_trickles_is_cut_off_and_others_are_served(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("import edges.http_protocol as p\np.REQUEST_SECONDS = 1\n")
    path = os.pathsep.join([str(site), str(ROOT)])
    with serving(tmp_path / "v", PYTHONPATH=path) as served:
        starts = (
            b"",
            b"GET /healthz HT",
            b"\r\n\r\n",
            b"POST /v1/evidence HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{",
        )
        slow = [served.connect() for _ in starts]
        for connection, start in zip(slow, starts, strict=True):
            connection.sendall(start)
            connection.settimeout(5)
        assert httpx.get(f"{served.url}/healthz", verify=served.context).status_code == 200
        for connection in slow:
            with connection, contextlib.suppress(ConnectionError, ssl.SSLError):
                assert connection.recv(1) == b""


def test_headers_without_end_are_cut_off(served: Served) -> None:
    with served.connect() as connection:
        connection.settimeout(5)
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            connection.sendall(b"GET /healthz HTTP/1.1\r\n")
            for _ in range(8):
                connection.sendall(b"x: " + b"y" * 4096 + b"\r\n")
                time.sleep(0.01)
            assert connection.recv(1) == b""
    assert MAX_HEAD_BYTES < 8 * 4096


def test_a_stopped_server_has_ended_cleanly_and_its_log_is_json(tmp_path: Path) -> None:
    with serving(tmp_path / "v") as served:
        httpx.post(f"{served.url}/v1/evidence", content=b"{", verify=served.context)
        (served.directory / "baselines/bad.yaml").write_text("no: baseline\n")
        served.process.send_signal(signal.SIGHUP)
        time.sleep(0.5)
    assert served.process.returncode == 0
    lines = [json.loads(line) for line in (tmp_path / "v/log").read_text().splitlines()]
    events = {line["event"] for line in lines}
    assert {"verifier_started", "request_refused", "baselines_refused"} <= events
    proved = RUN.invoke(audit_app, ["verify", "--config", str(tmp_path / "v/verifier.yaml"), "--json"])
    assert json.loads(proved.output)["unanchored"] == 0
    checkpoints = ["--checkpoint", str(tmp_path / "v/audit-checkpoints.jsonl")]
    proved = RUN.invoke(audit_app, ["verify", "--config", str(tmp_path / "v/verifier.yaml"), *checkpoints])
    assert "proved 1 rows" in proved.output
    exported = RUN.invoke(audit_app, ["export", "--config", str(tmp_path / "v/verifier.yaml")])
    assert json.loads(exported.output)["record"]["kind"] == "refusals"
    migrated = RUN.invoke(verifier_app, ["migrate", "--config", str(tmp_path / "v/verifier.yaml")])
    assert migrated.output == "schema 1 -> 1\n"


def test_a_second_verifier_on_one_port_ends_with_a_reason_and_touches_nothing(served: Served, tmp_path: Path) -> None:
    initialise(tmp_path / "w", "x", "y", "127.0.0.1", served.port, ("localhost",), fleet.NOW)
    command = [sys.executable, "-m", "nodewarden", "verifier", "serve", "--config", str(tmp_path / "w/verifier.yaml")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 3 and done.stderr.startswith(f"error: {ReasonCode.ADDRESS_UNAVAILABLE.value}: ")
    assert "verifier_started" not in done.stderr and not (tmp_path / "w/verifier.db").exists()
    events = [json.loads(line)["event"] for line in (served.directory / "log").read_text().splitlines()]
    assert events.index("verifier_started") < events.index("verifier_ready")


def test_a_verifier_with_a_bad_baseline_does_not_start(tmp_path: Path) -> None:
    clock = fleet.SetClock()
    settings = fleet.make_settings(tmp_path / "v", clock)
    fleet.write_baseline(settings.baselines_dir, name="same-name-and-version.yaml")
    for broken in (None, baselines.document() | {"extra": 1}):
        if broken is not None:
            fleet.write_baseline(settings.baselines_dir, broken, "same-name-and-version.yaml")
        with pytest.raises(MalformedEvidence) as refused:
            build_verifier(settings, clock)
        assert refused.value.code is ReasonCode.BASELINE_INVALID


@pytest.mark.parametrize(
    "line",
    [
        "unknown: 1",
        "interval_seconds: 5",
        "interval_seconds: '60'",
        "issuer: ''",
        "audience: a\naudience: b",
        "tls_certificate: only-one.pem",
        "admission: anyone",
        "profile: other",
        "not yaml: [",
    ],
)
def test_settings_of_another_form_are_refused(tmp_path: Path, line: str) -> None:
    initialise(tmp_path / "v", "x", "y", "127.0.0.1", 8443, ("localhost",), fleet.NOW)
    path = tmp_path / "v/verifier.yaml"
    settings = load_settings(path)
    assert settings.database == tmp_path / "v/verifier.db" and settings.nonce_seconds == 120
    with path.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(Refusal) as refused:
        load_settings(path)
    assert refused.value.code is ReasonCode.SETTING_INVALID
    assert MAX_RESULT_SECONDS == 600


def test_settings_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    with pytest.raises(Unavailable) as refused:
        load_settings(tmp_path / "absent.yaml")
    assert refused.value.code is ReasonCode.FILE_UNREADABLE


def test_an_inventory_file_is_read_strictly() -> None:
    with pytest.raises(MalformedEvidence) as refused:
        load_inventory("entries: []\n", "inventory.yaml")
    assert refused.value.code is ReasonCode.SCHEMA_MISMATCH
