"""From the driver's request to a pod's files: the provider at a real TPM, and the real broker over TLS."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from attester import csi_mount
from attester.csi_mount import ObjectVersions
from attester.release import OpenedSecret
from attester.settings import AttesterSettings
from attester.templates import AkType, EkType
from attester.tpm import open_tpm
from attester.tpm_lock import exclusive
from nodewarden_demo.software_tpm import SoftwareTpm
from tests.admission.served import make_certificate, served
from tests.admission.test_broker import SECRET, World
from tests.admission.test_broker_on_swtpm import attested
from tests.admission.world import NODE
from tests.attester.csi_driver import TOKENS, Ask, Driver, Mounted, ask, pod_tokens
from tests.attester.csi_provider import providing, socket_in
from tests.attester.machine import boot, enrolment_of, settings_for, write_enrolment
from verifier.wire.codes import ReasonCode
from verifier.wire.result import AttestationResult, Verdict

pytestmark = pytest.mark.swtpm


@dataclass
class Machine:
    """A verified node with its TPM, its settings, and the broker's world."""

    tpm: SoftwareTpm
    settings: AttesterSettings
    broker: World
    driver: Driver

    def ask(self, *names: str, **changes: Any) -> Ask:
        """A pod's request with the pod's own token."""
        made = ask(secrets=", ".join(names or ("llm/key",)))
        now = self.broker.now
        made.secrets = {TOKENS: pod_tokens(self.broker.token(**{"iat": now, "nbf": now, "exp": now + 3600, **changes}))}
        return made

    def mount(self, *names: str) -> Mounted:
        return self.driver.mount(self.ask(*names))

    def code(self, asked: Ask | None = None) -> ReasonCode:
        """The code for which a mount is refused; its words are one line with a remedy, and without a token."""
        asked = asked or self.ask()
        status, words = self.driver.refusal(asked)
        code = next(code for code in ReasonCode if words.startswith(f"{code.value}: "))
        assert words.endswith(f"; {code.remedy}")
        assert words.isprintable()
        assert not any(token in words for token in (asked.secrets or {}).values())
        assert status in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAVAILABLE)
        return code


@pytest.fixture
def machine(tpm: SoftwareTpm, tmp_path: Path) -> Iterator[Machine]:
    with open_tpm(tpm.tcti) as connection:
        booted = boot(tpm, connection, tmp_path, EkType.RSA_2048, AkType.P_256)
        world = attested(booted, tmp_path)
    certificate = make_certificate(tmp_path / "tls")
    with served(world.app, certificate) as url:
        place = {"broker_url": url, "csi_socket": socket_in(tmp_path)}
        settings = settings_for(tmp_path, tpm.tcti, certificate.certificate, **place)
        write_enrolment(settings.state_dir, enrolment_of(booted))
        with providing(settings, lambda: world.now) as client:
            yield Machine(tpm, settings, world, client)
    world.database.close()


def test_a_pods_secrets_become_files_that_only_their_owner_reads(machine: Machine) -> None:
    assert machine.driver.version()[:2] == ("v1alpha1", "nodewarden")
    mounted = machine.mount("llm/key", "llm/other")
    assert mounted.files == {"key.bin": SECRET, "other": b"other"}
    assert set(mounted.modes.values()) == {0o400}
    assert set(mounted.versions) == {"llm/key", "llm/other"}


def test_asking_again_is_the_same_version_and_another_content_or_lease_is_another(machine: Machine) -> None:
    first = machine.mount()
    assert machine.mount() == first
    machine.broker.store.put("llm/key", b"rotated")
    rotated = machine.mount()
    assert rotated.files == {"key.bin": b"rotated"}
    assert rotated.versions != first.versions
    assert machine.mount().versions == rotated.versions
    machine.broker.now += 3600
    with_result(machine, lambda old: replace(old, issued_at=old.issued_at + 3600, expires_at=old.expires_at + 3600))
    released_anew = machine.mount()
    assert released_anew.files == rotated.files
    assert released_anew.versions != rotated.versions


def with_result(machine: Machine, change: Callable[[AttestationResult], AttestationResult]) -> None:
    """The verifier's word about the node has changed."""
    old = machine.broker.cluster.results[NODE]
    assert isinstance(old, AttestationResult)
    machine.broker.cluster = replace(machine.broker.cluster, results={NODE: change(old)})


