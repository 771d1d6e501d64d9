"""A pod's secrets: asked for in the node's name, opened in its TPM, written where no one else reads."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from jwcrypto.jwk import JWK
from typer.testing import CliRunner

from admission.http_edge import problem
from admission.secret_encryption import BindingKey
from attester.binding_key import boot_key
from attester.commands import attester_app
from attester.templates import AkType, EkType
from attester.tpm import open_tpm
from nodewarden_demo.software_tpm import SoftwareTpm
from tests.attester.machine import boot, enrolment_of, new_nonce, settings_for, write_enrolment
from tests.attester.scripted_server import Received, Scripted, answering
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure, Refusal
from verifier.wire.messages import bytes_of, decode_message
from verifier.wire.release import ReleaseEnvelope, ReleaseRequest
from verifier.wire.request_signature import load_request_key, verify_signed_request
from verifier.wire.signed_request import RequestLabel, SignedRequest

pytestmark = pytest.mark.swtpm
TOKEN = "header.pod-token.signature"
SECRET = b"the model's key"


@dataclass
class World:
    """An enrolled machine, a broker that answers `answer`, and the command line of the node."""

    tpm: SoftwareTpm
    jwk: Mapping[str, str]
    ak_public: bytes
    node_id: str
    directory: Path
    config: Path
    answer: Callable[[Received], Scripted]
    received: list[Received]

    def secret(self, *names: str, out: str = "secrets") -> Any:
        """`nodewarden attester secret`."""
        token_file = self.directory / "token"
        token_file.write_text(TOKEN)
        arguments = ["secret", *names, "--token-file", str(token_file), "--out", str(self.directory / out)]
        return CliRunner().invoke(attester_app, [*arguments, "--config", str(self.config), "--json"])

    def sealed(self, secret: bytes, jwk: Mapping[str, str] | None = None) -> dict[str, Any]:
        """`secret` as the broker's own code encrypts it, for the node's binding key or another."""
        return BindingKey(jwk or self.jwk).encrypt(secret)

    def releases(self, *secrets: tuple[str, str, dict[str, Any]]) -> None:
        """From now on the broker answers with these: name, path, JWE."""
        body = json.dumps(
            {
                "secrets": [
                    {"name": name, "path": path, "jwe": jwe, "lease_id": f"lease-{name}", "expires_at": 2_000_000_000}
                    for name, path, jwe in secrets
                ]
            }
        )
        self.answer = lambda _: Scripted(200, (body.encode(),))


@pytest.fixture
def world(tpm: SoftwareTpm, tmp_path: Path) -> Iterator[World]:
    with open_tpm(tpm.tcti) as connection:
        machine = boot(tpm, connection, tmp_path, EkType.RSA_2048, AkType.P_256)
        boot_key(connection, machine.ak, machine.node_id, machine.runtime)
        nonce = new_nonce()
        verified = machine.verified(machine.collect(nonce), nonce)
        assert verified.binding_key is not None
        jwk = verified.binding_key.jwk
    config = tmp_path / "attester.yaml"
    made = World(tpm, jwk, machine.ak.blob.public, machine.node_id, tmp_path, config, lambda _: Scripted(), [])

    def answer(request: Received) -> Scripted:
        # Looked up at each request: tests change it.
        return made.answer(request)

    with answering(tmp_path / "tls", answer) as broker:
        made.received = broker.received
        settings = settings_for(tmp_path, tpm.tcti, broker.ca_file, broker_url=broker.url)
        write_enrolment(settings.state_dir, enrolment_of(machine))
        names = (
            "verifier_url",
            "verifier_id",
            "ca_file",
            "broker_url",
            "node_name",
            "tcti",
            "state_dir",
            "runtime_dir",
        )
        config.write_text(yaml.safe_dump({name: str(getattr(settings, name)) for name in names}))
        config.chmod(0o600)
        yield made


def test_secrets_are_opened_into_files_of_mode_0600(world: World) -> None:
    world.releases(("model/key", "key", world.sealed(SECRET)), ("other", "other", world.sealed(b"")))
    done = world.secret("model/key", "other")
    assert done.exit_code == 0, done.output
    out = world.directory / "secrets"
    assert {path.name: path.read_bytes() for path in out.iterdir()} == {"key": SECRET, "other": b""}
    assert {path.stat().st_mode & 0o7777 for path in out.iterdir()} == {0o600}
    assert out.stat().st_mode & 0o7777 == 0o700
    # What is printed names files and leases, and holds no secret and no token.
    assert json.loads(done.stdout)["secrets"][0]["lease_id"] == "lease-model/key"
    assert SECRET.decode() not in done.output
    assert TOKEN not in done.output


def test_the_request_is_the_nodes_own_for_this_token_and_these_secrets(world: World) -> None:
    world.releases(("a", "a", world.sealed(SECRET)))
    assert world.secret("a").exit_code == 0
    assert world.secret("a").exit_code == 0
    requests = []
    for received in world.received:
        assert received.path == "/v1/secrets/release"
        envelope = decode_message(ReleaseEnvelope, received.body, "envelope")
        signed = SignedRequest(bytes_of(envelope.body), bytes_of(envelope.signature))
        body = verify_signed_request(load_request_key(world.ak_public), RequestLabel.SECRET_RELEASE, signed)
        requests.append(decode_message(ReleaseRequest, body, "request"))
        assert envelope.token == TOKEN
    assert {request.token_sha256 for request in requests} == {hashlib.sha256(TOKEN.encode()).hexdigest()}
    assert {request.node_id for request in requests} == {world.node_id}
    assert requests[0].secrets == ["a"]
    assert requests[0].jti != requests[1].jti


def refused(world: World, done: Any) -> ReasonCode:
    assert isinstance(done.exception, Refusal), done.output
    out = world.directory / "secrets"
    assert not out.exists() or list(out.iterdir()) == []
    return done.exception.code


@pytest.mark.parametrize("path", ["../key", "/etc/key", "a/b", "", ".", "..", ".hidden", "./../key", "x" * 254, "a\0b"])
def test_a_broker_cannot_choose_a_file_outside_the_directory(world: World, path: str) -> None:
    world.releases(("a", path, world.sealed(SECRET)))
    assert refused(world, world.secret("a")) is ReasonCode.JWE_MALFORMED


def test_two_secrets_for_one_file_are_refused(world: World) -> None:
    world.releases(("a", "key", world.sealed(SECRET)), ("b", "key", world.sealed(b"other")))
    assert refused(world, world.secret("a", "b")) is ReasonCode.JWE_MALFORMED


def test_other_secrets_than_those_asked_for_are_refused(world: World) -> None:
    a, b = (("a", "a", world.sealed(SECRET)), ("b", "b", world.sealed(SECRET)))
    for released, asked in (((b,), ("a",)), ((a, b), ("a",)), ((a,), ("a", "b")), ((a, a), ("a", "b"))):
        world.releases(*released)
        assert refused(world, world.secret(*asked)) is ReasonCode.BROKER_UNREACHABLE


def test_one_secret_that_does_not_open_writes_none(world: World) -> None:
    foreign = JWK.generate(kty="EC", crv="P-256").export_public(as_dict=True)
    foreign = {name: foreign[name] for name in ("kty", "crv", "x", "y")}
    world.releases(("a", "a", world.sealed(SECRET)), ("b", "b", world.sealed(SECRET, foreign)))
    assert refused(world, world.secret("a", "b")) is ReasonCode.SECRET_DOES_NOT_OPEN


def test_after_a_reboot_a_secret_for_the_old_boot_does_not_open(world: World) -> None:
    world.releases(("a", "a", world.sealed(SECRET)))
    world.tpm.reset()
    assert refused(world, world.secret("a")) is ReasonCode.SECRET_DOES_NOT_OPEN


def test_a_brokers_refusal_is_shown_with_its_code(world: World) -> None:
    # The broker's own error body.
    body = bytes(problem(403, (Failure(ReasonCode.NODE_MISMATCH, "token.node", "node-b", "node-a"),), "r-1").body)
    world.answer = lambda _: Scripted(403, (body,))
    assert refused(world, world.secret("a")) is ReasonCode.NODE_MISMATCH
    body = body.replace(ReasonCode.NODE_MISMATCH.value.encode(), b"a-code-of-later")
    assert refused(world, world.secret("a")) is ReasonCode.BROKER_REFUSED


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"a proxy's own page", ReasonCode.BROKER_UNREACHABLE),
        (bytes(problem(503, (Failure(ReasonCode.VIEW_STALE, "view"),), "r-1").body), ReasonCode.VIEW_STALE),
    ],
)
def test_a_broker_that_cannot_answer_now_is_not_called_a_verifier(world: World, body: bytes, code: ReasonCode) -> None:
    world.answer = lambda _: Scripted(503, (body,))
    assert refused(world, world.secret("a")) is code


@pytest.mark.parametrize(
    "names",
    [("bad name!",), ("../a",), ("a", "a"), tuple(f"n{number}" for number in range(33)), ("\ud800",)],
)
def test_names_that_no_request_may_have_are_refused_before_anything_is_asked(
    world: World, names: tuple[str, ...]
) -> None:
    done = world.secret(*names)
    assert isinstance(done.exception, Refusal)
    assert done.exception.code is ReasonCode.SETTING_INVALID
    assert world.received == []


def test_a_pods_token_that_is_missing_or_no_token_is_not_called_the_nodes(world: World) -> None:
    for content, code in (
        (None, ReasonCode.FILE_UNREADABLE),
        (b"", ReasonCode.FILE_UNREADABLE),
        (b"\xff", ReasonCode.TOKEN_INVALID),
    ):
        path = world.directory / "own-token"
        if content is not None:
            path.write_bytes(content)
        arguments = ["secret", "a", "--token-file", str(path), "--out", str(world.directory / "secrets")]
        done = CliRunner().invoke(attester_app, [*arguments, "--config", str(world.config)])
        assert isinstance(done.exception, Refusal)
        assert done.exception.code is code


def test_a_directory_that_others_may_enter_gets_no_secret(world: World) -> None:
    world.releases(("a", "a", world.sealed(SECRET)))
    (world.directory / "open").mkdir(mode=0o755)
    done = world.secret("a", out="open")
    assert isinstance(done.exception, Refusal)
    assert done.exception.code is ReasonCode.FILE_MODE_UNSAFE
    assert list((world.directory / "open").iterdir()) == []
    assert world.received == []


def test_without_a_broker_address_no_secret_is_asked_for(world: World) -> None:
    fields = yaml.safe_load(world.config.read_text())
    del fields["broker_url"]
    world.config.write_text(yaml.safe_dump(fields))
    assert refused(world, world.secret("a")) is ReasonCode.SETTING_INVALID
