"""The installation's own pods, from its own images, on a real node."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nodewarden_demo.stage import OTHER_CMDLINE
from tests.e2e.governed import ACCOUNT, API_VERSION, GROUP, POLICY, is_labelled
from tests.e2e.images.installed import Installed
from tests.e2e.install import NAMESPACE
from tests.e2e.machines import ATTESTER_NAMESPACE
from tests.e2e.pods import a_pod, pods_path, wait_for_phase
from tests.e2e.programs import wait_until
from verifier.wire.codes import ReasonCode

PARTS = ("verifier", "controller", "webhook", "broker")


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
    wait_until("the node is labelled", lambda: is_labelled(product.plane.admin, name), 90)
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


def test_a_sensitive_pod_runs_on_the_verified_node_and_a_changed_one_is_denied(product: Installed) -> None:
    admin, namespace = product.plane.admin, "ml"
    wait_until("the node is labelled", lambda: is_labelled(admin, product.node.name), 90)
    admin.must_create("/api/v1/namespaces", {"metadata": {"name": namespace}})
    admin.must_create(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": ACCOUNT}})
    image = product.node.app_image
    spec = {"subjects": [{"namespace": namespace, "serviceAccount": ACCOUNT}], "policyRef": POLICY, "images": [image]}
    workload = {"apiVersion": API_VERSION, "kind": "SensitiveWorkload", "metadata": {"name": "llm"}, "spec": spec}
    admin.must_create(f"{GROUP}/sensitiveworkloads", workload)

    other = a_pod("other", "registry.example/other:1", serviceAccountName=ACCOUNT)
    path = pods_path(namespace)
    denied = (ReasonCode.WORKLOAD_IMAGE_NOT_ALLOWED,)
    # Each of the three webhook pods learns of the workload by itself.
    for _ in range(5):
        wait_until("the webhook denies", lambda: admin.create(path, other, dry_run=True).denies(*denied), 20)

    admin.must_create(path, a_pod("llm", image, serviceAccountName=ACCOUNT))
    pod = wait_for_phase(admin, namespace, "llm", seconds=60)
    assert pod["spec"]["nodeName"] == product.node.name
    assert product.kubectl("-n", namespace, "get", "pod", "llm", "-o", "name") == "pod/llm\n"


def test_a_reboot_into_another_command_line_takes_the_label_and_the_pod_away(product: Installed) -> None:
    admin = product.plane.admin
    wait_until("the node is labelled", lambda: is_labelled(admin, product.node.name), 90)
    product.boot(OTHER_CMDLINE)
    product.kubectl("-n", ATTESTER_NAMESPACE, "delete", "pod", "-l", "app.kubernetes.io/name=nodewarden-attester")
    wait_until("the label is gone", lambda: not is_labelled(admin, product.node.name), 60)
    path = pods_path("ml", "llm")

    def going() -> bool:
        answer = admin.get(path)
        return answer.status == 404 or "deletionTimestamp" in answer.body["metadata"]

    wait_until("the sensitive pod is on its way out", going, 30)
