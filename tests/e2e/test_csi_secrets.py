"""Secrets in pods by the real driver and kubelet of the real node: what a pod reads, and what it is told instead."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from nodewarden_demo.stage import OTHER_CMDLINE
from tests.e2e.brokers import RELEASES
from tests.e2e.client import Client
from tests.e2e.governed import GROUP, Fleet, Governed, a_policy, governed_namespace, is_labelled
from tests.e2e.machines import Machine, nodewarden, start_nodewarden
from tests.e2e.pods import kubectl, wait_for_phase
from tests.e2e.programs import Program, wait_until
from tests.e2e.real_node import DRIVER, RealNode
from tests.e2e.system import SECRET, SECRET_VALUE, System
from verifier.wire.codes import ReasonCode
from verifier.wire.result import Verdict

CSIDRIVER = f"/apis/storage.k8s.io/v1/csidrivers/{DRIVER}"
CLASSES = "/apis/secrets-store.csi.x-k8s.io/v1/namespaces/{}/secretproviderclasses"
STATUSES = "/apis/secrets-store.csi.x-k8s.io/v1/namespaces/{}/secretproviderclasspodstatuses"
CLASS = "model"
SHOWS = "ls -l /secrets/..data/; while :; do cat /secrets/key.bin; echo; sleep 1; done"
ROTATED = b"another key that decrypts the model's weights"


@dataclass
class Site:
    """A governed namespace whose pods of the real node have a volume of the class `model`."""

    system: System
    node: RealNode
    machine: Machine
    governed: Governed
    provider: Program

    @property
    def admin(self) -> Client:
        return self.system.plane.admin

    def make_class(self, name: str, **parameters: str) -> None:
        """A SecretProviderClass that asks for the workload's secret."""
        body = {
            "apiVersion": "secrets-store.csi.x-k8s.io/v1",
            "kind": "SecretProviderClass",
            "metadata": {"name": name},
            "spec": {"provider": "nodewarden", "parameters": {"secrets": SECRET, **parameters}},
        }
        self.admin.must_create(CLASSES.format(self.governed.namespace), body)

    def start(self, name: str, account: str = "llm", of_class: str = CLASS, user: int = 0) -> None:
        """There is a pod that prints its secret every second."""
        self.admin.must_create(self.governed.path(), self._pod(name, account, of_class, user))

    def starts(self, name: str) -> bool:
        """Whether such a pod is let in by now."""
        return self.admin.create(self.governed.path(), self._pod(name)).accepted

    def _pod(self, name: str, account: str = "llm", of_class: str = CLASS, user: int = 0) -> dict[str, Any]:
        container = {
            "name": "main",
            "image": self.node.app_image,
            "imagePullPolicy": "Never",
            "command": ["/bin/sh", "-c", SHOWS],
            "volumeMounts": [{"name": "secrets", "mountPath": "/secrets", "readOnly": True}],
            "securityContext": {"runAsUser": user},
        }
        volume = {"driver": DRIVER, "readOnly": True, "volumeAttributes": {"secretProviderClass": of_class}}
        return self.governed.pod(
            name,
            serviceAccountName=account,
            nodeName=self.node.name,
            containers=[container],
            volumes=[{"name": "secrets", "csi": volume}],
        )

    def log(self, name: str) -> str:
        return kubectl(self.system.plane, "-n", self.governed.namespace, "logs", name).stdout

    def events(self, name: str, reason: str) -> list[str]:
        """The messages of the pod's events of one reason."""
        selector = {"fieldSelector": f"involvedObject.name={name},reason={reason}"}
        path = f"/api/v1/namespaces/{self.governed.namespace}/events"
        return [event["message"] for event in self.admin.request("GET", path, parameters=selector).body["items"]]

    def told(self, name: str, code: ReasonCode, reason: str = "FailedMount") -> str:
        """The event that tells why the pod has no secret, once there is one: with the code and what to do."""
        found: list[str] = []

        def there() -> bool:
            found[:] = [message for message in self.events(name, reason) if f"desc = {code.value}: " in message]
            return bool(found)

        wait_until(f"{name} is told {code.value}", there, 60)
        assert code.remedy in found[0]
        return found[0]

    def waits_for_its_secret(self, name: str) -> bool:
        """Whether the pod has been placed, and its container does not start."""
        status = self.admin.must_get(self.governed.path(name))["status"]
        states = [each["state"].get("waiting", {}).get("reason") for each in status.get("containerStatuses", [])]
        return status["phase"] == "Pending" and states == ["ContainerCreating"]

    def version(self, name: str) -> str:
        """What the driver shows of the pod's secret."""
        path = f"{STATUSES.format(self.governed.namespace)}/{name}-{self.governed.namespace}-{CLASS}"
        (shown,) = self.admin.must_get(path)["status"]["objects"]
        assert shown["id"] == SECRET
        version: str = shown["version"]
        return version

    def leases(self) -> list[dict[str, Any]]:
        found = self.admin.must_get(RELEASES)["items"]
        return [record for record in found if record["spec"]["namespace"] == self.governed.namespace]

    def store(self, content: bytes) -> None:
        """The broker's store has another content."""
        settings = yaml.safe_load(self.system.broker.config.read_text())["secrets"]
        place = ("--store", settings["store"], "--key", settings["key"])
        nodewarden("admission", "secrets", "put", SECRET, *place, "--from-file", "-", content=content)


