"""Brings everything about one node to where the verifier's newest word puts it, in the order that loss of trust asks.

1. The NodeAttestation carries a fallen result before anything else: from then on webhook and broker refuse.
2. Leases of the node's secrets start to be revoked.
3. After at most one second, answered or not, labels go and, where a policy asks for it, the taint comes.
4. Pods that may not run there any more are evicted, then deleted.
A step that the API server refuses does not hold up those after it; the whole is tried again until nothing is refused.
"""

from __future__ import annotations

import time

import structlog

from admission.clock import Clock
from admission.controller.attestation_object import (
    attestation_object,
    attestation_status,
    recorded_losses,
    refresh_at,
    unproven_since,
    write_due,
)
from admission.controller.eviction import LOST_EVENT, Evictions
from admission.controller.loss import fate_of
from admission.controller.meter import ControllerMeter
from admission.controller.node_marks import (
    VERIFIED_LABEL,
    both,
    label_patch,
    labels_wanted,
    lost_policies,
    taint_patch,
    taints_wanted,
)
from admission.controller.observed import ObservedNode, observe_node
from admission.controller.results_book import Entry, ResultsBook
from admission.controller.revocation import RevocationOrders
from admission.controller.standing import NodeStanding, standing_of
from admission.controller.view import OURS, ControllerView, Kept
from admission.controller.writer import Writer
from admission.kube import KubeConflict
from admission.pod_rules import govern
from verifier.wire.failures import Refusal

REVOCATION_HEAD_START_SECONDS = 0.8
"""Longest that label and taint wait for the leases; with the write that takes them off it stays under a second."""
ATTESTATIONS = f"{OURS}/nodeattestations"
_REMOVABLE = ("bootID", "evidenceDigest", "baseline")


