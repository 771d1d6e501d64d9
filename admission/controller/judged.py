"""The cluster as webhook and broker judge it: what the controller knows, and what it tells them against a node.

They read of a node that passes that it runs pods with host access (`NodeAttestation.host_access`), and deny. What the
controller says of pods, in statuses and reports, is said of this state; what it does to them is not: an intruder takes
a node's label, and ends no pod.
"""

from __future__ import annotations

from admission.cluster_objects import Node, Pod
from admission.controller.standing import standing_of
from admission.controller.view import ControllerView
from admission.trust_objects import NodeTrustPolicy, SensitiveWorkload, host_access_failure
from verifier.wire.failures import Failure
from verifier.wire.result import AttestationResult


class JudgedState:
    """A `ClusterState` over `view` for one look at `now`: what it found of a node it does not look up again."""

    def __init__(self, view: ControllerView, now: int) -> None:
        self._view, self._now = view, now
        self._policies = view.all_policies()
        self._found: dict[Node, AttestationResult | Failure] = {}

    def pod(self, namespace: str, name: str) -> Pod | None:
        return self._view.pod(namespace, name)

    def node(self, name: str) -> Node | None:
        return self._view.node(name)

    def governs(self, namespace: str) -> bool:
        return self._view.governs(namespace)

    def workloads_of(self, namespace: str, service_account: str) -> tuple[SensitiveWorkload, ...]:
        return self._view.workloads_of(namespace, service_account)

    def policy(self, name: str) -> NodeTrustPolicy | None:
        return self._view.policy(name)

    def result_of(self, node: Node) -> AttestationResult | Failure:
        """The result for the node; for one that passes a policy and runs intruders, `node-runs-intruder`."""
        found = self._found.get(node)
        if found is None:
            found = self._found[node] = self._judge(node)
        return found

    def _judge(self, node: Node) -> AttestationResult | Failure:
        intruders = self._view.intruders(node.name)
        if intruders and standing_of(self._view, node, self._policies, intruders, self._now).passed:
            return host_access_failure(node.name, intruders[0])
        return self._view.result_of(node)
