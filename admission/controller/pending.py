"""Why pods wait at our gate, told to people by the Event `AttestationPending`: once for each change, not at each look.

A pod that waits a moment only, as all do that come while a node is being labelled, is no news. A node's reasons change
with its results and not with its age: what counts as a change is which nodes fail, and by which code.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from admission.controller.observed import ObservedPod
from admission.controller.view import ControllerView
from admission.controller.writer import Writer
from admission.node_check import node_failures
from admission.pod_rules import Governance
from admission.trust_objects import host_access_failure
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure

PENDING_EVENT = "AttestationPending"
GRACE_SECONDS = 2.0
PAUSE_SECONDS = 10.0
"""Between two Events about one pod, however often the reasons change."""
MAX_NODES_SHOWN = 4
MAX_LINE_CHARACTERS = 140
MAX_REMEDIES = 2
MAX_REMEMBERED_OWNERS = 10_000


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why a pod waits: `about` is the same as long as nothing changed, `note` is for people."""

    about: frozenset[tuple[str, str]]
    note: str


@dataclass(slots=True)
class _Told:
    uid: str
    since: float
    about: frozenset[tuple[str, str]] | None = None
    at: float = float("-inf")


class PendingPods:
    """Which waiting pod was told what. Safe to use for different pods at once."""

    def __init__(self, view: ControllerView, writer: Writer, monotonic: Callable[[], float]) -> None:
        self._view, self._writer, self._monotonic = view, writer, monotonic
        self._told: dict[str, _Told] = {}
        self._owners: dict[str, frozenset[tuple[str, str]]] = {}
        self._owners_lock = threading.Lock()
        self._found: dict[object, tuple[int, Waiting]] = {}

    def forget(self, name: str) -> None:
        """The pod NAMESPACE/POD does not wait any more."""
        self._told.pop(name, None)

    def wait(self, name: str, pod: ObservedPod, governance: Governance, now: int) -> float | None:
        """The pod, and what made it, have an Event that says why it waits. Returns when to look again for that."""
        uid, moment = str(pod.pod.uid), self._monotonic()
        told = self._told.get(name)
        if told is None or told.uid != uid:
            told = self._told[name] = _Told(uid, moment)
        due = max(told.since + GRACE_SECONDS, told.at + PAUSE_SECONDS)
        if moment < due:
            return due - moment
        waiting = self._waiting(governance, now)
        if waiting.about == told.about:
            return None
        told.about, told.at = waiting.about, moment
        news = pod.owner is not None and self._is_news(pod.owner.uid, waiting.about)
        self._writer.announce_pod(pod, PENDING_EVENT, waiting.note, and_owner=news)
        return None

    def _is_news(self, owner: str, about: frozenset[tuple[str, str]]) -> bool:
        """Of a thousand pods that wait for the same, what made them is told once, also by two workers at a time."""
        with self._owners_lock:
            if self._owners.get(owner) == about:
                return False
            if len(self._owners) >= MAX_REMEMBERED_OWNERS:
                self._owners.clear()
            self._owners[owner] = about
            return True

    def _waiting(self, governance: Governance, now: int) -> Waiting:
        names = tuple(applied.policy.name for applied in governance.policies if applied.action == "deny")
        key = (names, governance.raised, governance.faults)
        found = self._found.get(key)
        if found is None or found[0] != now:
            found = (now, waiting_of(governance, names, self._reasons(governance, now)))
            # A new dictionary each time: other threads may be reading the old one.
            current = {kept: value for kept, value in self._found.copy().items() if value[0] == now}
            self._found = {**current, key: found}
        return found[1]

    def _reasons(self, governance: Governance, now: int) -> Iterable[tuple[str, tuple[Failure, ...]]]:
        for observed in self._view.nodes.values():
            name = observed.node.name
            failures = [
                failure
                for applied in governance.policies
                if applied.action == "deny"
                for failure in node_failures(self._view, name, applied.policy, governance.raised, now)
            ]
            intruders = self._view.intruders(name)
            if not failures and intruders:
                failures = [host_access_failure(name, intruders[0])]
            yield name, tuple(failures)


def waiting_of(
    governance: Governance, policies: tuple[str, ...], nodes: Iterable[tuple[str, tuple[Failure, ...]]]
) -> Waiting:
    """Why a pod under `governance` waits, where each of `nodes` fails as listed for the `policies` that gate it.

    Nodes of which the verifier never spoke are counted and not named: most clusters have many.
    """
    if governance.faults:
        about = frozenset((failure.claim, failure.code.value) for failure in governance.faults)
        return Waiting(about, f"waits for its rules: {_sentences(governance.faults)} {_remedies(governance.faults)}")
    failing: dict[str, Failure] = {}
    silent = 0
    for name, failures in nodes:
        if failures and failures[0].code is ReasonCode.RESULT_MISSING:
            silent += 1
        elif failures:
            failing[name] = failures[0]
    about = frozenset((name, failure.code.value) for name, failure in failing.items())
    shown = [failing[name] for name in sorted(failing)[:MAX_NODES_SHOWN]]
    parts = [f"waits for a node that is verified for {', '.join(policies)}.", _sentences(shown)]
    if len(failing) > len(shown):
        parts.append(f"And {len(failing) - len(shown)} nodes more.")
    if silent:
        parts.append(f"Nodes without any result: {silent}.")
        about |= {("", ReasonCode.RESULT_MISSING.value)}
    missing = [Failure(ReasonCode.RESULT_MISSING, "nodes")] if silent or not failing else []
    parts.append(_remedies([*failing.values(), *missing]))
    return Waiting(about, " ".join(part for part in parts if part))


def _sentences(failures: Iterable[Failure]) -> str:
    return " ".join(f"{failure.code.value} ({_cut(failure.line())})." for failure in failures)


def _cut(line: str) -> str:
    return line if len(line) <= MAX_LINE_CHARACTERS else line[: MAX_LINE_CHARACTERS - 3] + "..."


def _remedies(failures: Iterable[Failure]) -> str:
    # Those of most nodes first: what helps most.
    codes = [failure.code for failure in failures]
    often = sorted(dict.fromkeys(codes), key=lambda code: -codes.count(code))
    return " ".join(code.remedy for code in often[:MAX_REMEDIES])
