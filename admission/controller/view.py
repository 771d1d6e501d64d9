"""The cluster as the controller sees it: caches of what it reads, joined with the results it verified itself.

A `ClusterState`, so that nodes and pods are judged by the same pure functions as in the webhook.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from admission.cluster_objects import Node, Pod
from admission.controller.node_marks import our_labels
from admission.controller.observed import ObservedNode, ObservedPod, observe_node, observe_pod
from admission.controller.results_book import ResultsBook
from admission.informers import Informer, Key
from admission.kinds import parse_policy, parse_workload
from admission.kube import KubeClient
from admission.lease_records import Recorded, observe_record
from admission.trust_objects import ATTESTATION_GATE, NodeTrustPolicy, SensitiveWorkload
from verifier.wire.failures import Failure
from verifier.wire.result import AttestationResult

OURS = "/apis/nodewarden.dev/v1alpha1"

ValueT = TypeVar("ValueT")


@dataclass(frozen=True, slots=True)
class Kept(Generic[ValueT]):
    """One of our objects, with what its status is written by."""

    value: ValueT
    uid: str
    generation: int
    status: Mapping[str, Any] = field(hash=False)


ALLOW_LIST = "nodewarden-privileged-allow-list"
"""ConfigMap of the pods that may act upon verified nodes; the policy that guards their creation reads it as well."""


Change = Callable[[str, str], None]
"""Hears (kind of work, name) whenever something changed that this work depends on."""


class ControllerView:
    """All caches. Reads are safe from any thread and answered from memory."""

    def __init__(self, client: KubeClient, book: ResultsBook, namespace: str, changed: Change) -> None:
        self._book, self._changed = book, changed
        self._lock = threading.Lock()
        self._by_node: dict[str, dict[Key, ObservedPod]] = {}
        self._gated: dict[Key, ObservedPod] = {}
        self._releases: dict[str, dict[Key, Recorded]] = {}
        self._by_subject: dict[tuple[str, str], tuple[SensitiveWorkload, ...]] = {}
        follow = partial(Informer, client)
        self.nodes: Informer[ObservedNode] = follow("/api/v1/nodes", observe_node, on_change=self._node_changed)
        self.pods: Informer[ObservedPod] = follow("/api/v1/pods", observe_pod, on_change=self._pod_changed)
        self.policies: Informer[Kept[NodeTrustPolicy]] = follow(
            f"{OURS}/nodetrustpolicies", _kept(parse_policy), on_change=self._policy_changed
        )
        self.workloads: Informer[Kept[SensitiveWorkload]] = follow(
            f"{OURS}/sensitiveworkloads", _kept(parse_workload), on_change=self._workload_changed
        )
        self.attestations: Informer[Kept[str]] = follow(
            f"{OURS}/nodeattestations", _kept(_node_uid), on_change=lambda key, _old, _new: changed("node", key[1])
        )
        self.releases: Informer[Recorded] = follow(
            f"{OURS}/secretreleases", observe_record, on_change=self._release_changed
        )
        self.allow_list: Informer[frozenset[str]] = follow(
            f"/api/v1/namespaces/{namespace}/configmaps?fieldSelector=metadata.name%3D{ALLOW_LIST}",
            allowed_subjects,
            on_change=lambda _key, _old, _new: changed("everything", ""),
        )

    def informers(self) -> tuple[Informer[Any], ...]:
        ours = (self.policies, self.workloads, self.attestations, self.releases)
        return (self.allow_list, self.nodes, self.pods, *ours)

    # --- ClusterState ---

    def pod(self, namespace: str, name: str) -> Pod | None:
        found = self.pods.get(name, namespace)
        return None if found is None else found.pod

    def node(self, name: str) -> Node | None:
        found = self.nodes.get(name)
        return None if found is None else found.node

    def governs(self, namespace: str) -> bool:
        return any(subject[0] == namespace for subject in self._by_subject.copy())

    def workloads_of(self, namespace: str, service_account: str) -> tuple[SensitiveWorkload, ...]:
        return self._by_subject.get((namespace, service_account), ())

    def policy(self, name: str) -> NodeTrustPolicy | None:
        kept = self.policies.get(name)
        return None if kept is None else kept.value

    def result_of(self, node: Node) -> AttestationResult | Failure:
        return self._book.result_of(node.name)

    # --- what only the controller asks ---

    def all_policies(self) -> tuple[NodeTrustPolicy, ...]:
        """Every readable policy, by name."""
        return tuple(sorted((kept.value for kept in self.policies.values()), key=lambda policy: policy.name))

    def unreadable_policies(self) -> frozenset[str]:
        """Names of the policies that exist and cannot be read."""
        return self.policies.unreadable()

    def pods_on(self, node_name: str) -> tuple[ObservedPod, ...]:
        """The pods that are bound to the node and whose containers are not over."""
        with self._lock:
            found = tuple(self._by_node.get(node_name, {}).values())
        return tuple(pod for pod in found if not pod.pod.ended)

    def gated(self) -> tuple[ObservedPod, ...]:
        """The pods that wait at our gate."""
        with self._lock:
            return tuple(self._gated.values())

    def releases_of(self, node_name: str) -> tuple[Recorded, ...]:
        """The leases on nodes of this name, also those whose records say no more than that."""
        with self._lock:
            return tuple(self._releases.get(node_name, {}).values())

    def leased_nodes(self) -> tuple[str, ...]:
        """The names of nodes, present or gone, of whose leases there are records."""
        with self._lock:
            return tuple(name for name, releases in self._releases.items() if releases)

    def intruders(self, node_name: str) -> tuple[str, ...]:
        """The pods on the node that could act upon it and are not on the list of those that may."""
        return tuple(
            sorted(
                f"{found.pod.namespace}/{found.pod.name} ({found.host_reach[0]})"
                for found in self.pods_on(node_name)
                if found.host_reach and not self._may_reach(found.pod)
            )
        )

    def _may_reach(self, pod: Pod) -> bool:
        # kube-system as in the policy that guards creation: a cluster must come up whatever happens here.
        listed: frozenset[str] = frozenset().union(*self.allow_list.values())
        subjects = (f"{pod.namespace}/*", f"{pod.namespace}/{pod.service_account}")
        return pod.namespace == "kube-system" or not listed.isdisjoint(subjects)

    # --- changes ---

    def _node_changed(self, key: Key, old: ObservedNode | None, new: ObservedNode | None) -> None:
        # A kubelet's heartbeat changes only the version.
        if old is None or new is None or (old.node, old.labels, old.taints) != (new.node, new.labels, new.taints):
            self._changed("node", key[1])
        if _ours(old) != _ours(new):
            self._changed("marks", "")

    def _pod_changed(self, key: Key, old: ObservedPod | None, new: ObservedPod | None) -> None:
        with self._lock:
            if old is not None and old.pod.node_name:
                self._by_node.get(old.pod.node_name, {}).pop(key, None)
            if new is not None and new.pod.node_name:
                self._by_node.setdefault(new.pod.node_name, {})[key] = new
            if new is not None and ATTESTATION_GATE in new.pod.gates:
                self._gated[key] = new
            else:
                self._gated.pop(key, None)
        if new is not None and ATTESTATION_GATE in new.pod.gates:
            self._changed("gate", f"{key[0]}/{key[1]}")
        for pod in (old, new):
            if pod is None:
                continue
            governed = self.workloads_of(pod.pod.namespace, pod.pod.service_account)
            for workload in governed:
                self._changed("workload", workload.name)
            if pod.pod.node_name and (pod.host_reach or governed):
                self._changed("node", pod.pod.node_name)

    def _policy_changed(self, key: Key, old: Kept[NodeTrustPolicy] | None, new: Kept[NodeTrustPolicy] | None) -> None:
        if old is None or new is None or old.value != new.value:
            self._changed("everything", "")
        else:
            self._changed("policy", key[1])

    def _workload_changed(
        self, key: Key, old: Kept[SensitiveWorkload] | None, new: Kept[SensitiveWorkload] | None
    ) -> None:
        if old is not None and new is not None and old.value == new.value:
            self._changed("workload", key[1])
            return
        by_subject: dict[tuple[str, str], tuple[SensitiveWorkload, ...]] = {}
        for kept in self.workloads.values():
            for subject in kept.value.subjects:
                by_subject[subject] = (*by_subject.get(subject, ()), kept.value)
        self._by_subject = by_subject
        self._changed("everything", "")

    def _release_changed(self, key: Key, old: Recorded | None, new: Recorded | None) -> None:
        with self._lock:
            if old is not None:
                self._releases.get(old.node_name, {}).pop(key, None)
            if new is not None and new.node_name:
                self._releases.setdefault(new.node_name, {})[key] = new
        for record in (old, new):
            if record is not None:
                if record.node_name:
                    self._changed("leases", record.node_name)
                pod = self.pod(record.namespace, record.pod_name)
                for workload in () if pod is None else self.workloads_of(pod.namespace, pod.service_account):
                    self._changed("workload", workload.name)


def _ours(observed: ObservedNode | None) -> Mapping[str, str]:
    return {} if observed is None else our_labels(observed)


def _kept(parse: Callable[[Mapping[str, Any], str], ValueT]) -> Callable[[Mapping[str, Any]], Kept[ValueT]]:
    def read(fields: Mapping[str, Any]) -> Kept[ValueT]:
        metadata = fields["metadata"]
        name = f"{str(fields.get('kind')).lower()}s.{metadata.get('name')}"
        status = fields.get("status")
        return Kept(
            parse(fields, name),
            str(metadata.get("uid")),
            int(metadata.get("generation") or 0),
            status if isinstance(status, dict) else {},
        )

    return read


def _node_uid(fields: Mapping[str, Any], _where: str) -> str:
    return str((fields.get("spec") or {}).get("nodeUID"))


def allowed_subjects(fields: Mapping[str, Any]) -> frozenset[str]:
    """The lines NAMESPACE/SERVICEACCOUNT and NAMESPACE/* under `allow` in the ConfigMap."""
    entries = fields.get("data")
    text = entries.get("allow", "") if isinstance(entries, dict) else ""
    return frozenset(line for line in str(text).split("\n") if "/" in line)
