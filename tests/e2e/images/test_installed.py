"""The installation's own pods, from its own images, on a real node."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nodewarden_demo.stage import OTHER_CMDLINE
from tests.e2e.control_plane import BROKER_AUDIENCE
from tests.e2e.governed import ACCOUNT, API_VERSION, GROUP, POLICY, is_labelled
from tests.e2e.images.installed import Installed
from tests.e2e.install import NAMESPACE
from tests.e2e.machines import ATTESTER_NAMESPACE
from tests.e2e.pods import a_pod, kubectl, pods_path, wait_for_phase
from tests.e2e.programs import wait_until
from tests.e2e.real_node import DRIVER
from verifier.wire.codes import ReasonCode

SPACE, SECRET, VALUE = "ml", "model-key", "the key that decrypts the model's weights"
PARTS = ("verifier", "controller", "webhook", "broker")
KUBELET_RETRIES_SECONDS = 180
"""The attester's pod waits for a ConfigMap that bootstrap.sh makes: the kubelet looks again after at most 122 s."""


def _ready(pod: dict[str, Any]) -> bool:
    conditions = pod["status"].get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _all_ready(product: Installed, namespace: str) -> bool:
    pods = product.pods(namespace)
    return bool(pods) and all(_ready(pod) for pod in pods)


def test_every_part_of_the_chart_runs_with_as_many_pods_as_it_says(product: Installed) -> None:
    wait_until("all pods are ready", lambda: _all_ready(product, NAMESPACE), 60)
    names = [pod["metadata"]["labels"]["app.kubernetes.io/name"] for pod in product.pods(NAMESPACE)]
    assert {name: names.count(name) for name in names} == {
        "nodewarden-verifier": 1,
        "nodewarden-controller": 2,
        "nodewarden-webhook": 3,
        "nodewarden-broker": 1,
    }
    for pod in product.pods(NAMESPACE):
        for status in pod["status"]["containerStatuses"]:
            assert status["restartCount"] == 0, f"{pod['metadata']['name']}: {status}"


@pytest.mark.parametrize("part", PARTS)
def test_a_part_runs_as_nobody_in_particular_and_can_write_only_what_is_mounted(product: Installed, part: str) -> None:
    probe = (
        "import os, pathlib\n"
        "print(os.getuid(), os.getgid())\n"
        "for place in ('/opt/nodewarden/x', '/etc/x', '/x', '/tmp/x'):\n"
        "    try:\n"
        "        pathlib.Path(place).write_text('')\n"
        "        print(place)\n"
        "    except OSError:\n"
        "        pass\n"
        "print(pathlib.Path('/proc/self/status').read_text())\n"
    )
    inside = ("exec", f"deploy/nodewarden-{part}", "-c", part, "--", "python3", "-c", probe)
    first, *rest = product.kubectl("-n", NAMESPACE, *inside).splitlines()
    assert first == "65532 65532"
    assert [line for line in rest if line.startswith("/")] == ["/tmp/x"]  # noqa: S108 - the pod's own, in memory
    status = dict(line.split(":\t", 1) for line in rest if ":\t" in line)
    assert int(status["CapBnd"], 16) == 0
    assert status["NoNewPrivs"] == "1"


@pytest.mark.parametrize("part", PARTS)
def test_the_control_plane_parts_mount_no_more_of_the_cluster_than_they_need(product: Installed, part: str) -> None:
    (pod, *_) = (
        p for p in product.pods(NAMESPACE) if p["metadata"]["labels"]["app.kubernetes.io/name"] == f"nodewarden-{part}"
    )
    mounts = {mount["mountPath"] for c in pod["spec"]["containers"] for mount in c["volumeMounts"]}
    assert ("/var/run/secrets/kubernetes.io/serviceaccount" in mounts) is (part != "verifier")


def test_the_node_attests_by_its_daemonset_and_is_labelled(product: Installed) -> None:
    name = product.node.name
    wait_until("the node is labelled", lambda: is_labelled(product.plane.admin, name), KUBELET_RETRIES_SECONDS)
    wait_until("the attester is ready", lambda: _all_ready(product, ATTESTER_NAMESPACE), 30)
    attestation = product.plane.admin.must_get(f"{GROUP}/nodeattestations/{name}")
    assert attestation["spec"]["nodeUID"] == product.plane.admin.must_get(f"/api/v1/nodes/{name}")["metadata"]["uid"]


def test_the_attester_s_doctor_finds_all_that_is_required_in_its_pod(product: Installed) -> None:
    wait_until("the attester is ready", lambda: _all_ready(product, ATTESTER_NAMESPACE), 90)
    doctor = ("nodewarden", "attester", "doctor", "--json")
    inside = ("exec", "daemonset/nodewarden-attester", "-c", "attester", "--", *doctor)
    checks = json.loads(product.kubectl("-n", ATTESTER_NAMESPACE, *inside))["checks"]
    assert [check for check in checks if check["required"] and not check["ok"]] == []
    assert [check["name"] for check in checks if not check["ok"]] == ["ima-log"]  # none was recorded with the boot


