"""PolicyReports on a real API server, with the kind as policy engines install it and the rights of the chart."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.admission.figures import figures
from tests.deploy.rendered import render
from tests.e2e.client import Client
from tests.e2e.control_plane import ControlPlane, Options, control_plane
from tests.e2e.controllers import POLICY, Controllers, until
from tests.e2e.install import apply, install
from tests.e2e.machines import nodewarden
from tests.e2e.pods import pods_path
from tests.e2e.programs import Program, find_program, free_port, wait_until
from verifier.wire.codes import ReasonCode
from verifier.wire.result import Verdict

GROUP = "/apis/wgpolicyk8s.io/v1alpha2"
LOOK_SECONDS = 7
"""The controller looks five seconds after a change."""


@pytest.fixture(scope="module")
def plane(folder: Path) -> Iterator[ControlPlane]:
    """A control plane of this module's own, which has the kind only from the second test on."""
    with control_plane(folder / "reports", Options(nodes=0)) as running:
        rendered = folder / "reports.yaml"
        rendered.write_text(render("--set", "policyReports.enabled=true,metrics.enabled=true", required=True))
        install(running, rendered)
        yield running


@pytest.fixture
def cluster(cluster: Controllers) -> Controllers:
    """A policy that ends no pods, so that they can be told of, and no controller yet."""
    cluster.policy(onLoss={"action": "None"})
    return cluster


@dataclass
class Reporting:
    """A controller that leads and writes reports."""

    program: Program
    port: int

    def figures(self) -> dict[str, float]:
        """Its figures; none while it does not answer."""
        try:
            return figures(httpx.get(f"http://127.0.0.1:{self.port}/metrics", trust_env=False).content)
        except httpx.TransportError:
            return {}

    def figure(self, name: str) -> float | None:
        return self.figures().get(f"nodewarden_controller_{name}")

    def said(self, event: str) -> int:
        """How often its log has the event."""
        lines = [line for line in self.program.log.read_text().splitlines() if line.startswith("{")]
        return [json.loads(line)["event"] for line in lines].count(event)


@contextmanager
def reporting(cluster: Controllers) -> Iterator[Reporting]:
    port = free_port()
    made = Reporting(cluster.start(policy_reports=True, metrics={"port": port}), port)
    wait_until("it leads", lambda: made.figure("leader") == 1, 40)
    yield made
    cluster.stop_all()


def a_report(client: Client, namespace: str) -> dict[str, Any]:
    answer = client.get(f"{GROUP}/namespaces/{namespace}/policyreports/nodewarden")
    found: dict[str, Any] = answer.body if answer.accepted else {}
    return found


def outcomes(client: Client, namespace: str) -> list[tuple[str, str, str]]:
    found = a_report(client, namespace).get("results", [])
    return [(one["resources"][0]["name"], one["result"], one["properties"].get("codes", "")) for one in found]


def test_without_the_kind_there_is_no_report_and_no_error_each_round(cluster: Controllers, namespace: str) -> None:
    assert cluster.admin.get(GROUP).status == 404
    node = cluster.node("r-none")["metadata"]["name"]
    cluster.workload(namespace)
    cluster.pod_on(namespace, "early", node)
    with reporting(cluster) as controller:
        until("the pod is counted", lambda: controller.figure('pods{standing="violating"}') == 1)
        time.sleep(LOOK_SECONDS)
        assert controller.figure('work{state="failing"}') == 0
        assert controller.said("policy_reports_absent") == 1
        assert controller.said("reconcile_refused") == 0


@pytest.fixture(scope="module")
def kind(plane: ControlPlane) -> None:
    """The kind, from the module of a policy engine that brings it along."""
    for file in sorted(find_program("policy-report-crds").glob("*.yaml")):
        apply(plane.admin, yaml.safe_load(file.read_text()))
    wait_until("reports are served", lambda: plane.admin.get(f"{GROUP}/policyreports").accepted, 30)


