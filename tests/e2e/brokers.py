"""Runs `nodewarden admission broker` as its ServiceAccount, and asks it for secrets as a node does.

The node's keys are software keys: that a secret opens in one TPM and one boot only is shown in
tests/admission/test_broker_on_swtpm.py; here it matters who is asked, what is recorded, and what is taken back.
"""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from jwcrypto import jwe, jwk

from tests.admission.world import AUDIENCE, ISSUER, EccAk, envelope, jwk_of
from tests.e2e.client import Client
from tests.e2e.control_plane import BROKER_AUDIENCE, ControlPlane
from tests.e2e.install import NAMESPACE
from tests.e2e.machines import answers, nodewarden, start_nodewarden
from tests.e2e.programs import Program, free_port, wait_until
from tests.e2e.verifier_stream import VerifierStream
from verifier.wire.codes import ReasonCode
from verifier.wire.encoding import encode_base64url
from verifier.wire.messages import text_of
from verifier.wire.result import Verdict

OURS = "/apis/nodewarden.dev/v1alpha1"
RELEASES = f"{OURS}/secretreleases"
SECRETS = {"llm/key": b"the key of the model", "llm/other": b"another"}


@dataclass
class NodeKeys:
    """A node's AK and its binding key of this boot."""

    ak: EccAk = field(default_factory=EccAk)
    binding: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))
    node_id: str = ""

    def publish(self, stream: VerifierStream, node: dict[str, Any], verdict: Verdict = Verdict.AFFIRMING) -> None:
        """The verifier's word about the node with these keys."""
        keys = {"binding_key": jwk_of(self.binding.public_key()), "ak_public": text_of(self.ak.public)}
        self.node_id = stream.publish(node, verdict, **keys).node_id

    def opened(self, sealed: dict[str, Any]) -> bytes:
        private = encode_base64url(self.binding.private_numbers().private_value.to_bytes(32))
        token = jwe.JWE()
        token.deserialize(json.dumps(sealed))
        token.decrypt(jwk.JWK(**jwk_of(self.binding.public_key()), d=private))
        content: bytes = token.payload
        return content


@dataclass
class Broker:
    """One broker, which a test may stop and start again."""

    plane: ControlPlane
    config: Path
    url: str
    program: Program | None = None

    def start(self) -> None:
        """It runs and says that it is ready."""
        programs = self.plane.programs
        self.program = start_nodewarden(programs, self.config.stem, "admission", "broker", "--config", str(self.config))
        wait_until("the broker is ready", lambda: answers(self.url, self.plane.ca, "/readyz"), 60)

    def stop(self) -> None:
        if self.program is not None:
            self.plane.programs.running.remove(self.program)
            self.program.stop()
            self.program = None

    def ask(self, node: NodeKeys, pod: dict[str, Any], *secrets: str) -> httpx.Response:
        """What the broker answers to the node's request for the pod's secrets."""
        metadata = pod["metadata"]
        bound = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}
        token = self.plane.token(metadata["namespace"], "default", audience=BROKER_AUDIENCE, bound_to=bound)
        now = int(time.time())  # noqa: TID251 - the broker lives in real time
        asked = envelope(node.ak, token, list(secrets or ["llm/key"]), iat=now, node_id=node.node_id)
        context = ssl.create_default_context(cafile=str(self.plane.ca))
        with httpx.Client(verify=context, trust_env=False, timeout=15) as client:
            return client.post(f"{self.url}/v1/secrets/release", content=asked.model_dump_json().encode())

    def denial(self, node: NodeKeys, pod: dict[str, Any], *secrets: str) -> ReasonCode | None:
        """The code of the first reason for which the broker refuses; None where it releases."""
        answer = self.ask(node, pod, *secrets)
        return None if answer.status_code == 200 else ReasonCode(answer.json()["code"])  # type: ignore[call-arg]  # - looked up by value


@contextmanager
def a_broker(plane: ControlPlane, stream: VerifierStream, folder: Path, name: str = "broker") -> Iterator[Broker]:
    """A broker with SECRETS, not started yet; it stops with the block."""
    store, key, port = folder / f"{name}.sealed", folder / f"{name}.key", free_port()
    for secret, content in SECRETS.items():
        paths = ("--store", str(store), "--key", str(key), "--from-file", "-")
        nodewarden("admission", "secrets", "put", secret, *paths, content=content)
    serving = plane.authority.server(name)
    config = folder / f"{name}.yaml"
    config.touch(mode=0o600)
    settings = {
        "listen": {"host": "127.0.0.1", "port": port},
        "tls": {"certificate": str(serving.certificate), "key": str(serving.key)},
        "kubernetes": {"kubeconfig": str(plane.service_account_kubeconfig(NAMESPACE, "nodewarden-broker"))},
        "results": {"issuer": ISSUER, "audience": AUDIENCE, "jwks_file": str(stream.jwks_file(folder))},
        "state_file": str(folder / f"{name}.db"),
        "secrets": {"store": str(store), "key": str(key)},
    }
    config.write_text(json.dumps(settings))
    broker = Broker(plane, config, f"https://127.0.0.1:{port}")
    try:
        yield broker
    finally:
        broker.stop()


def records(admin: Client) -> list[dict[str, Any]]:
    """Every SecretRelease."""
    found: list[dict[str, Any]] = admin.must_get(RELEASES)["items"]
    return found


def condition_of(record: dict[str, Any], kind: str) -> tuple[str, str] | None:
    """Status and reason of a condition; None where it is not there."""
    conditions = record.get("status", {}).get("conditions", [])
    return next(((c["status"], c["reason"]) for c in conditions if c["type"] == kind), None)
