"""Writes what concerns more than one node: statuses of workloads and policies, and the VerifiedNodeSet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from admission.clock import Clock
from admission.controller.eviction import LOST_EVENT
from admission.controller.judged import JudgedState
from admission.controller.lease_status import secrets_released
from admission.controller.node_set import NAME, node_set, node_set_object
from admission.controller.scan import WorkloadScan, policy_status, scan_workload, workload_status
from admission.controller.standing import NodeStanding, standing_of
from admission.controller.view import OURS, ControllerView
from admission.controller.writer import Writer
from admission.kube import KubeNotFound

SCAN_SECONDS = 30.0
"""Time alone changes what the counts say; this is how far behind they may be."""
NODE_SET_SECONDS = 5.0
MAX_ANNOUNCED = 10_000


class Overview:
    """Each method takes the name of its object, and returns after how many seconds to look again."""

    def __init__(self, view: ControllerView, writer: Writer, clock: Clock) -> None:
        self._view, self._writer, self._clock = view, writer, clock
        self._announced: set[str] = set()
        self._entries: Mapping[str, str] | None = None
        self._pods: dict[str, WorkloadScan] = {}

    def workload(self, name: str) -> float | None:
        """The SensitiveWorkload's status is current; pods that newly run where they may not have an Event."""
        kept = self._view.workloads.get(name)
        if kept is None:
            self._pods.pop(name, None)
            return None
        now = self._clock()
        scan = scan_workload(JudgedState(self._view, now), kept.value, self._view.pods.values(), now)
        self._pods[name] = scan
        passed = frozenset(policy for standing in self._standings(now) for policy in standing.labelled)
        policies = {policy.name: policy.name in passed for policy in self._view.all_policies()}
        status = workload_status(kept.value, scan, policies, kept.status, kept.generation, now)
        releases = self._view.releases.values()
        status["conditions"].append(secrets_released(self._view, kept.value, releases, kept.status, now))
        self._write("sensitiveworkloads", name, kept.status, status)
        for violation in scan.violations:
            uid = str(violation.pod.pod.uid)
            if uid not in self._announced and len(self._announced) < MAX_ANNOUNCED:
                self._announced.add(uid)
                note = " ".join(f"{failure.code.value} ({failure.line()})." for failure in violation.failures[:4])
                self._writer.announce_pod(violation.pod, LOST_EVENT, f"runs where it may not: {note}")
        return SCAN_SECONDS

    def policy(self, name: str) -> float | None:
        """The NodeTrustPolicy's status is current."""
        kept = self._view.policies.get(name)
        if kept is None:
            return None
        now = self._clock()
        status = policy_status(kept.value, self._standings(now), kept.status, kept.generation, now)
        self._write("nodetrustpolicies", name, kept.status, status)
        return SCAN_SECONDS

    def node_set(self, _: str) -> float:
        """The VerifiedNodeSet holds the nodes that pass now, and no other."""
        now = self._clock()
        entries = node_set(self._standings(now), now)
        if entries != self._entries:
            path = f"{OURS}/verifiednodesets"
            before = self._entries or {}
            gone = dict.fromkeys(before.keys() - entries.keys())
            try:
                if self._entries is None:
                    self._replace(path, entries)
                else:
                    self._writer.merge(f"{path}/{NAME}", {"spec": {"nodes": {**entries, **gone}}})
            except KubeNotFound:
                self._writer.create(path, node_set_object(entries))
            self._entries = entries
        return NODE_SET_SECONDS

    def take_over(self) -> None:
        """Another replica may have written meanwhile: nothing of what stands is known."""
        self._entries = None
        self._announced.clear()
        self._pods.clear()

    def pods(self) -> Mapping[str, int]:
        """How many pods of all workloads stood how at the last scan."""
        scans = list(self._pods.copy().values())
        return {
            "verified": sum(scan.verified for scan in scans),
            "gated": sum(scan.gated for scan in scans),
            "violating": sum(len(scan.violations) for scan in scans),
        }

    def _replace(self, path: str, entries: Mapping[str, str]) -> None:
        self._writer.patch(f"{path}/{NAME}", [{"op": "replace", "path": "/spec/nodes", "value": dict(entries)}])

    def _standings(self, now: int) -> list[NodeStanding]:
        policies = self._view.all_policies()
        return [
            standing_of(self._view, observed.node, policies, self._view.intruders(observed.node.name), now)
            for observed in self._view.nodes.values()
        ]

    def _write(self, plural: str, name: str, before: Mapping[str, Any], wanted: dict[str, Any]) -> None:
        if all(before.get(field) == value for field, value in wanted.items()):
            return
        try:
            self._writer.merge(f"{OURS}/{plural}/{name}/status", {"status": wanted})
        except KubeNotFound:
            return
