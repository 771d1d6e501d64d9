"""What decisions read of the cluster: one moment of it (`ClusterState`), and its source (`ClusterView`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from admission.cluster_objects import Node, Pod, ServiceAccount
from admission.trust_objects import NodeTrustPolicy, SensitiveWorkload
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure
from verifier.wire.result import AttestationResult


@dataclass(frozen=True, slots=True)
class PodIdentity:
    """Who a verified, pod-bound ServiceAccount token speaks for, and on which node the API server issued it."""

    namespace: str
    service_account: str
    service_account_uid: str
    pod_name: str
    pod_uid: str
    node_name: str
    node_uid: str
    expires_at: int


class ClusterState(Protocol):
    """One consistent moment of the cluster. Every look-up is answered from memory."""

    def pod(self, namespace: str, name: str) -> Pod | None: ...

    def node(self, name: str) -> Node | None: ...

    def governs(self, namespace: str) -> bool:
        """Whether any SensitiveWorkload has a subject in `namespace`."""
        ...

    def workloads_of(self, namespace: str, service_account: str) -> tuple[SensitiveWorkload, ...]:
        """The workloads that govern this ServiceAccount's pods; empty when they are not sensitive."""
        ...

    def policy(self, name: str) -> NodeTrustPolicy | None: ...

    def result_of(self, node: Node) -> AttestationResult | Failure:
        """The verified result for this Node object, possibly expired; or why there is none."""
        ...


class AdmissionState(ClusterState, Protocol):
    """A state that knows how good it is: what decisions about requests are made on."""

    def stale(self, namespace: str) -> Failure | None:
        """Why nothing can be decided about pods of `namespace` now; None while the state is as good as the cluster."""
        ...

    def node_names(self) -> Iterable[str]: ...

    def account_failure(self, identity: PodIdentity) -> Failure | None:
        """Why the ServiceAccount of a checked token does not count in this state; None where the check told that."""
        ...


class ClusterView(Protocol):
    """A source of states, and the check of tokens that needs the cluster's say."""

    def state(self) -> AdmissionState: ...

    def check_token(self, token: str, now: int) -> PodIdentity:
        """Who `token` speaks for. Raises Rejection `token-invalid`, `token-not-pod-bound`."""
        ...


@dataclass(frozen=True, slots=True)
class Snapshot:
    """An `AdmissionState` in dictionaries. `results` is keyed by node name; a pod that could not be read is unknown.

    With a `fault` it is too old to allow anything: without the rules of now nobody can tell what is sensitive.
    """

    pods: Mapping[tuple[str, str], Pod | Failure]
    nodes: Mapping[str, Node]
    service_accounts: Mapping[tuple[str, str], ServiceAccount]
    policies: Mapping[str, NodeTrustPolicy]
    workloads: tuple[SensitiveWorkload, ...]
    results: Mapping[str, AttestationResult | Failure]
    fault: Failure | None = None
    _by_subject: Mapping[tuple[str, str], tuple[SensitiveWorkload, ...]] = field(init=False, repr=False)
    _governed: frozenset[str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        by_subject: dict[tuple[str, str], tuple[SensitiveWorkload, ...]] = {}
        for workload in self.workloads:
            for subject in workload.subjects:
                by_subject[subject] = (*by_subject.get(subject, ()), workload)
        object.__setattr__(self, "_by_subject", by_subject)
        object.__setattr__(self, "_governed", frozenset(namespace for namespace, _ in by_subject))

    def stale(self, namespace: str) -> Failure | None:  # noqa: ARG002 - the rules of all namespaces are read together
        return self.fault

    def account_failure(self, identity: PodIdentity) -> Failure | None:
        account = self.service_accounts.get((identity.namespace, identity.service_account))
        if account is not None and account.uid == identity.service_account_uid:
            return None
        return Failure(ReasonCode.TOKEN_INVALID, "token.serviceaccount", "deleted or re-created")

    def node_names(self) -> Iterable[str]:
        return self.nodes

    def pod(self, namespace: str, name: str) -> Pod | None:
        pod = self.pods.get((namespace, name))
        return None if isinstance(pod, Failure) else pod

    def node(self, name: str) -> Node | None:
        return self.nodes.get(name)

    def governs(self, namespace: str) -> bool:
        return namespace in self._governed

    def workloads_of(self, namespace: str, service_account: str) -> tuple[SensitiveWorkload, ...]:
        return self._by_subject.get((namespace, service_account), ())

    def policy(self, name: str) -> NodeTrustPolicy | None:
        return self.policies.get(name)

    def result_of(self, node: Node) -> AttestationResult | Failure:
        return self.results.get(node.name) or Failure(ReasonCode.RESULT_MISSING, f"nodes.{node.name}")
