"""Opens our scheduling gate for a sensitive pod when a node that passes for it exists; tells people while none does.

The gate keeps pods that no node may take out of the scheduler's queue; it decides nothing: affinity steers, and the
binding check is the gate that holds.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog

from admission.clock import Clock
from admission.controller.node_marks import VERIFIED_LABEL
from admission.controller.observed import ObservedPod
from admission.controller.pending import PendingPods
from admission.controller.view import ControllerView
from admission.controller.writer import Writer
from admission.kube import KubeNotFound
from admission.node_check import node_failures
from admission.pod_rules import Governance, govern
from admission.trust_objects import ATTESTATION_GATE

AGAIN_SECONDS = 30.0
"""A gated pod is looked at when a node gets a label; this is for whatever else may let it through."""


class Gates:
    """`reconcile` takes the name NAMESPACE/POD of a pod that may wait at our gate."""

    def __init__(
        self, view: ControllerView, writer: Writer, clock: Clock, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._view, self._writer, self._clock = view, writer, clock
        self._pending = PendingPods(view, writer, monotonic)

    def reconcile(self, name: str) -> float | None:
        namespace, _, pod_name = name.partition("/")
        pod = self._view.pods.get(pod_name, namespace)
        if pod is None or pod.pod.deleting or ATTESTATION_GATE not in pod.pod.gates:
            self._pending.forget(name)
            return None
        now = self._clock()
        governance = govern(self._view, pod.pod, now)
        if governance is None:
            # An object that we cannot read may be the one that governs the pod.
            if not self._view.workloads.unreadable():
                self._open(pod)
            return AGAIN_SECONDS
        if governance.faults or not self._has_node(governance, now):
            return self._pending.wait(name, pod, governance, now) or AGAIN_SECONDS
        self._open(pod)
        return None

    def _has_node(self, governance: Governance, now: int) -> bool:
        denying = [applied.policy for applied in governance.policies if applied.action == "deny"]
        # Where policies only warn, or an exemption holds, any node will do.
        return not denying or any(
            VERIFIED_LABEL in observed.labels
            and not self._view.intruders(observed.node.name)
            and not any(
                node_failures(self._view, observed.node.name, policy, governance.raised, now) for policy in denying
            )
            for observed in self._view.nodes.values()
        )

    def _open(self, pod: ObservedPod) -> None:
        index = pod.pod.gates.index(ATTESTATION_GATE)
        where = f"/spec/schedulingGates/{index}"
        operations = [
            {"op": "test", "path": "/metadata/uid", "value": pod.pod.uid},
            {"op": "test", "path": f"{where}/name", "value": ATTESTATION_GATE},
            {"op": "remove", "path": where},
        ]
        try:
            self._writer.patch(f"/api/v1/namespaces/{pod.pod.namespace}/pods/{pod.pod.name}", operations)
        except KubeNotFound:
            return
        structlog.get_logger().info("pod_gate_opened", namespace=pod.pod.namespace, name=pod.pod.name)
