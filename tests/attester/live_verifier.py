"""The real verifier over TLS on loopback, for the attester's whole flow."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
from structlog.testing import capture_logs

from edges.listening import listening_sockets
from nodewarden_demo.software_tpm import LocalCa
from tests.attester.machine import VERIFIER_ID
from tests.forge.baselines import document
from verifier.clock import SystemClock
from verifier.roles import Role, create_tokens
from verifier.server import Verifier, build_verifier, server_of
from verifier.settings import Settings
from verifier.wire.messages import format_time


@dataclass(frozen=True, slots=True)
class LiveVerifier:
    """A verifier that serves; `url` by the CA in `ca_file`."""

    url: str
    ca_file: Path
    verifier: Verifier
    operator_token: str
    loop: asyncio.AbstractEventLoop

    def reload_baselines(self) -> None:
        """As SIGHUP does: in the server's thread, when it next turns."""
        self.loop.call_soon_threadsafe(self.verifier.reload_baselines)

    def holds(self, node_id: str) -> bool:
        """Whether the node has a request held."""
        return node_id in self.verifier.service.wanted._waiting

    def connected(self) -> httpx.Client:
        """The operator, on a connection that stays open as long as a test wants."""
        headers = {"authorization": f"Bearer {self.operator_token}"}
        return httpx.Client(base_url=self.url, verify=_context(self.ca_file), headers=headers)

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """The operator's request."""
        with self.connected() as http:
            response = http.request(method, path, json=body)
            assert response.is_success, response.text
            return dict(response.json())

    def list_node(self, name: str, *ek_public_key_sha256: str) -> None:
        """The inventory has `name` with these EKs."""
        eks = [{"publicKeySha256": digest} for digest in ek_public_key_sha256]
        entry = {"nodeName": name, "tenant": "ml", "cohort": "prod-1", "eks": eks}
        self.ask("POST", "/v1/inventory", {"entries": [entry]})


def _context(ca_file: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(ca_file))


@contextmanager
def serving(directory: Path, ca: LocalCa, **changes: Any) -> Iterator[LiveVerifier]:
    """A verifier whose state lies in `directory`, which trusts TPMs of `ca` and has one baseline for `ml`/`prod-*`."""
    for name in ("baselines", "endorsements/roots", "endorsements/intermediates"):
        (directory / name).mkdir(parents=True)
    baseline = document()
    now = datetime.fromtimestamp(SystemClock().now_ms() / 1000, UTC)
    baseline["metadata"]["notBefore"] = format_time(now - timedelta(days=1))
    baseline["metadata"]["expires"] = format_time(now + timedelta(days=1))
    (directory / "baselines/test.yaml").write_text(json.dumps(baseline))
    (directory / "endorsements/roots/root.pem").write_bytes(ca.root_pem)
    (directory / "endorsements/intermediates/issuer.pem").write_bytes(ca.issuer_pem)
    create_tokens(directory / "tokens.json", {"operator": (Role.OPERATOR, directory / "operator.token")})
    settings = Settings(
        issuer=VERIFIER_ID,
        audience="cluster",
        tls_dir=directory / "tls",
        keys_dir=directory / "keys",
        database=directory / "verifier.db",
        baselines_dir=directory / "baselines",
        endorsements_dir=directory / "endorsements",
        tokens_file=directory / "tokens.json",
        audit_checkpoint_file=directory / "checkpoints.jsonl",
        **changes,
    )
    verifier = build_verifier(settings, SystemClock())
    (listener,) = listening_sockets("127.0.0.1", 0)
    server = server_of(verifier, [listener])
    url = f"https://127.0.0.1:{listener.getsockname()[1]}"
    thread = threading.Thread(target=server.run)
    # Captured: the service logs in this process, where commands under test print.
    with capture_logs():
        thread.start()
        try:
            deadline = time.monotonic() + 20
            while not server.started and thread.is_alive() and time.monotonic() < deadline:
                time.sleep(0.01)
            assert server.started
            token = (directory / "operator.token").read_text().strip()
            loop = server.servers[0].get_loop()
            yield LiveVerifier(url, directory / "tls/ca.pem", verifier, token, loop)
            # As the real server does when it stops.
            loop.call_soon_threadsafe(verifier.let_go)
        finally:
            server.should_exit = True
            thread.join(20)
            verifier.close()