@pytest.fixture(scope="module")
def machine(fleet: Fleet, node: RealNode) -> Machine:
    return next(each for each in fleet.good if each.node_name == node.name)


@pytest.fixture(scope="module")
def provider(machine: Machine, node: RealNode) -> Iterator[Program]:
    """`nodewarden attester csi` beside the node's attester."""
    place = {"csi_socket": node.providers / "nodewarden.sock"}
    config = machine.folder / "csi.yaml"
    config.touch(mode=0o600)
    settings = machine.settings.model_copy(update=place)
    config.write_text(yaml.safe_dump(settings.model_dump(mode="json", exclude_none=True)))
    started = start_nodewarden(machine.programs, "csi", "attester", "csi", "--config", str(config))
    wait_until("the provider listens", place["csi_socket"].is_socket, 30, machine.programs.require_running)
    yield started
    machine.programs.running.remove(started)
    started.stop()
    assert started.process.returncode == 0
    assert not place["csi_socket"].exists()
    log = started.log.read_text()
    assert SECRET_VALUE.decode() not in log
    assert not re.search(r"eyJ[A-Za-z0-9_-]{20}", log), "a token"


@pytest.fixture
def site(system: System, node: RealNode, machine: Machine, provider: Program, namespace: str) -> Iterator[Site]:
    with _site(system, node, machine, provider, namespace) as made:
        yield made


@contextmanager
def _site(
    system: System, node: RealNode, machine: Machine, provider: Program, namespace: str, **policy: Any
) -> Iterator[Site]:
    admin = system.plane.admin
    name = f"csi-{namespace}"
    admin.must_create(f"{GROUP}/nodetrustpolicies", a_policy(name, **policy))
    with governed_namespace(system, namespace, policy=name, images=(node.app_image,)) as governed:
        made = Site(system, node, machine, governed, provider)
        made.make_class(CLASS)
        try:
            yield made
        finally:
            for pod in admin.must_get(governed.path())["items"]:
                admin.delete(governed.path(pod["metadata"]["name"]), grace_seconds=1)
            wait_until("the pods are gone", lambda: not admin.must_get(governed.path())["items"], 60)
            admin.delete(f"{GROUP}/nodetrustpolicies/{name}")


