"""The real scheduler's pace with Nodewarden over its pace without, half of the pods sensitive, in one control plane.

A round creates all pods while the scheduler is stopped, starts it, and counts from the first binding to the last: what
is measured is the scheduler with a full queue. The figure is at twice Kubernetes' own limit of 50 requests a second,
which is what Kubernetes' tests of its largest clusters raise it to. Beside it stands the ratio at a limit that is never
reached: then the scheduler sends as fast as it decides, hundreds of requests wait in the API server, which refuses some
(429), and what is compared is how much work two cores have to do, not whether Nodewarden holds a scheduler up.
"With" is the installation's policies, the webhook and the controller as processes under their ServiceAccounts, and
verified nodes; "without" is none of these, and the same pods in the same namespaces. The rounds alternate, and each
begins when the API server has done what the one before left: pods that are gone go on to cost work for a minute.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from admission.kube import KubeClient
from tests.admission.world import AUDIENCE, ISSUER
from tests.e2e.control_plane import ControlPlane, Options, control_plane, require_programs
from tests.e2e.controllers import IMAGE, POLICY, Controllers, controllers, until
from tests.e2e.install import NAMESPACE, apply, install, install_manifests, object_path
from tests.e2e.machines import answers, start_nodewarden
from tests.e2e.pods import a_pod, pods_path
from tests.e2e.programs import HarnessError, Program, find_program, free_port, wait_until
from tests.e2e.system import by_address
from tests.e2e.verifier_stream import VerifierStream, verifier_stream

NAMES: tuple[str, ...] = ("scheduling_ratio",)

NODES = 200
PODS = 2_000
PAIRS = 3
RAISED, UNREACHED = 100, 1_000
"""Client limits of the scheduler, requests per second."""
SETTLED_CORES, SETTLE_SECONDS = 0.5, 90
"""A round begins when the API server uses less than that much of a core, or after so long."""
CLIENTS = 8
SENSITIVE, PLAIN = "ml", "plain"
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")

try:
    require_programs()
except HarnessError:
    NAMES = ()


@dataclass(frozen=True)
class Round:
    """Pods per second; CPU seconds of each program while the scheduler bound."""

    created_per_s: float
    bound_per_s: float
    cpu_seconds: Mapping[str, float]


def run() -> dict[str, dict[str, Any]]:
    """The figure, from a control plane of its own; none where no control plane is built."""
    if not NAMES:
        return {}
    with tempfile.TemporaryDirectory(prefix="nw-", dir="/tmp") as made:
        folder = Path(made)
        with control_plane(folder / "cp", Options(nodes=NODES)) as plane:
            webhooks = install(plane)
            with verifier_stream(folder, plane.authority) as stream, controllers(plane, stream, folder) as cluster:
                rounds = _measure(_Bench(plane, stream, cluster, folder, webhooks))
    return {"scheduling_ratio": _figure(rounds)}


Pairs = Mapping[int, list[tuple[Round, Round]]]
"""By client limit: a round without Nodewarden and one with it."""


def _figure(pairs: Pairs) -> dict[str, Any]:
    rounds, overload = pairs[RAISED], pairs[UNREACHED]
    created = statistics.median(with_it.created_per_s / without.created_per_s for without, with_it in rounds)
    how = (
        f"{PODS} waiting pods, half of them sensitive, {NODES} kwok nodes, scheduler's client limit {RAISED}/s: "
        f"{_rate(rounds, 1):.0f}/s bound with, {_rate(rounds, 0):.0f}/s without, medians of {len(rounds)} pairs of "
        f"rounds that alternate (lowest ratio {min(_ratios(rounds)):.2f}); creation by {CLIENTS} clients {created:.2f} "
        f"of without. At a limit that is not reached {_ratio(overload):.2f} of {_rate(overload, 0):.0f}/s: all "
        f"processes share {len(os.sched_getaffinity(0))} cores, CPU seconds without and with: {_busy(overload)}"
    )
    return {"value": round(_ratio(rounds), 3), "unit": "x", "n": PODS * len(rounds), "how": how}


def _ratio(rounds: list[tuple[Round, Round]]) -> float:
    return statistics.median(_ratios(rounds))


def _ratios(rounds: list[tuple[Round, Round]]) -> list[float]:
    return [with_it.bound_per_s / without.bound_per_s for without, with_it in rounds]


def _rate(rounds: list[tuple[Round, Round]], which: int) -> float:
    return statistics.median(pair[which].bound_per_s for pair in rounds)


def _busy(rounds: list[tuple[Round, Round]]) -> str:
    def median(which: int, program: str) -> float:
        return statistics.median(pair[which].cpu_seconds.get(program, 0.0) for pair in rounds)

    return ", ".join(
        f"{name} {median(0, name):.1f} and {median(1, name):.1f}" for name in sorted(rounds[0][1].cpu_seconds)
    )


def _measure(bench: _Bench) -> Pairs:
    bench.prepare()
    bench.round("warm-up", UNREACHED)
    pairs: dict[int, list[tuple[Round, Round]]] = {RAISED: [], UNREACHED: []}
    for number in range(PAIRS):
        # The second pair begins with what the first ended with.
        order = (_without, _with) if number % 2 == 0 else (_with, _without)
        found = {side: side(bench) for side in order}
        without, with_it = found[_without], found[_with]
        for limit, known in pairs.items():
            known.append((without[limit], with_it[limit]))
    return pairs


def _without(bench: _Bench) -> dict[int, Round]:
    return {limit: bench.round("without", limit) for limit in (RAISED, UNREACHED)}


def _with(bench: _Bench) -> dict[int, Round]:
    with bench.nodewarden():
        return {limit: bench.round("with", limit) for limit in (RAISED, UNREACHED)}


@dataclass
class _Bench:
    plane: ControlPlane
    stream: VerifierStream
    cluster: Controllers
    folder: Path
    webhooks: list[dict[str, Any]]
    nodes: list[dict[str, Any]] = field(default_factory=list)
    rounds: int = 0
    """So far. Pods of each have names of their own: kwok deletes by name, and late."""

    def prepare(self) -> None:
        """The namespaces, our objects, and none of our guards at work."""
        admin = self.cluster.admin
        for namespace in (SENSITIVE, PLAIN):
            admin.must_create("/api/v1/namespaces", {"metadata": {"name": namespace}})
            account = f"/api/v1/namespaces/{namespace}/serviceaccounts/default"
            wait_until(f"{account} is there", lambda account=account: admin.get(account).accepted)  # type: ignore[misc]  # - binds the loop variable
        self.cluster.policy()
        self.cluster.workload(SENSITIVE)
        self.nodes = admin.must_get("/api/v1/nodes")["items"]
        self._unguard()

    @contextmanager
    def nodewarden(self) -> Iterator[None]:
        """Nodewarden is at work while the block runs, and every node is verified; afterwards nothing of it is."""
        admin = self.cluster.admin
        for manifest in _guards():
            apply(admin, manifest)
        self.cluster.start()
        webhook = self._start_webhook()
        self._attest()
        until("every node is verified", lambda: self._verified() == NODES, 120)
        # A pod is steered and not gated once the webhook knows the workload, and nodes that pass.
        wait_until("the webhook decides", self._steers, 60)
        try:
            yield
        finally:
            self._unguard()
            self.plane.programs.running.remove(webhook)
            webhook.stop()
            self.cluster.stop_all()

    def _attest(self) -> None:
        for node in self.nodes:
            self.stream.publish(node)

    def _unguard(self) -> None:
        for manifest in (*self.webhooks, *_guards()):
            self.cluster.admin.delete(object_path(self.cluster.admin, manifest))
        # The API server stops asking after a moment.
        time.sleep(2)

    def _verified(self) -> int:
        return sum(
            any(policy["name"] == POLICY and policy["result"] == "Pass" for policy in item["status"]["policies"])
            for item in self.cluster.admin.must_get("/apis/nodewarden.dev/v1alpha1/nodeattestations")["items"]
            if "status" in item
        )

    def _steers(self) -> bool:
        answer = self.cluster.admin.create(pods_path(SENSITIVE), a_pod("probe", IMAGE), dry_run=True)
        spec = answer.body.get("spec", {})
        return answer.accepted and "affinity" in spec and "schedulingGates" not in spec

    def _start_webhook(self) -> Program:
        port, certificate = free_port(), self.plane.serving
        account = self.plane.service_account_kubeconfig(NAMESPACE, "nodewarden-webhook")
        settings = {
            "listen": {"host": "127.0.0.1", "port": port},
            "tls": {"certificate": str(certificate.certificate), "key": str(certificate.key)},
            "results": {
                "issuer": ISSUER,
                "audience": AUDIENCE,
                "jwks_file": str(self.stream.jwks_file(self.folder)),
            },
            "kubernetes": {"kubeconfig": str(account)},
            "state_file": str(self.folder / "webhook-state.db"),
        }
        config = self.folder / "webhook.yaml"
        config.write_text(json.dumps(settings))
        program = start_nodewarden(self.plane.programs, "webhook", "admission", "webhook", "--config", str(config))
        url = f"https://127.0.0.1:{port}"
        wait_until("the webhook is ready", lambda: answers(url, self.plane.ca, "/readyz"), 60)
        for manifest in self.webhooks:
            apply(self.cluster.admin, by_address(manifest, url, self.plane.ca.read_bytes()))
        return program

    def round(self, name: str, limit: int) -> Round:
        """All pods created, bound by a scheduler with that client limit, and gone again."""
        self.rounds += 1
        scheduler = next(p for p in self.plane.programs.running if p.name == "kube-scheduler")
        command = [str(part) for part in scheduler.process.args]  # type: ignore[union-attr]  # - a list, as we gave it
        given = command[command.index(str(find_program("kube-scheduler"))) + 1 :]
        arguments = [argument for argument in given if not argument.startswith("--kube-api-")]
        arguments += [f"--kube-api-qps={limit}", f"--kube-api-burst={limit}"]
        scheduler.stop()
        self.plane.programs.running.remove(scheduler)
        self._settle()
        created = self._create()
        self._attest()
        bindings = _Bindings(self.plane)
        before = self._cpu()
        self.plane.programs.start(find_program("kube-scheduler"), *arguments)
        bound = bindings.wait(PODS)
        spent = {key: seconds - before.get(key, 0.0) for key, seconds in self._cpu().items()}
        done = Round(PODS / created, (PODS - 1) / bound, spent)
        rates = f"created {done.created_per_s:.0f}/s, bound {done.bound_per_s:.0f}/s"
        busy = ", ".join(f"{key} {seconds:.1f}" for key, seconds in spent.items())
        print(f"  {name}, {limit}/s: {rates}; CPU seconds: {busy}", file=sys.stderr, flush=True)
        self._clear()
        return done

    def _settle(self) -> None:
        api_server = next(p for p in self._programs() if p.name == "kube-apiserver").process.pid
        until_time = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < until_time:
            before = _cpu_seconds(api_server)
            time.sleep(3)
            if _cpu_seconds(api_server) - before < 3 * SETTLED_CORES:
                return
        print("  the API server does not come to rest", file=sys.stderr, flush=True)

    def _create(self) -> float:
        def create(number: int) -> None:
            self.cluster.admin.must_create(pods_path(_namespace(number)), a_pod(self._name(number), IMAGE))

        began = time.monotonic()
        _for_each_pod(create)
        return time.monotonic() - began

    def _name(self, number: int) -> str:
        return f"p-{self.rounds}-{number}"

    def _cpu(self) -> dict[str, float]:
        programs = {p.name.split("-")[0] if p.name.startswith("controller-") else p.name: p for p in self._programs()}
        spent = {name: _cpu_seconds(program.process.pid) for name, program in programs.items()}
        return {**spent, "benchmark": time.process_time()}

    def _programs(self) -> list[Program]:
        return [p for p in self.plane.programs.running if p.name != "kube-controller-manager"]

    def _clear(self) -> None:
        admin = self.cluster.admin
        # One by one: to delete the collection takes the API server longer than the client waits.
        _for_each_pod(lambda number: admin.delete(pods_path(_namespace(number), self._name(number)), grace_seconds=0))
        for namespace in (SENSITIVE, PLAIN):
            path = f"{pods_path(namespace)}?limit=1"
            wait_until("the pods are gone", lambda path=path: not admin.must_get(path)["items"], 180)  # type: ignore[misc]  # - binds the loop variable


def _namespace(number: int) -> str:
    return SENSITIVE if number % 2 else PLAIN


def _for_each_pod(action: Callable[[int], object]) -> None:
    with ThreadPoolExecutor(CLIENTS) as clients:
        list(clients.map(action, range(PODS)))


class _Bindings:
    """When pods were first seen on a node, by a watch of pods that have one."""

    def __init__(self, plane: ControlPlane) -> None:
        self._client = KubeClient.from_kubeconfig(plane.kubeconfigs["admin"])
        listed = self._client.request("GET", "/api/v1/pods?limit=1")
        self._version = str(listed["metadata"]["resourceVersion"])
        self._stop = threading.Event()
        self._seen: dict[str, float] = {}
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        path = "/api/v1/pods?fieldSelector=spec.nodeName%21%3D"
        while not self._stop.is_set():
            self._client.watch(path, self._version, self._event, seconds=30, stopped=self._stop.is_set)

    def _event(self, kind: str, pod: Mapping[str, Any]) -> None:
        metadata = pod["metadata"]
        self._version = str(metadata["resourceVersion"])
        if kind == "ADDED" and metadata["namespace"] in (SENSITIVE, PLAIN):
            self._seen.setdefault(metadata["uid"], time.monotonic())

    def wait(self, count: int) -> float:
        """Seconds from the first binding to the last of `count`."""
        try:
            until(f"{count} pods are bound", lambda: len(self._seen) >= count, 600)
        finally:
            self._stop.set()
        times = sorted(self._seen.values())
        return times[-1] - times[0]


def _guards() -> list[dict[str, Any]]:
    return [m for m in install_manifests() if m["kind"] == "ValidatingAdmissionPolicyBinding"]


def _cpu_seconds(process: int) -> float:
    """User and system time of the process so far (proc(5): fields 14 and 15 of stat)."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND
