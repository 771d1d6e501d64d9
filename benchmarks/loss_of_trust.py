"""From the verifier's word that a node fell to a Node object without our labels and with our taint: a real API server.

The verifier's own stream code sends the signed result; a watch of another client sees when the Node object has both
changed. The figure is of falls one by one, ten a second; how long it takes when all nodes fall at once, as when a
baseline's version is withdrawn, is told beside it and is the API server's pace of writes. No node holds leases: with
open ones, the label waits for their revocation, at most one second (admission/controller).
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from admission.kube import KubeClient
from admission.trust_objects import UNVERIFIED_TAINT, VERIFIED_LABEL_PREFIX
from tests.e2e.control_plane import ControlPlane, Options, control_plane, require_programs
from tests.e2e.controllers import Controllers, controllers, until
from tests.e2e.install import install
from tests.e2e.programs import HarnessError
from tests.e2e.verifier_stream import VerifierStream, verifier_stream
from verifier.wire.result import Verdict

NAMES: tuple[str, ...] = ("loss_to_taint_p99_ms",)

NODES = 50
ROUNDS = 3
PAUSE_SECONDS = 0.1
NODES_PATH = "/api/v1/nodes"

try:
    require_programs()
except HarnessError:
    NAMES = ()


class _Marks:
    """When each node was last seen to be marked as unverified, by the monotonic clock."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._stop = threading.Event()
        self.lost_at: dict[str, float] = {}
        self.verified: set[str] = set()
        listed = client.request("GET", f"{NODES_PATH}?limit=1")
        self._version = str(listed["metadata"]["resourceVersion"])
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._client.watch(NODES_PATH, self._version, self._event, seconds=5, stopped=self._stop.is_set)

    def _event(self, kind: str, node: Mapping[str, Any]) -> None:
        self._version = str(node["metadata"]["resourceVersion"])
        if kind == "BOOKMARK":
            return
        name = node["metadata"]["name"]
        ours = [key for key in node["metadata"].get("labels", {}) if key.startswith(VERIFIED_LABEL_PREFIX)]
        effects = {t["effect"] for t in node["spec"].get("taints", []) if t["key"] == UNVERIFIED_TAINT}
        if ours and not effects:
            self.verified.add(name)
            self.lost_at.pop(name, None)
        elif not ours and effects == {"NoSchedule", "NoExecute"}:
            self.verified.discard(name)
            self.lost_at.setdefault(name, time.monotonic())

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(10)


def run() -> dict[str, dict[str, Any]]:
    """The figure, from a control plane of its own; none where no control plane is built."""
    if not NAMES:
        return {}
    with tempfile.TemporaryDirectory(prefix="nw-", dir="/tmp") as made:
        folder = Path(made)
        with control_plane(folder / "cp", Options(nodes=0)) as plane:
            install(plane)
            with verifier_stream(folder, plane.authority) as stream, controllers(plane, stream, folder) as cluster:
                latencies, at_once = _measure(plane, stream, cluster)
    p99 = statistics.quantiles(latencies, n=100)[98] * 1000
    how = (
        f"{NODES} nodes fall one by one every {PAUSE_SECONDS * 1000:.0f} ms; median "
        f"{statistics.median(latencies) * 1000:.0f} ms; all {NODES} at once: median "
        f"{statistics.median(at_once) * 1000:.0f} ms, longest {max(at_once) * 1000:.0f} ms; "
        "real API server, controller and benchmark on the same machine"
    )
    return {"loss_to_taint_p99_ms": {"value": round(p99, 1), "unit": "ms", "n": len(latencies), "how": how}}


def _measure(plane: ControlPlane, stream: VerifierStream, cluster: Controllers) -> tuple[list[float], list[float]]:
    cluster.policy(onLoss={"taint": True})
    nodes = [cluster.node(f"gpu-{number}") for number in range(NODES)]
    cluster.start()
    marks = _Marks(KubeClient.from_kubeconfig(plane.kubeconfigs["admin"]))
    one_by_one: list[float] = []
    at_once: list[float] = []
    try:
        for number in range(ROUNDS + 1):
            latencies, pause = (one_by_one, PAUSE_SECONDS) if number < ROUNDS else (at_once, 0.0)
            for node in nodes:
                stream.publish(node)
            until("all are verified", lambda: len(marks.verified) == NODES, 60)
            fell: dict[str, float] = {}
            for node in nodes:
                fell[node["metadata"]["name"]] = time.monotonic()
                stream.publish(node, Verdict.CONTRAINDICATED)
                time.sleep(pause)
            until("all are marked", lambda: len(marks.lost_at) == NODES, 60)
            latencies += [marks.lost_at[name] - at for name, at in fell.items()]
    finally:
        marks.stop()
    return one_by_one, at_once