def test_a_pod_on_the_verified_node_reads_its_secret_from_a_file_and_a_new_content_when_it_is_stored(
    site: Site,
) -> None:
    site.start("llm-0")
    wait_for_phase(site.admin, site.governed.namespace, "llm-0")
    wait_until("the pod shows its secret", lambda: SECRET_VALUE.decode() in site.log("llm-0"), 20)
    assert re.search(r"^-r--------\s+1 0\s+0\s+\d+ .* key.bin$", site.log("llm-0"), re.MULTILINE)
    (lease,) = site.leases()
    assert (lease["spec"]["podName"], lease["spec"]["secret"]) == ("llm-0", SECRET)
    version = site.version("llm-0")
    assert re.fullmatch(r"[0-9a-f]{32}", version)
    site.store(ROTATED)
    try:
        wait_until("the pod shows the new content", lambda: ROTATED.decode() in site.log("llm-0"), 120)
        wait_until("its version is another", lambda: site.version("llm-0") != version, 20)
        # Under the same lease: a new content is no new permission.
        assert [each["metadata"]["uid"] for each in site.leases()] == [lease["metadata"]["uid"]]
        assert site.events("llm-0", "MountRotationComplete")
    finally:
        site.store(SECRET_VALUE)


def test_a_pod_whose_account_no_workload_allows_waits_and_its_event_says_why(site: Site) -> None:
    site.start("other", account="default")
    message = site.told("other", ReasonCode.SECRET_NOT_ALLOWED)
    assert "code = PermissionDenied" in message
    assert site.waits_for_its_secret("other")
    assert not site.leases()


def test_the_token_is_found_where_a_cluster_without_tokens_in_secrets_puts_it(site: Site) -> None:
    site.admin.must_patch(CSIDRIVER, {"spec": {"serviceAccountTokenInSecrets": False}})
    try:
        site.start("llm-0")
        wait_for_phase(site.admin, site.governed.namespace, "llm-0")
        wait_until("the pod shows its secret", lambda: SECRET_VALUE.decode() in site.log("llm-0"), 20)
    finally:
        site.admin.must_patch(CSIDRIVER, {"spec": {"serviceAccountTokenInSecrets": True}})


def test_a_container_that_is_not_root_reads_what_the_class_opens_to_it_and_writes_nothing(site: Site) -> None:
    site.make_class("opened", filePermission="0444")
    site.start("llm-0", of_class="opened", user=65532)
    wait_for_phase(site.admin, site.governed.namespace, "llm-0")
    wait_until("the pod shows its secret", lambda: SECRET_VALUE.decode() in site.log("llm-0"), 20)
    assert re.search(r"^-r--r--r--\s+1 0\s+0\s", site.log("llm-0"), re.MULTILINE)


def test_after_loss_of_trust_a_new_pod_gets_nothing_and_one_that_runs_is_told_and_gets_nothing_new(
    system: System, node: RealNode, machine: Machine, provider: Program, namespace: str
) -> None:
    with _site(system, node, machine, provider, namespace, onLoss={"action": "None"}) as site:
        site.start("before")
        wait_for_phase(site.admin, namespace, "before")
        machine.boot(OTHER_CMDLINE)
        try:
            wait_until("the node is not trusted", lambda: _falls(machine), 30)
            # Placed all the same, and left to run: what withholds the secret is the broker alone.
            path = f"{GROUP}/nodetrustpolicies/csi-{namespace}"
            site.admin.must_patch(path, {"spec": {"enforcementAction": "audit"}})
            wait_until("the pod is placed", lambda: site.starts("after"), 20)
            site.told("after", ReasonCode.NODE_NOT_VERIFIED)
            assert site.waits_for_its_secret("after")
            site.told("before", ReasonCode.NODE_NOT_VERIFIED, "MountRotationFailed")
            assert site.admin.must_get(site.governed.path("before"))["status"]["phase"] == "Running"
        finally:
            machine.boot()
            machine.attest()
            wait_until("the node is labelled", lambda: is_labelled(site.admin, node.name), 30)
        # Nothing had to be done for the pod that waited.
        wait_for_phase(site.admin, namespace, "after", seconds=180)
        wait_until("the pod shows its secret", lambda: SECRET_VALUE.decode() in site.log("after"), 20)


def _falls(machine: Machine) -> bool:
    return machine.attest().verdict is Verdict.CONTRAINDICATED
