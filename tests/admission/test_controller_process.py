"""The controller's process from its settings on: it leads, writes reports if it is told to, and shows its figures."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.responses import PlainTextResponse

from admission.controller.policy_reports import GROUP
from tests.admission.figures import figures
from tests.admission.scripted_api import Asked, Said, a_list, a_status, events, scripted_api
from tests.admission.served import make_certificate, served
from tests.admission.test_controller_work import eventually
from tests.admission.test_policy_reports import Reports
from tests.admission.test_settings_and_assembly import free_port
from tests.admission.world import AUDIENCE, IMAGE, ISSUER, LINUX_BOOT, NODE, NODE_UID
from tests.e2e.authority import Authority
from tests.e2e.verifier_stream import VerifierStream

OURS = "/apis/nodewarden.dev/v1alpha1"
NODE_OBJECT = {
    "metadata": {"name": NODE, "uid": NODE_UID, "resourceVersion": "1"},
    "status": {"nodeInfo": {"bootID": LINUX_BOOT}},
}
CLUSTER: dict[str, dict[str, Any]] = {
    "/api/v1/nodes": NODE_OBJECT,
    "/api/v1/pods": {
        "metadata": {"namespace": "ml", "name": "llm-0", "uid": "p", "resourceVersion": "1"},
        "spec": {
            "nodeName": NODE,
            "serviceAccountName": "llm",
            "containers": [{"name": "main", "image": IMAGE}],
        },
    },
    f"{OURS}/nodetrustpolicies": {
        "apiVersion": "nodewarden.dev/v1alpha1",
        "kind": "NodeTrustPolicy",
        "metadata": {"name": "h200-prod", "uid": "u", "resourceVersion": "1"},
        "spec": {"baselines": [{"name": "h200-prod", "floor": "4.1.0"}], "enforcementAction": "audit"},
    },
    f"{OURS}/sensitiveworkloads": {
        "apiVersion": "nodewarden.dev/v1alpha1",
        "kind": "SensitiveWorkload",
        "metadata": {"name": "llm", "uid": "u", "resourceVersion": "1"},
        "spec": {
            "subjects": [{"namespace": "ml", "serviceAccount": "llm"}],
            "policyRef": "h200-prod",
            "images": [IMAGE],
        },
    },
}


class Cluster:
    """An API server with one of each, which takes every write; reports it keeps."""

    def __init__(self) -> None:
        self.reports, self.leases = Reports(), dict[str, Any]()
        self.asked_for_reports = 0

    def __call__(self, asked: Asked) -> Said:
        if asked.path.startswith(GROUP):
            self.asked_for_reports += 1
            return self.reports(asked)
        if asked.watching:
            return events(then=lambda: time.sleep(1))
        if "/leases" in asked.path:
            return self._lease(asked)
        if asked.method == "GET":
            found = CLUSTER.get(asked.path)
            return a_list() if found is None else a_list(found)
        return Said({"metadata": {"uid": "made"}})

    def _lease(self, asked: Asked) -> Said:
        name = asked.path.rsplit("/", 1)[-1]
        if asked.method == "POST":
            self.leases[asked.body["metadata"]["name"]] = asked.body
        elif name not in self.leases:
            return Said(a_status(404, "NotFound"), 404)
        elif asked.method == "PUT":
            self.leases[name] = asked.body
        fields = self.leases.get(name, asked.body)
        return Said({**fields, "metadata": {**fields["metadata"], "resourceVersion": "1"}})


@contextmanager
def a_controller(folder: Path, cluster: Cluster, **settings: Any) -> Iterator[None]:
    """A controller that runs over `cluster` while the block does, and hears that its node is verified."""
    stream = VerifierStream(folder, Authority(folder / "ca"))
    stream.publish(NODE_OBJECT)
    stream.start()
    with scripted_api(folder, cluster):
        content = {
            "verifier": {"url": stream.url, "ca_file": str(stream.ca), "token_file": str(stream.token_file)},
            "results": {"issuer": ISSUER, "audience": AUDIENCE, "jwks_file": str(stream.jwks_file(folder))},
            "kubernetes": {"kubeconfig": str(folder / "kubeconfig")},
            **settings,
        }
        file = folder / "controller.yaml"
        file.write_text(json.dumps(content))
        command = [sys.executable, "-m", "nodewarden", "admission", "controller", "--config", str(file)]
        process = subprocess.Popen(command)
        try:
            yield
        finally:
            process.terminate()
            process.wait(20)
            stream.stop()
    assert process.returncode == 0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "ca").mkdir()
    return tmp_path


def outcomes(cluster: Cluster) -> list[tuple[str, str]]:
    results = cluster.reports.items.get("ml", {}).get("results", [])
    return [(one["result"], one.get("properties", {}).get("codes", "")) for one in results]


def test_a_controller_that_leads_writes_reports_and_shows_its_figures(folder: Path) -> None:
    cluster, port = Cluster(), free_port()
    with a_controller(folder, cluster, metrics={"port": port}, policy_reports=True):
        eventually("a report", lambda: outcomes(cluster) == [("pass", "")], 40)
        found = figures(httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False).content)
    assert found["nodewarden_controller_leader"] == found["nodewarden_controller_stream_alive"] == 1
    assert found["nodewarden_controller_stream_silent_seconds"] < 10
    assert found['nodewarden_controller_nodes{policy="h200-prod",standing="passed"}'] == 1
    assert found['nodewarden_controller_pods{standing="verified"}'] == 1
    assert found['nodewarden_controller_work{state="failing"}'] == 0
    assert found['nodewarden_controller_view_objects{kind="pods"}'] == 1
    assert found["process_resident_memory_bytes"] > 0


def test_a_controller_that_was_not_told_to_asks_for_no_reports(folder: Path) -> None:
    cluster, port = Cluster(), free_port()
    with a_controller(folder, cluster, metrics={"port": port}):

        def scanned() -> bool:
            try:
                text = httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False).content
            except httpx.TransportError:
                return False
            return figures(text)['nodewarden_controller_pods{standing="verified"}'] == 1

        eventually("it leads and scanned", scanned, 40)
        time.sleep(6)  # reports come five seconds after a scan
    assert cluster.asked_for_reports == 0


def test_a_controller_that_starts_without_the_verifier_leads_and_writes_nothing_until_its_keys_come(
    folder: Path,
) -> None:
    cluster, verifier = Cluster(), FastAPI()
    certificate, answer = make_certificate(folder / "verifier"), PlainTextResponse("not yet", 503)
    asked: list[int] = []

    def keys() -> PlainTextResponse:
        asked.append(1)
        return answer

    verifier.add_api_route("/jwks.json", keys)
    with served(verifier, certificate) as address:
        by_url = {"jwks_url": f"{address}/jwks.json", "jwks_ca_file": str(certificate.certificate)}
        results = {"issuer": ISSUER, "audience": AUDIENCE, **by_url}
        with a_controller(folder, cluster, results=results, policy_reports=True):
            eventually("it asks again", lambda: len(asked) > 2, 40)
            assert cluster.leases == {} and cluster.asked_for_reports == 0
            answer = PlainTextResponse((folder / "results-jwks.json").read_text())
            eventually("a report", lambda: outcomes(cluster) == [("pass", "")], 40)
