"""One moment of a cluster as watches told it: pure data, shared by all decisions until something changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from admission.cluster_objects import Node, Pod
from admission.cluster_view import PodIdentity
from admission.trust_objects import NodeTrustPolicy, SensitiveWorkload
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure
from verifier.wire.result import AttestationResult


@dataclass(frozen=True, slots=True)
class Rules:
    """Workloads by whom they govern. `unreadable` says why nothing is allowed in a namespace ("" is all of them)."""

    by_subject: Mapping[tuple[str, str], tuple[SensitiveWorkload, ...]]
    governed: frozenset[str]
    unreadable: Mapping[str, Failure]


@dataclass(frozen=True, slots=True)
class Staleness:
    """What the view has lost touch with: with the rules, with what all decisions need, or with single namespaces.

    Without the rules nobody can tell what is sensitive, so nothing is allowed anywhere.
    """

    rules: Failure | None = None
    cluster: Failure | None = None
    pods: Mapping[str, Failure] | None = None
    results: Failure | None = None


@dataclass(frozen=True, slots=True)
class LiveState:
    """An `AdmissionState` of maps that nobody changes any more."""

    pods: Mapping[str, Mapping[tuple[str, str], Pod | Failure]]
    nodes: Mapping[tuple[str, str], Node | Failure]
    policies: Mapping[tuple[str, str], NodeTrustPolicy | Failure]
    results: Mapping[tuple[str, str], AttestationResult | Failure]
    rules: Rules
    staleness: Staleness

    def stale(self, namespace: str) -> Failure | None:
        stale = self.staleness
        if stale.rules is not None:
            return stale.rules
        unreadable = self.rules.unreadable
        if unreadable and ("" in unreadable or namespace in unreadable):
            return unreadable.get(namespace) or unreadable[""]
        if namespace not in self.rules.governed:
            return None
        if stale.cluster is not None:
            return stale.cluster
        return None if stale.pods is None else stale.pods.get(namespace)

    def node_names(self) -> Iterable[str]:
        return (name for _, name in self.nodes)

    def account_failure(self, identity: PodIdentity) -> Failure | None:  # noqa: ARG002 - TokenReview asked the API server
        return None

    def pod(self, namespace: str, name: str) -> Pod | None:
        pods = self.pods.get(namespace)
        pod = None if pods is None else pods.get((namespace, name))
        return None if isinstance(pod, Failure) else pod

    def node(self, name: str) -> Node | None:
        node = self.nodes.get(("", name))
        return None if isinstance(node, Failure) else node

    def governs(self, namespace: str) -> bool:
        return namespace in self.rules.governed

    def workloads_of(self, namespace: str, service_account: str) -> tuple[SensitiveWorkload, ...]:
        return self.rules.by_subject.get((namespace, service_account), ())

    def policy(self, name: str) -> NodeTrustPolicy | None:
        policy = self.policies.get(("", name))
        return None if isinstance(policy, Failure) else policy

    def result_of(self, node: Node) -> AttestationResult | Failure:
        if self.staleness.results is not None:
            return self.staleness.results
        return self.results.get(("", node.name)) or Failure(ReasonCode.RESULT_MISSING, f"nodes.{node.name}")