@pytest.mark.usefixtures("kind")
def test_a_report_follows_its_pod_from_unproven_to_verified_to_fallen_and_goes_with_it(
    cluster: Controllers, namespace: str
) -> None:
    admin, node = cluster.admin, cluster.node("r-1")
    cluster.workload(namespace)
    pod = cluster.pod_on(namespace, "llm-0", "r-1")
    with reporting(cluster) as controller:
        missing = ReasonCode.RESULT_MISSING.value
        until("it fails", lambda: outcomes(admin, namespace) == [("llm-0", "fail", missing)], 40)
        made = a_report(admin, namespace)
        (found,) = made["results"]
        assert found["resources"][0]["uid"] == pod["metadata"]["uid"]
        assert (found["policy"], found["severity"]) == (POLICY, "high")
        assert ReasonCode.RESULT_MISSING.remedy in found["message"]
        assert abs(found["timestamp"]["seconds"] - time.time()) < 60  # noqa: TID251 - beside the program's own clock
        assert made["summary"] == {"pass": 0, "fail": 1, "skip": 0, "warn": 0, "error": 0}
        assert made["metadata"]["labels"] == {"app.kubernetes.io/managed-by": "nodewarden"}
        assert "ownerReferences" not in made["metadata"]

        cluster.stream.publish(node)
        cluster.wait_labelled("r-1")
        admin.must_patch(pods_path(namespace, "llm-0"), {"metadata": {"labels": {"touched": "1"}}})
        until("it passes", lambda: outcomes(admin, namespace) == [("llm-0", "pass", "")], 40)
        assert controller.figure(f'nodes{{policy="{POLICY}",standing="passed"}}') == 1
        before = a_report(admin, namespace)
        admin.must_patch(pods_path(namespace, "llm-0"), {"metadata": {"labels": {"touched": "2"}}})
        time.sleep(LOOK_SECONDS)
        assert a_report(admin, namespace) == before

        cluster.stream.publish(cluster.get_node("r-1"), Verdict.CONTRAINDICATED)
        cluster.wait_unlabelled("r-1")
        admin.must_patch(pods_path(namespace, "llm-0"), {"metadata": {"labels": {"touched": "3"}}})
        refused = ReasonCode.NODE_NOT_VERIFIED.value
        until("it fails", lambda: outcomes(admin, namespace) == [("llm-0", "fail", refused)], 40)
        assert a_report(admin, namespace)["results"][0]["severity"] == "critical"
        assert (controller.figure("label_removal_seconds_count"), controller.figure("stream_alive")) == (1, 1)
        assert (controller.figure("stream_silent_seconds") or 0) < 10
        assert not [name for name in controller.figures() if "r-1" in name or "llm" in name]

        admin.delete(pods_path(namespace, "llm-0"))
        until("the report goes", lambda: a_report(admin, namespace) == {}, 40)


@pytest.mark.usefixtures("kind")
def test_a_tenants_words_do_not_stay_and_uninstalling_takes_the_report(cluster: Controllers, namespace: str) -> None:
    admin = cluster.admin
    cluster.node("r-2")
    cluster.workload(namespace)
    cluster.pod_on(namespace, "llm-0", "r-2")
    place = f"{GROUP}/namespaces/{namespace}/policyreports/nodewarden"
    with reporting(cluster):
        until("it fails", lambda: [one[1] for one in outcomes(admin, namespace)] == ["fail"], 40)
        before = a_report(admin, namespace)
        words = [{**before["results"][0], "result": "pass", "message": "all is well"}]
        admin.must_patch(place, {"results": words, "summary": {"fail": 0}, "scope": {"kind": "Pod", "name": "x"}})
        admin.must_patch(pods_path(namespace, "llm-0"), {"metadata": {"labels": {"touched": "1"}}})
        until("it is mended", lambda: a_report(admin, namespace).get("results") == before["results"], 40)
        mended = a_report(admin, namespace)
        assert mended["summary"] == before["summary"]
        assert "scope" not in mended
    config = str(cluster.plane.kubeconfigs["admin"])
    removed = json.loads(nodewarden("admission", "uninstall", "--kubeconfig", config, "--json"))["removed"]
    assert {"what": "policy report", "where": namespace} in removed
    assert a_report(admin, namespace) == {}
