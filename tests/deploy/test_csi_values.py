"""The chart with secrets as files: a second container on each node that attests, with what it needs and no more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from attester.csi_messages import read_mount_request
from attester.csi_request import wanted_by
from attester.settings import AttesterSettings
from tests.attester.csi_driver import ask
from tests.deploy.rendered import RenderRefusedError, pod_templates, render

EXAMPLES = Path(__file__).parents[2] / "deploy/examples"
ON = ("--set", "attester.csi.enabled=true")


def daemon_set(*arguments: str) -> dict[str, Any]:
    for document in yaml.safe_load_all(render(*arguments)):
        if document and document["kind"] == "DaemonSet":
            spec: dict[str, Any] = document["spec"]["template"]["spec"]
            return spec
    raise AssertionError("no DaemonSet")


def mounts_of(container: dict[str, Any]) -> dict[str, bool]:
    """Whether each path of a container is read-only."""
    return {mount["mountPath"]: mount.get("readOnly", False) for mount in container["volumeMounts"]}


def test_it_is_off_until_it_is_asked_for() -> None:
    spec = pod_templates()["nodewarden-attester"]["spec"]
    assert [container["name"] for container in spec["containers"]] == ["attester"]
    assert not any("secrets-store" in str(volume) for volume in spec["volumes"])


def test_the_provider_reaches_the_tpm_and_the_drivers_folder_and_has_no_token_and_no_logs_of_the_boot() -> None:
    spec = daemon_set(*ON)
    attester, provider = spec["containers"]
    assert provider["command"] == ["nodewarden", "attester", "csi"]
    socket = AttesterSettings.model_fields["csi_socket"].default
    assert mounts_of(provider) == {
        "/etc/nodewarden/attester.yaml": True,
        "/etc/nodewarden/ca": True,
        "/var/lib/nodewarden": True,
        "/run/nodewarden": False,
        str(socket.parent): False,
        "/tmp": False,  # noqa: S108 - a path in a container
        "/dev/tpmrm0": False,
    }
    # So that its doctor sees the folder.
    assert mounts_of(attester)[str(socket.parent)]
    for same in ("image", "env", "resources", "securityContext"):
        assert provider[same] == attester[same]
    volumes = {volume["name"] for volume in spec["volumes"]}
    assert volumes == {mount["name"] for each in (attester, provider) for mount in each["volumeMounts"]}


def test_the_drivers_folder_may_be_another_one() -> None:
    spec = daemon_set(*ON, "--set", "attester.csi.providersDir=/var/run/secrets-store-csi-providers")
    (folder,) = [volume["hostPath"] for volume in spec["volumes"] if volume["name"] == "providers"]
    assert folder == {"path": "/var/run/secrets-store-csi-providers", "type": "DirectoryOrCreate"}
    # The socket's path within the container stays: the settings need no change.
    assert "/etc/kubernetes/secrets-store-csi-providers" in mounts_of(spec["containers"][1])


def test_a_device_plugin_takes_the_privileges_off_the_provider_too() -> None:
    spec = daemon_set(*ON, "--set", "attester.tpmResource=example.org/tpm")
    for container in spec["containers"]:
        assert "privileged" not in container["securityContext"]
        assert container["resources"]["limits"]["example.org/tpm"] == 1
        assert "/dev/tpmrm0" not in mounts_of(container)


@pytest.mark.parametrize(
    "values",
    [
        ("attester.csi.enabled=true", "broker.enabled=false"),
        ("attester.csi.providersDir=relative",),
        ("attester.csi.enabled=sometimes",),
        ("attester.csi.unknown=1",),
    ],
)
def test_values_that_mean_nothing_are_refused(values: tuple[str, ...]) -> None:
    with pytest.raises(RenderRefusedError):
        render(*(part for value in values for part in ("--set", value)))


def test_the_example_class_asks_for_secrets_that_the_example_workload_grants_and_the_example_pod_mounts_it() -> None:
    made, workload, pod = (
        yaml.safe_load((EXAMPLES / name).read_text())
        for name in ("cluster/secret-provider-class.yaml", "cluster/workload.yaml", "pod.yaml")
    )
    assert made["spec"]["provider"] == AttesterSettings.model_fields["csi_socket"].default.stem
    wanted = wanted_by(read_mount_request(ask(**made["spec"]["parameters"]).body()))
    assert set(wanted.names) <= {secret["name"] for secret in workload["spec"]["secrets"]}
    assert wanted.mode == 0o444
    (volume,) = pod["spec"]["volumes"]
    assert volume["csi"]["volumeAttributes"] == {"secretProviderClass": made["metadata"]["name"]}
    assert pod["metadata"]["namespace"] == made["metadata"]["namespace"]
