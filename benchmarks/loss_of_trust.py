"""From the verifier's word that a node fell to a Node object without our labels and with our taint: a real API server.

The verifier's own stream code sends the signed result; a watch of another client sees when the Node object has both
changed. The figure is of falls one by one, ten a second. How long it takes when all nodes of a rack or of a fleet fall
at once, as when a baseline's version is withdrawn, is told beside it: two writes for each node, at the API server's
pace. No node holds leases or runs pods: with open leases the label waits for their revocation, at most one second, and
pods are ended after the labels of all nodes are gone (admission/controller).
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
MANY_NODES = 200
ROUNDS = 3
PAUSE_SECONDS = 0.1
SETTLE_SECONDS = 2.0
"""Before each round: what is written after labels and taints is no part of the next round's latencies."""
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
                one_by_one, at_once, many = _measure(plane, stream, cluster)
    how = (
        f"{NODES} nodes fall one by one every {PAUSE_SECONDS * 1000:.0f} ms; median {_ms(one_by_one, 50)}; "
        f"all {NODES} at once, {ROUNDS} times: median {_ms(at_once, 50)}, p99 {_ms(at_once, 99)}, "
        f"longest {max(at_once) * 1000:.0f} ms; {MANY_NODES} at once: median {_ms(many, 50)}, p99 {_ms(many, 99)}; "
        "nodes without pods and leases; real API server, controller and benchmark on the same machine"
    )
    value = round(_percentile(one_by_one, 99) * 1000, 1)
    return {"loss_to_taint_p99_ms": {"value": value, "unit": "ms", "n": len(one_by_one), "how": how}}


def _percentile(latencies: list[float], percent: int) -> float:
    return statistics.quantiles(latencies, n=100, method="inclusive")[percent - 1]


def _ms(latencies: list[float], percent: int) -> str:
    return f"{_percentile(latencies, percent) * 1000:.0f} ms"


def _measure(
    plane: ControlPlane, stream: VerifierStream, cluster: Controllers
) -> tuple[list[float], list[float], list[float]]:
    cluster.policy(onLoss={"taint": True})
    nodes = [cluster.node(f"gpu-{number}") for number in range(MANY_NODES)]
    cluster.start()
    marks = _Marks(KubeClient.from_kubeconfig(plane.kubeconfigs["admin"]))
    try:
        few = nodes[:NODES]
        one_by_one = [latency for _ in range(ROUNDS) for latency in _falls(stream, marks, few, PAUSE_SECONDS)]
        at_once = [latency for _ in range(ROUNDS) for latency in _falls(stream, marks, few, 0.0)]
        return one_by_one, at_once, _falls(stream, marks, nodes, 0.0)
    finally:
        marks.stop()


def _falls(stream: VerifierStream, marks: _Marks, nodes: list[dict[str, Any]], pause: float) -> list[float]:
    """After how many seconds each node was marked, where they fell with that pause between them."""
    names = {node["metadata"]["name"] for node in nodes}
    for node in nodes:
        stream.publish(node)
    until("all are verified", lambda: names <= marks.verified, 60)
    time.sleep(SETTLE_SECONDS)
    fell: dict[str, float] = {}
    for node in nodes:
        fell[node["metadata"]["name"]] = time.monotonic()
        stream.publish(node, Verdict.CONTRAINDICATED)
        time.sleep(pause)
    until("all are marked", lambda: names <= marks.lost_at.keys(), 60)
    return [marks.lost_at[name] - at for name, at in fell.items()]