def test_a_provider_that_was_started_anew_calls_the_same_content_the_same(machine: Machine) -> None:
    before = machine.mount().versions
    other = machine.settings.model_copy(update={"csi_socket": machine.settings.csi_socket.with_name("other.sock")})
    with providing(other, lambda: machine.broker.now) as again:
        assert again.mount(machine.ask()).versions == before


def test_a_version_is_no_digest_of_the_content_and_no_two_secrets_or_nodes_share_one(tmp_path: Path) -> None:
    versions, elsewhere = ObjectVersions(tmp_path / "a"), ObjectVersions(tmp_path / "b")
    secret = OpenedSecret("a", "a", b"short", "lease-1", 0)
    version = versions.version_of(secret)
    assert version not in hashlib.sha256(b"short").hexdigest()
    assert version == versions.version_of(secret)
    others = [
        versions.version_of(replace(secret, lease_id="lease-2")),
        versions.version_of(replace(secret, content=b"long")),
        elsewhere.version_of(secret),
    ]
    assert len({version, *others}) == 4
    assert (tmp_path / "a/object-version.key").stat().st_mode & 0o777 == 0o600


def test_what_the_broker_denies_reaches_the_pod_with_reason_and_remedy(machine: Machine) -> None:
    assert machine.code(machine.ask("llm/unlisted")) is ReasonCode.SECRET_NOT_ALLOWED
    assert machine.code(machine.ask("llm/key", "llm/unlisted")) is ReasonCode.SECRET_NOT_ALLOWED
    assert machine.code(machine.ask(aud=["api"])) is ReasonCode.TOKEN_INVALID
    assert machine.mount().files == {"key.bin": SECRET}


def test_after_loss_of_trust_asking_again_is_refused_with_the_reason(machine: Machine) -> None:
    assert machine.mount().files == {"key.bin": SECRET}
    with_result(machine, lambda old: replace(old, verdict=Verdict.CONTRAINDICATED))
    assert machine.code() is ReasonCode.NODE_NOT_VERIFIED


def test_after_a_reboot_nothing_is_mounted_until_the_node_has_attested_again(machine: Machine) -> None:
    machine.tpm.restart()
    assert machine.code() is ReasonCode.SECRET_DOES_NOT_OPEN


def test_a_node_that_is_not_enrolled_says_so(machine: Machine) -> None:
    kept = machine.settings.state_dir / "enrolment.json"
    kept.rename(kept.with_name("away"))
    assert machine.code() is ReasonCode.NOT_ENROLLED
    # And goes on by itself once it is.
    kept.with_name("away").rename(kept)
    assert machine.mount().files == {"key.bin": SECRET}


def test_a_mount_waits_for_the_tpm_while_the_daemon_has_it_and_not_for_ever(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csi_mount, "TPM_WAIT_SECONDS", 0.2)
    with exclusive(machine.settings.runtime_dir):
        assert machine.code() is ReasonCode.TPM_UNAVAILABLE
    assert machine.mount().files == {"key.bin": SECRET}


def test_mounts_that_come_together_all_get_their_files_from_a_tpm_without_resource_manager(machine: Machine) -> None:
    with ThreadPoolExecutor(12) as pods:
        mounted = list(pods.map(lambda _: machine.mount(), range(12)))
    assert [each.files for each in mounted] == [{"key.bin": SECRET}] * 12
    with open_tpm(machine.settings.tcti) as connection:
        assert connection.loaded_handles() == 0


def test_the_log_names_pod_secrets_code_and_duration_and_holds_neither_token_nor_secret(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    asked = machine.ask()
    machine.driver.mount(asked)
    refused = machine.ask("llm/unlisted")
    machine.driver.refusal(refused)
    logged = [record.getMessage() for record in caplog.records if record.name == "nodewarden.attester.csi"]
    mounted, denied = [line for line in logged if not line.startswith("serving ")]
    assert mounted.startswith("secrets_mounted pod=ml/llm-0 secrets=llm/key ms=")
    assert denied.startswith(f"mount_refused pod=ml/llm-0 code={ReasonCode.SECRET_NOT_ALLOWED.value} ms=")
    assert "(request " in denied
    for secret in (*(str(a.secrets[TOKENS]) for a in (asked, refused)), repr(SECRET)[2:-1], machine.broker.token()):
        assert secret not in caplog.text