class NodeReconciler:
    """`reconcile` may run for different nodes at once, for one node never twice at once."""

    def __init__(
        self,
        view: ControllerView,
        book: ResultsBook,
        writer: Writer,
        evictions: Evictions,
        clock: Clock,
        meter: ControllerMeter | None = None,
    ) -> None:
        self._meter = ControllerMeter() if meter is None else meter
        self._view, self._book, self._writer, self._evictions = view, book, writer, evictions
        self._clock = clock
        self._orders = RevocationOrders(view, writer)
        self._fell_at: dict[str, float] = {}
        self._unwritten: dict[str, float] = {}
        self._stored: dict[str, str] = {}
        self._ending: dict[str, frozenset[str]] = {}
        self._pods_wait: set[str] = set()

    def oldest_unwritten_seconds(self) -> float:
        """For how long a fallen result has been known and not been written; 0 when none is."""
        return max((time.monotonic() - since for since in self._unwritten.copy().values()), default=0.0)

    def reconcile(self, name: str) -> float | None:
        """Does what is due for the node `name`. Returns after how many seconds time alone asks for another look."""
        observed, kept = self._view.nodes.get(name), self._view.attestations.get(name)
        if observed is None:
            if kept is not None:
                self._writer.delete(f"{ATTESTATIONS}/{name}", kept.uid)
            self._forget(name)
            return self._revoke_of_gone(name)
        now = self._clock()
        standing = standing_of(self._view, observed.node, self._view.all_policies(), self._view.intruders(name), now)
        entry = self._book.entry(name)
        fell_at = self._note_fall(name, standing)
        refused: list[Refusal] = []
        before = {} if kept is None or kept.value != observed.node.uid else kept.status
        # Recorded with the first step, before any label goes: whoever takes over then knows what was lost.
        lost = lost_policies(observed, standing, recorded_losses(before), self._view.unreadable_policies())
        try:
            kept = self._current(kept, standing, entry)
            if kept is not None and entry is not None:
                self._write_status(kept, standing, entry, lost, now)
            self._unwritten.pop(name, None)
        except Refusal as refusal:
            refused.append(refusal)
        looks: list[float | None] = []
        if fell_at is not None:
            # 2. and 3.: the head start ends when all are revoked, or when it is over.
            left = REVOCATION_HEAD_START_SECONDS - (time.monotonic() - fell_at)
            open_leases = self._orders.revoke(name, now, refused)
            if open_leases and left > 0:
                return min(left, 0.1)
            looks.append(1.0 if open_leases else None)
        try:
            if self._mark(observed, standing, lost) and not refused and name not in self._pods_wait:
                # Where many nodes fell at once, each loses its label before the pods of any are ended.
                self._pods_wait.add(name)
                return 0.0
        except Refusal as refusal:
            refused.append(refusal)
        self._pods_wait.discard(name)
        looks += self._end_pods(standing, unproven_since(standing, before, now), refused, now)
        if refused:
            raise refused[0]
        # A result that is stored needs no refreshing, however old; the next one to come asks for a look itself.
        waits = entry is not None and entry.token not in (self._stored.get(name), before.get("result"))
        times = (standing.changes_at(), refresh_at(before, standing) if waits else None)
        looks += [float(max(moment - now, 1)) for moment in times if moment is not None]
        return min((look for look in looks if look is not None), default=None)

    def _revoke_of_gone(self, name: str) -> float | None:
        """Where a Node object was deleted, a bad verdict about its name still takes back what was released there.

        Attack, or just a person in a hurry: the machine is taken out of the cluster first and revoked afterwards.
        """
        entry = self._book.entry(name)
        if entry is None or all(entry.result.verdict in policy.accept for policy in self._view.all_policies()):
            return None
        refused: list[Refusal] = []
        open_leases = self._orders.revoke(name, self._clock(), refused)
        if refused:
            raise refused[0]
        return 1.0 if open_leases else None

    def _note_fall(self, name: str, standing: NodeStanding) -> float | None:
        if not standing.fallen:
            self._fell_at.pop(name, None)
            self._unwritten.pop(name, None)
            self._meter.settled(name)
            return None
        if name not in self._fell_at:
            self._fell_at[name] = self._unwritten[name] = time.monotonic()
            self._meter.fell(name)
        return self._fell_at[name]

    def _current(self, kept: Kept[str] | None, standing: NodeStanding, entry: Entry | None) -> Kept[str] | None:
        """The NodeAttestation of this very Node object; none where the verifier never spoke of a node of its name."""
        node = standing.node
        if kept is not None and (entry is None or kept.value != node.uid):
            self._writer.delete(f"{ATTESTATIONS}/{node.name}", kept.uid)
            kept = None
        if entry is None:
            return None
        if kept is not None:
            return kept
        made = self._writer.create(ATTESTATIONS, attestation_object(standing))
        return Kept(str(node.uid), str(made["metadata"]["uid"]), 1, {})

    def _write_status(
        self, kept: Kept[str], standing: NodeStanding, entry: Entry, lost: frozenset[str], now: int
    ) -> None:
        name, before = standing.node.name, kept.status
        wanted = attestation_status(standing, entry, before, lost, now)
        stored = before.get("result")
        # Attack: a result written into the object by someone else. It fools nobody, and does not stay.
        foreign = stored not in (entry.token, self._stored.get(name))
        if not foreign and not write_due(before, wanted, standing, now):
            return
        gone = {field: None for field in _REMOVABLE if field not in wanted}
        body = {"metadata": {"uid": kept.uid}, "status": {**wanted, **gone}}
        self._view.attestations.told(self._writer.merge(f"{ATTESTATIONS}/{name}/status", body))
        self._stored[name] = entry.token

    def _mark(self, observed: ObservedNode, standing: NodeStanding, lost: frozenset[str]) -> bool:
        """The node has the labels and taints that it shall have. Returns whether anything was written for that."""
        labels = label_patch(observed, labels_wanted(standing))
        taints = taint_patch(observed, taints_wanted(observed, standing, lost))
        if labels is None:
            self._meter.settled(observed.node.name)
        patch = both(labels, taints)
        if patch is None:
            return False
        path = f"/api/v1/nodes/{observed.node.name}"
        try:
            self._view.nodes.told(self._writer.merge(path, patch))
        except KubeConflict:
            if labels is None:
                raise
            # Taints are one list, which others write too, so they need the newest version. Labels do not wait for it.
            fresh = self._writer.merge(path, labels)
            self._note_marks(observed, standing)
            newest = observe_node(fresh)
            taints = taint_patch(newest, taints_wanted(newest, standing, lost))
            self._view.nodes.told(fresh if taints is None else self._writer.merge(path, taints))
            return True
        if labels is not None:
            self._note_marks(observed, standing)
        return True

    def _note_marks(self, observed: ObservedNode, standing: NodeStanding) -> None:
        self._meter.unlabelled(observed.node.name)
        structlog.get_logger().info("node_labelled", node=observed.node.name, policies=sorted(standing.labelled))
        if VERIFIED_LABEL in observed.labels and not standing.labelled:
            failures = [failure for part in standing.policies for failure in part.failures]
            note = " ".join(f"{failure.code.value} ({failure.line()})." for failure in failures[:4])
            self._writer.announce_node(observed.node, LOST_EVENT, note or ", ".join(standing.intruders[:4]))

    def _end_pods(
        self, standing: NodeStanding, since: int | None, refused: list[Refusal], now: int
    ) -> list[float | None]:
        looks: list[float | None] = []
        ending = set()
        for pod in self._view.pods_on(standing.node.name):
            governance = govern(self._view, pod.pod, now)
            if governance is None:
                continue
            fate = fate_of(self._view, governance, standing.node, standing.result, since, now)
            if fate.ending is None:
                continue
            ending.add(str(pod.pod.uid))
            if fate.ending.due_at > now:
                looks.append(float(fate.ending.due_at - now))
                continue
            try:
                looks.append(self._evictions.end(pod, fate.ending))
            except Refusal as refusal:
                refused.append(refusal)
        name = standing.node.name
        for uid in self._ending.get(name, frozenset()) - ending:
            self._evictions.forget(uid)
        self._ending[name] = frozenset(ending)
        return looks

    def _forget(self, name: str) -> None:
        for uid in self._ending.pop(name, frozenset()):
            self._evictions.forget(uid)
        self._fell_at.pop(name, None)
        self._unwritten.pop(name, None)
        self._meter.settled(name)
        self._stored.pop(name, None)
        self._pods_wait.discard(name)
