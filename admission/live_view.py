"""A `ClusterView` fed by watches: what decisions need is in memory before they are asked, and ages when it is not fed.

Two things must live, each proved within `MAX_SILENCE_SECONDS` by this machine's monotonic clock: every watch, and the
Lease by which the controller says that the verifier's stream is alive. Without either nothing sensitive is allowed.
Results are verified here again, once each: a NodeAttestation without the verifier's signature is worth nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from admission.cluster_objects import Node, Pod, Reader, parse_node, parse_pod
from admission.cluster_view import PodIdentity
from admission.informers import Informer
from admission.kinds import parse_attestation, parse_policy, parse_workload
from admission.kube import KubeClient
from admission.live_state import LiveState, Rules, Staleness
from admission.results import ResultVerifier
from admission.token_reviews import review_token
from admission.trust_objects import SYSTEM_NAMESPACE, NodeAttestation, NodeTrustPolicy, SensitiveWorkload
from admission.view_measures import ViewMeasures, measures_of
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure, Refusal, Rejection
from verifier.wire.result import AttestationResult

MAX_SILENCE_SECONDS = 30.0
MAX_NAMESPACES = 256
"""Each governed namespace is watched by itself."""
MAX_REMEMBERED = 20_000
RESULTS_LEASE = "nodewarden-results"

_GROUP = "/apis/nodewarden.dev/v1alpha1"
_LEASE_PATH = (
    f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM_NAMESPACE}/leases?fieldSelector=metadata.name%3D{RESULTS_LEASE}"
)


def read_pod(fields: Mapping[str, Any]) -> Pod:
    """The pod in `fields`, as the API server stores it. Raises MalformedEvidence `manifest-invalid`."""
    metadata = fields.get("metadata") or {}
    namespace = str(metadata.get("namespace"))
    return parse_pod(fields, namespace, Reader(ReasonCode.MANIFEST_INVALID, f"pods.{namespace}/{metadata.get('name')}"))


def read_node(fields: Mapping[str, Any]) -> Node:
    """The node in `fields`. Raises MalformedEvidence `manifest-invalid`."""
    return parse_node(fields, Reader(ReasonCode.MANIFEST_INVALID, "nodes"))


def read_renewal(fields: Mapping[str, Any]) -> str:
    """The time in a Lease at which its holder last renewed it, as text: only that it changes means anything."""
    reader = Reader(ReasonCode.MANIFEST_INVALID, f"leases.{RESULTS_LEASE}")
    return reader.text(reader.object(fields, "spec"), "renewTime")


class ResultReader:
    """Reads the result in a NodeAttestation, verified; each one once, while neither it nor the keys change."""

    def __init__(self, verifier: ResultVerifier, report: Callable[[Failure], None]) -> None:
        self._verifier, self._report = verifier, report
        self._verified: dict[str, tuple[NodeAttestation, AttestationResult]] = {}
        self._verified_keys = verifier.key_ids()

    def __call__(self, fields: Mapping[str, Any]) -> AttestationResult:
        """The result for exactly the Node that the object names. Raises as the verifier, `result-node-mismatch`."""
        try:
            attestation = parse_attestation(fields, "nodeattestations")
            name = attestation.node_name
            key_ids = self._verifier.key_ids()
            if key_ids != self._verified_keys:
                # A key that was withdrawn vouches for nothing that it signed before.
                self._verified, self._verified_keys = {}, key_ids
            known = self._verified.get(name)
            if known is not None and known[0] == attestation:
                return known[1]
            result = self._verifier.verify(attestation.claimed_result)
            attestation.require_no_host_access()
            if (result.node_name, result.kubernetes_node_uid) != (name, attestation.node_uid):
                seen = f"{result.node_name} {result.kubernetes_node_uid}"
                wanted = f"{name} {attestation.node_uid}"
                raise Rejection(ReasonCode.RESULT_NODE_MISMATCH, f"nodes.{name}.uid", seen, wanted)
        except Refusal as refusal:
            self._report(refusal.failure)
            raise
        if len(self._verified) >= MAX_REMEMBERED:
            self._verified.clear()
        self._verified[name] = (attestation, result)
        return result


class LiveClusterView:
    """The cluster that `client` sees. `start` once; then safe to read from any thread."""

    def __init__(
        self,
        client: KubeClient,
        results: ResultVerifier,
        report: Callable[[Failure], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self._verifier, self._clock = client, results, clock
        self._lock = threading.Lock()
        self._dirty = True
        self._fresh_until = float("-inf")
        self._renewed_at: float | None = None
        self._renewal: str | None = None
        self._key_ids = results.key_ids()
        self._versions: dict[str, int] = {}
        self._pods: dict[str, Informer[Pod]] = {}
        watched = partial(Informer, client, changed=self._mark, clock=clock)
        self._nodes: Informer[Node] = watched("/api/v1/nodes", read_node)
        self._policies: Informer[NodeTrustPolicy] = watched(
            f"{_GROUP}/nodetrustpolicies", partial(parse_policy, where="nodetrustpolicies")
        )
        self._workloads: Informer[SensitiveWorkload] = watched(f"{_GROUP}/sensitiveworkloads", _read_workload)
        self._attestations: Informer[AttestationResult] = watched(
            f"{_GROUP}/nodeattestations", ResultReader(results, report)
        )
        self._lease: Informer[str] = Informer(client, _LEASE_PATH, read_renewal, self._lease_changed, clock)
        nothing = Rules({}, frozenset(), {})
        unread = Failure(ReasonCode.VIEW_STALE, "view", "nothing was read yet")
        self._state = LiveState({}, {}, {}, {}, nothing, Staleness(rules=unread))

    def start(self) -> None:
        """Begins to list and watch; the first states are stale."""
        for informer in (self._nodes, self._policies, self._workloads, self._attestations, self._lease):
            informer.start()

    def stop(self) -> None:
        """Ends every watch soon."""
        for informer in (self._nodes, self._policies, self._workloads, self._attestations, self._lease):
            informer.stop()
        for pods in self._pods.values():
            pods.stop()

    def state(self) -> LiveState:
        """The newest state. Nothing is copied unless something changed since it was last asked for."""
        if not self._dirty and self._clock() < self._fresh_until:
            return self._state
        with self._lock:
            if self._dirty:
                # First, so that a change from now on is not lost.
                self._dirty = False
                self._refresh_maps()
            self._refresh_staleness()
            return self._state

    def check_token(self, token: str, now: int) -> PodIdentity:
        """Who `token` speaks for, as the API server says now. Raises as `review_token`."""
        return review_token(self._client, token, now)

    def unready(self) -> Failure | None:
        """Why this view cannot serve; None once everything was read. A Lease that stopped does not make it unready."""
        staleness = self.state().staleness
        return staleness.rules or staleness.cluster or next(iter((staleness.pods or {}).values()), None)

    def measures(self) -> ViewMeasures:
        """How large this view is, and how long ago each of its sources was heard of."""
        state, now = self.state(), self._clock()
        pods = [informer.alive_at for informer in [*self._pods.values()]]
        return measures_of(
            {
                "nodes": [state.nodes.values()],
                "pods": [one.values() for one in state.pods.values()],
                "policies": [state.policies.values()],
                "results": [state.results.values()],
                "workloads": [self._workloads.moment()[1].values()],
            },
            {
                "nodes": self._nodes.alive_at,
                # The quietest namespace stands for all.
                "pods": now if not pods else None if None in pods else min(at for at in pods if at is not None),
                "policies": self._policies.alive_at,
                "results": self._attestations.alive_at,
                "results-lease": self._renewed_at,
                "workloads": self._workloads.alive_at,
            },
            now,
        )

    def refresh(self) -> None:
        """Follows what changed without being asked, and reads results again where the verifier's keys changed."""
        key_ids = self._verifier.key_ids()
        if key_ids != self._key_ids:
            self._key_ids = key_ids
            self._attestations.read_again()
        self.state()

    def _mark(self) -> None:
        self._dirty = True

    def _lease_changed(self) -> None:
        _, leases = self._lease.moment()
        renewal = leases.get((SYSTEM_NAMESPACE, RESULTS_LEASE))
        with self._lock:
            if not isinstance(renewal, str):
                return
            # The first one that is seen may be years old: only a renewal while we look proves anything.
            if self._renewal is not None and renewal != self._renewal:
                self._renewed_at = self._clock()
                self._fresh_until = float("-inf")
            self._renewal = renewal

    def _refresh_maps(self) -> None:
        state = self._state
        nodes, policies = self._changed(self._nodes), self._changed(self._policies)
        workloads, attestations = self._changed(self._workloads), self._changed(self._attestations)
        rules = state.rules if workloads is None else self._rules_of(workloads)
        if workloads is not None:
            self._watch_namespaces(rules.governed)
        pods = {name: state.pods.get(name, {}) for name in self._pods}
        for name, informer in self._pods.items():
            changed = self._changed(informer)
            if changed is not None:
                pods[name] = changed
        self._state = LiveState(
            pods=pods,
            nodes=state.nodes if nodes is None else nodes,
            policies=state.policies if policies is None else policies,
            results=state.results if attestations is None else attestations,
            rules=rules,
            staleness=state.staleness,
        )
        self._fresh_until = float("-inf")

    def _changed(self, informer: Informer[Any]) -> Mapping[Any, Any] | None:
        if self._versions.get(informer.path) == informer.version:
            return None
        self._versions[informer.path], objects = informer.moment()
        return objects

    def _rules_of(self, workloads: Mapping[tuple[str, str], SensitiveWorkload | Failure]) -> Rules:
        by_subject: dict[tuple[str, str], tuple[SensitiveWorkload, ...]] = {}
        unreadable: dict[str, Failure] = {}
        for (_, name), workload in sorted(workloads.items()):
            if isinstance(workload, Failure):
                # Attack, or a newer version's object: rules that cannot be read must not be rules that do not exist.
                # Whom they were to govern is unknown, so nothing is allowed anywhere until they can be read.
                unreadable[""] = Failure(ReasonCode.VIEW_STALE, f"sensitiveworkloads.{name}", workload.line())
                continue
            for subject in workload.subjects:
                by_subject[subject] = (*by_subject.get(subject, ()), workload)
        governed = frozenset(namespace for namespace, _ in by_subject)
        if len(governed) > MAX_NAMESPACES:
            seen = f"{len(governed)} namespaces"
            unreadable[""] = Failure(ReasonCode.VIEW_STALE, "sensitiveworkloads", seen, f"at most {MAX_NAMESPACES}")
        return Rules(by_subject, governed, unreadable)

    def _watch_namespaces(self, governed: frozenset[str]) -> None:
        for name in self._pods.keys() - governed:
            informer = self._pods.pop(name)
            informer.stop()
            self._versions.pop(informer.path, None)
        for name in sorted(governed - self._pods.keys())[: MAX_NAMESPACES - len(self._pods)]:
            path = f"/api/v1/namespaces/{name}/pods"
            self._pods[name] = Informer(self._client, path, read_pod, self._mark, self._clock)
            self._pods[name].start()

    def _refresh_staleness(self) -> None:
        now = self._clock()
        oldest = [now]

        def fault(what: str, alive_at: float | None, code: ReasonCode = ReasonCode.VIEW_STALE) -> Failure | None:
            if alive_at is None:
                return Failure(code, what, "never heard of", f"within {MAX_SILENCE_SECONDS:.0f} s")
            if now - alive_at >= MAX_SILENCE_SECONDS:
                return Failure(code, what, f"silent for {now - alive_at:.0f} s", f"within {MAX_SILENCE_SECONDS:.0f} s")
            oldest.append(alive_at)
            return None

        cluster = [
            fault("view.nodes", self._nodes.alive_at),
            fault("view.policies", self._policies.alive_at),
            fault("view.attestations", self._attestations.alive_at),
        ]
        pods = {name: fault(f"view.pods.{name}", informer.alive_at) for name, informer in self._pods.items()}
        staleness = Staleness(
            rules=fault("view.workloads", self._workloads.alive_at),
            cluster=next((failure for failure in cluster if failure is not None), None),
            pods={name: failure for name, failure in pods.items() if failure is not None},
            results=fault(f"leases.{RESULTS_LEASE}", self._renewed_at, ReasonCode.RESULTS_STALE),
        )
        state = self._state
        self._state = LiveState(state.pods, state.nodes, state.policies, state.results, state.rules, staleness)
        broken = staleness.rules or staleness.cluster or staleness.pods or staleness.results
        # While something is broken each decision looks again; else not before the first watch could fall silent.
        self._fresh_until = float("-inf") if broken else min(oldest) + MAX_SILENCE_SECONDS


def _read_workload(fields: Mapping[str, Any]) -> SensitiveWorkload:
    return parse_workload(fields, "sensitiveworkloads")