@pytest.fixture(scope="module")
def sensitive_pod(product: Installed) -> str:
    """The path of a pod that may run on a verified node only, and runs."""
    admin, image = product.plane.admin, product.node.app_image
    wait_until("the node is labelled", lambda: is_labelled(admin, product.node.name), KUBELET_RETRIES_SECONDS)
    admin.must_create("/api/v1/namespaces", {"metadata": {"name": SPACE}})
    admin.must_create(f"/api/v1/namespaces/{SPACE}/serviceaccounts", {"metadata": {"name": ACCOUNT}})
    spec = {
        "subjects": [{"namespace": SPACE, "serviceAccount": ACCOUNT}],
        "policyRef": POLICY,
        "images": [image],
        "secrets": [{"name": SECRET, "path": "key.bin"}],
    }
    workload = {"apiVersion": API_VERSION, "kind": "SensitiveWorkload", "metadata": {"name": "llm"}, "spec": spec}
    admin.must_create(f"{GROUP}/sensitiveworkloads", workload)
    other = a_pod("other", "registry.example/other:1", serviceAccountName=ACCOUNT)
    denied = (ReasonCode.WORKLOAD_IMAGE_NOT_ALLOWED,)
    # Each of the three webhook pods learns of the workload by itself.
    for _ in range(5):
        wait_until(
            "the webhook denies", lambda: admin.create(pods_path(SPACE), other, dry_run=True).denies(*denied), 20
        )
    admin.must_create(pods_path(SPACE), a_pod("llm", image, serviceAccountName=ACCOUNT))
    pod = wait_for_phase(admin, SPACE, "llm", seconds=60)
    assert pod["spec"]["nodeName"] == product.node.name
    return pods_path(SPACE, "llm")


def test_a_sensitive_pod_cannot_be_entered(product: Installed, sensitive_pod: str) -> None:
    done = kubectl(product.plane, "-n", SPACE, "exec", "llm", "--", "/bin/id")
    assert done.returncode != 0
    assert ReasonCode.ACCESS_FORBIDDEN.value in done.stderr


def test_its_secret_goes_to_the_tpm_of_its_node(product: Installed, sensitive_pod: str) -> None:
    state = "/var/lib/nodewarden"
    store = ("--store", f"{state}/secrets.sealed", "--key", f"{state}/secrets.key", "--from-file", "-")
    put = ("nodewarden", "admission", "secrets", "put", SECRET, *store)
    broker = ("exec", "-i", "deploy/nodewarden-broker", "-c", "broker", "--", *put)
    product.kubectl("-n", NAMESPACE, *broker, typed=VALUE)

    uid = product.plane.admin.must_get(sensitive_pod)["metadata"]["uid"]
    bound = {"apiVersion": "v1", "kind": "Pod", "name": "llm", "uid": uid}
    token = product.plane.token(SPACE, ACCOUNT, audience=BROKER_AUDIENCE, bound_to=bound)
    fetch = (
        "umask 077; mkdir -p /tmp/out; cat > /tmp/token; "
        f"nodewarden attester secret {SECRET} --token-file /tmp/token --out /tmp/out >&2; cat /tmp/out/*; rm -r /tmp/*"
    )
    attester = ("exec", "-i", "daemonset/nodewarden-attester", "-c", "attester", "--", "sh", "-ec", fetch)
    assert product.kubectl("-n", ATTESTER_NAMESPACE, *attester, typed=token) == VALUE


def test_its_secret_is_a_file_in_a_pod_that_mounts_it(product: Installed, sensitive_pod: str) -> None:
    # Stored by the test before.
    admin, image = product.plane.admin, product.node.app_image
    made = {
        "apiVersion": "secrets-store.csi.x-k8s.io/v1",
        "kind": "SecretProviderClass",
        "metadata": {"name": "llm"},
        "spec": {"provider": "nodewarden", "parameters": {"secrets": SECRET}},
    }
    admin.must_create(f"/apis/secrets-store.csi.x-k8s.io/v1/namespaces/{SPACE}/secretproviderclasses", made)
    container = {
        "name": "main",
        "image": image,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", "cat /secrets/key.bin; echo; exec sleep 1000"],
        "volumeMounts": [{"name": "secrets", "mountPath": "/secrets", "readOnly": True}],
    }
    volume = {"driver": DRIVER, "readOnly": True, "volumeAttributes": {"secretProviderClass": "llm"}}
    spec: dict[str, Any] = {"containers": [container], "volumes": [{"name": "secrets", "csi": volume}]}
    admin.must_create(pods_path(SPACE), a_pod("files", serviceAccountName=ACCOUNT, **spec))
    wait_for_phase(admin, SPACE, "files", seconds=60)
    log = ("-n", SPACE, "logs", "files")
    wait_until("the pod shows its secret", lambda: product.kubectl(*log) == f"{VALUE}\n", 20)
    admin.delete(pods_path(SPACE, "files"), grace_seconds=1)


def test_a_reboot_into_another_command_line_takes_the_label_and_the_pod_away(
    product: Installed, sensitive_pod: str
) -> None:
    admin = product.plane.admin
    product.boot(OTHER_CMDLINE)
    product.kubectl("-n", ATTESTER_NAMESPACE, "delete", "pod", "-l", "app.kubernetes.io/name=nodewarden-attester")
    wait_until("the label is gone", lambda: not is_labelled(admin, product.node.name), 60)

    def going() -> bool:
        answer = admin.get(sensitive_pod)
        return answer.status == 404 or "deletionTimestamp" in answer.body["metadata"]

    wait_until("the sensitive pod is on its way out", going, 30)
