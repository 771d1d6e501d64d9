"""The provider between a driver and a broker that misbehaves, too many pods, and its own end."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from jwcrypto.jwk import JWK
from typer.testing import CliRunner

from admission.http_edge import problem
from admission.secret_encryption import BindingKey
from attester import csi_server
from attester.binding_key import boot_key
from attester.commands import attester_app
from attester.settings import AttesterSettings
from attester.templates import AkType, EkType
from attester.tpm import open_tpm
from nodewarden_demo.software_tpm import SoftwareTpm
from tests.attester.csi_driver import TOKEN, Ask, Driver, ask
from tests.attester.csi_provider import Provider, providing, socket_in
from tests.attester.machine import boot, enrolment_of, new_nonce, settings_for, write_enrolment
from tests.attester.scripted_server import Received, Scripted, answering
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure, Refusal

pytestmark = pytest.mark.swtpm
SECRET = b"the model's key"


def now() -> int:
    return 1_800_000_000


@dataclass
class World:
    """A provider with a TPM, and a broker that answers `answer`."""

    settings: AttesterSettings
    binding_key: BindingKey
    received: list[Received]
    driver: Driver | None = None
    lease_id: str = "l"
    answer: Callable[[], Scripted] = Scripted

    def releases(self, *secrets: tuple[str, str], key: BindingKey | None = None, **headers: Any) -> None:
        """From now on the broker answers with these names and paths."""
        released = [
            {"name": name, "path": path, "jwe": (key or self.binding_key).encrypt(SECRET)} for name, path in secrets
        ]
        lease = {"lease_id": self.lease_id, "expires_at": 2_000_000_000}
        body = json.dumps({"secrets": [{**each, **lease} for each in released]})
        self.answer = lambda: Scripted(200, (body.encode(),), **headers)

    def code(self, asked: Ask | bytes | None = None) -> tuple[ReasonCode, grpc.StatusCode]:
        assert self.driver is not None
        status, words = self.driver.refusal(asked or ask())
        assert words.isprintable()
        assert len(words) < 2000
        assert TOKEN not in words
        assert SECRET.decode() not in words
        return next(code for code in ReasonCode if words.startswith(f"{code.value}: ")), status


@pytest.fixture
def idle(tpm: SoftwareTpm, tmp_path: Path) -> Iterator[World]:
    """All but the provider, which is not started."""
    with open_tpm(tpm.tcti) as connection:
        machine = boot(tpm, connection, tmp_path, EkType.RSA_2048, AkType.P_256)
        boot_key(connection, machine.ak, machine.node_id, machine.runtime)
        nonce = new_nonce()
        verified = machine.verified(machine.collect(nonce), nonce)
        assert verified.binding_key is not None
        key = BindingKey(verified.binding_key.jwk)
    made: list[World] = []
    with answering(tmp_path / "tls", lambda _: made[0].answer()) as broker:
        place = {"broker_url": broker.url, "csi_socket": socket_in(tmp_path)}
        settings = settings_for(tmp_path, tpm.tcti, broker.ca_file, **place)
        write_enrolment(settings.state_dir, enrolment_of(machine))
        made.append(World(settings, key, broker.received))
        yield made[0]


@pytest.fixture
def world(idle: World) -> Iterator[World]:
    with providing(idle.settings, now) as client:
        idle.driver = client
        yield idle


def test_a_file_of_a_secret_is_given_as_the_class_says(world: World) -> None:
    assert world.driver is not None
    world.releases(("llm/key", "./key.bin"))
    mounted = world.driver.mount(ask(filePermission="0444"))
    assert (mounted.files, mounted.modes) == ({"key.bin": SECRET}, {"key.bin": 0o444})


def test_a_lease_whose_id_is_no_text_is_no_fault_of_ours(world: World) -> None:
    assert world.driver is not None
    world.lease_id = "\ud800"
    world.releases(("llm/key", "key"))
    assert world.driver.mount(ask()).files == {"key": SECRET}


@pytest.mark.parametrize(
    "path", ["../key", "/etc/key", "a/b", "", ".", "..", "..data", ".hidden", "./../key", "x" * 254, "a\0b", "a\nb"]
)
def test_a_broker_cannot_choose_a_file_outside_the_volume_or_one_of_the_drivers_own(world: World, path: str) -> None:
    world.releases(("llm/key", path))
    assert world.code() == (ReasonCode.JWE_MALFORMED, grpc.StatusCode.INVALID_ARGUMENT)


def test_two_secrets_for_one_file_are_refused(world: World) -> None:
    world.releases(("a", "key"), ("b", "key"))
    assert world.code(ask(secrets="a,b"))[0] is ReasonCode.JWE_MALFORMED


def test_other_secrets_than_those_asked_for_are_refused(world: World) -> None:
    world.releases(("llm/other", "key"))
    assert world.code() == (ReasonCode.BROKER_UNREACHABLE, grpc.StatusCode.UNAVAILABLE)


def test_a_secret_for_another_tpm_does_not_open(world: World) -> None:
    foreign = JWK.generate(kty="EC", crv="P-256").export_public(as_dict=True)
    key = BindingKey({name: foreign[name] for name in ("kty", "crv", "x", "y")})
    world.releases(("llm/key", "key"), key=key)
    assert world.code() == (ReasonCode.SECRET_DOES_NOT_OPEN, grpc.StatusCode.PERMISSION_DENIED)


@pytest.mark.parametrize("body", [b"a proxy's own page", b"\xff" * 100, b"{" * 3_000_000])
def test_an_answer_that_cannot_be_read_is_no_answer(world: World, body: bytes) -> None:
    world.answer = lambda: Scripted(200, (body,))
    assert world.code() == (ReasonCode.BROKER_UNREACHABLE, grpc.StatusCode.UNAVAILABLE)


def test_what_a_broker_says_of_a_refusal_is_bounded_and_one_line(world: World) -> None:
    failure = Failure(ReasonCode.NODE_MISMATCH, "token.node", "node-b\n\x1b[31m", "node-a")
    body = json.loads(bytes(problem(403, (failure,), "r-1").body))
    forged = json.dumps({**body, "detail": "a\nb\x1b" * 512}).encode()
    world.answer = lambda: Scripted(403, (forged,))
    assert world.code() == (ReasonCode.NODE_MISMATCH, grpc.StatusCode.PERMISSION_DENIED)


def test_what_the_driver_sends_wrongly_never_reaches_the_broker(world: World) -> None:
    assert world.code(b"\xff") == (ReasonCode.MOUNT_REQUEST_MALFORMED, grpc.StatusCode.INVALID_ARGUMENT)
    assert world.code(bytes(300 * 1024))[0] is ReasonCode.BODY_TOO_LARGE
    assert world.code(ask(secrets="../x"))[0] is ReasonCode.SETTING_INVALID
    without = ask()
    without.secrets = None
    assert world.code(without) == (ReasonCode.POD_TOKEN_MISSING, grpc.StatusCode.PERMISSION_DENIED)
    assert world.received == []


def test_a_fault_of_ours_hands_out_nothing_and_says_nothing_of_itself(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(_: object) -> None:
        raise ValueError(TOKEN)

    monkeypatch.setattr(csi_server, "write_mount_response", lambda _: b"")
    monkeypatch.setattr(csi_server, "wanted_by", fails)
    assert world.code() == (ReasonCode.INTERNAL_ERROR, grpc.StatusCode.INTERNAL)
    assert TOKEN not in caplog.text


class Held:
    """A broker that answers when it is let."""

    def __init__(self, world: World) -> None:
        self.asked, self.let = threading.Event(), threading.Event()
        world.releases(("llm/key", "key"), before_chunk=self._wait)

    def _wait(self) -> None:
        self.asked.set()
        assert self.let.wait(20)


def test_one_pod_too_many_at_once_is_told_so_and_asks_again(idle: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csi_server, "MAX_MOUNTS", 1)
    with providing(idle.settings, now) as client, ThreadPoolExecutor(1) as pods:
        idle.driver, held = client, Held(idle)
        first = pods.submit(client.mount, ask())
        assert held.asked.wait(20)
        assert idle.code() == (ReasonCode.MOUNTS_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)
        assert client.version()[0] == "v1alpha1"
        held.let.set()
        assert first.result(20).files == {"key": SECRET}
        assert client.mount(ask()).files == {"key": SECRET}


def test_the_end_waits_for_a_mount_in_flight_and_leaves_no_socket(idle: World) -> None:
    provider = Provider(idle.settings, now)
    provider.start()
    with grpc.insecure_channel(f"unix:{idle.settings.csi_socket}") as channel, ThreadPoolExecutor(1) as pods:
        held = Held(idle)
        mount = pods.submit(Driver(channel).mount, ask())
        assert held.asked.wait(20)
        provider.bell.stop()
        held.let.set()
        assert mount.result(20).files == {"key": SECRET}
        provider.stop()
    assert not idle.settings.csi_socket.exists()


def test_a_provider_whose_socket_is_taken_away_ends_so_that_it_is_started_anew(idle: World) -> None:
    provider = Provider(idle.settings, now)
    provider.start()
    with grpc.insecure_channel(f"unix:{idle.settings.csi_socket}") as channel:
        Driver(channel).version()
    idle.settings.csi_socket.unlink()
    provider.bell.ring()
    provider.join(20)
    assert isinstance(provider.error, Refusal)
    assert provider.error.code is ReasonCode.ADDRESS_UNAVAILABLE


def test_without_a_broker_the_command_says_which_setting_is_missing(idle: World, tmp_path: Path) -> None:
    config = tmp_path / "attester.yaml"
    fields = idle.settings.model_copy(update={"broker_url": None}).model_dump(mode="json", exclude_none=True)
    config.write_text(yaml.safe_dump(fields))
    config.chmod(0o600)
    done = CliRunner().invoke(attester_app, ["csi", "--config", str(config)])
    assert isinstance(done.exception, Refusal)
    assert done.exception.code is ReasonCode.SETTING_INVALID
