"""What a PolicyReport (wgpolicyk8s.io/v1alpha2) says of a namespace's sensitive pods: pure.

One result for each pod and each NodeTrustPolicy over it, by the same check as the webhook's at binding. A report tells
people and their dashboards; nothing of ours ever reads a decision out of one, and whoever has rights in the namespace
can write it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from admission.cluster_objects import Pod
from admission.cluster_view import ClusterState
from admission.controller.standing import policy_standing
from admission.node_check import node_failures
from admission.pod_rules import AppliedPolicy, Governance, govern
from admission.trust_objects import ATTESTATION_GATE, EnforcementAction
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure, printable

API_VERSION = "wgpolicyk8s.io/v1alpha2"
NAME = "nodewarden"
MANAGED_BY = {"app.kubernetes.io/managed-by": "nodewarden"}
LEFT_OUT = "nodewarden.dev/results-left-out"
"""Annotation: how many results the summary counts and the list has no room for."""
MAX_RESULTS = 250
"""With `MAX_MESSAGE_CHARACTERS`, names of 253 and four bytes a character: below the 1.5 MiB that etcd takes."""
MAX_MESSAGE_CHARACTERS = 800
MAX_FAILURES = 4

NODE_RULE = "node-verified"
"""The pod's node passes the policy."""
POD_RULE = "rules-apply"
"""The pod's own rules can be applied: its policies exist, and it asks for a baseline that they know."""

Outcome = Literal["pass", "fail", "skip"]
Severity = Literal["critical", "high", "medium", "low", "info"]
Result = Mapping[str, Any]
_ORDER: Mapping[str, int] = {"fail": 0, "skip": 1, "pass": 2}
_SEVERITY: Mapping[EnforcementAction, Severity] = {"deny": "high", "warn": "medium", "audit": "low"}


def pod_results(state: ClusterState, pod: Pod, now: int) -> list[Result]:
    """The results of one pod; none where nothing governs it, or its containers are over.

    `fail`: it runs where its policy does not let it. `skip`: it runs nowhere yet, or an exemption lets it. `pass`: its
    node passes. Severity of a failure: `critical` where the verifier's newest word is a verdict that the policy
    refuses, else by what the policy asks for: `high` deny, `medium` warn, `low` audit.
    """
    governance = None if pod.ended else govern(state, pod, now)
    if governance is None:
        return []
    found = [_fault(pod, governance, fault, now) for fault in governance.faults]
    return found + [_node_result(state, pod, governance, applied, now) for applied in governance.policies]


def _node_result(state: ClusterState, pod: Pod, governance: Governance, applied: AppliedPolicy, now: int) -> Result:
    policy = applied.policy
    if not pod.node_name:
        waits = "waits at the gate for a node" if ATTESTATION_GATE in pod.gates else "is on no node yet"
        return _result(pod, policy.name, NODE_RULE, "skip", "info", (), f"the pod {waits}", now)
    node = state.node(pod.node_name)
    failures = node_failures(state, pod.node_name, policy, governance.raised, now)
    if not failures:
        return _result(pod, policy.name, NODE_RULE, "pass", "info", (), f"node {pod.node_name} passes", now)
    said = f"node {pod.node_name}: {_sentences(failures)}"
    if applied.exemption is not None:
        text = f"exempted ({printable(applied.exemption)}); {said}"
        return _result(pod, policy.name, NODE_RULE, "skip", "info", failures, text, now)
    found = None if node is None else state.result_of(node)
    result = None if isinstance(found, Failure) else found
    fallen = node is not None and policy_standing(state, node, policy, result, now, governance.raised).fallen
    severity: Severity = "critical" if fallen and applied.action == "deny" else _SEVERITY[applied.action]
    return _result(pod, policy.name, NODE_RULE, "fail", severity, failures, said, now)


def _fault(pod: Pod, governance: Governance, fault: Failure, now: int) -> Result:
    names = [applied.policy.name for applied in governance.policies]
    policy = names[0] if names else governance.workloads[0].policy
    if fault.code is ReasonCode.POLICY_UNKNOWN and fault.observed is not None:
        policy = fault.observed
    return _result(pod, policy, POD_RULE, "fail", _SEVERITY[governance.action], (fault,), _sentences((fault,)), now)


def _result(
    pod: Pod,
    policy: str,
    rule: str,
    outcome: Outcome,
    severity: Severity,
    failures: tuple[Failure, ...],
    message: str,
    now: int,
) -> Result:
    codes = ",".join(dict.fromkeys(failure.code.value for failure in failures))
    return {
        "source": "nodewarden",
        "category": "Node trust",
        "policy": policy,
        "rule": rule,
        "result": outcome,
        "scored": True,
        "severity": severity,
        "message": message[:MAX_MESSAGE_CHARACTERS],
        "timestamp": {"seconds": now, "nanos": 0},
        "resources": [
            {"apiVersion": "v1", "kind": "Pod", "namespace": pod.namespace, "name": pod.name, "uid": str(pod.uid)}
        ],
        "properties": {name: value for name, value in (("node", pod.node_name), ("codes", codes)) if value},
    }


def _sentences(failures: tuple[Failure, ...]) -> str:
    said = [f"{failure.code.value} ({failure.line()})." for failure in failures[:MAX_FAILURES]]
    # Remedies once each, and before a long list could push them out.
    remedies = dict.fromkeys(failure.code.remedy for failure in failures[:2])
    return " ".join([said[0], *remedies, *said[1:]])


def report(
    namespace: str, results: Iterable[Result], written: Mapping[str, Any], stored: Mapping[str, Any]
) -> dict[str, Any]:
    """The PolicyReport of `namespace`: failures first, at most `MAX_RESULTS`; the summary counts all of them.

    A result that says the same as one of the report that we last have `written` is that one, with its time and its
    words: its time is when it came to be, and a report in which nothing changed is equal to the one before. Of what is
    `stored`, where we do not know what was written, only times are taken.
    """
    ordered = sorted(results, key=lambda one: (_ORDER[one["result"]], *_identity(one)))
    known = {_identity(one): one for one in _results(written)}
    times = {_identity(one): one.get("timestamp") for one in _results(stored)}
    counts = Counter(one["result"] for one in ordered)
    left_out = max(len(ordered) - MAX_RESULTS, 0)
    return {
        "apiVersion": API_VERSION,
        "kind": "PolicyReport",
        "metadata": {
            "name": NAME,
            "namespace": namespace,
            "labels": MANAGED_BY,
            # As null they are taken off where they were (RFC 7396).
            "annotations": {LEFT_OUT: str(left_out) if left_out else None},
            "ownerReferences": None,
        },
        "scope": None,
        "scopeSelector": None,
        "summary": {kind: counts[kind] for kind in ("pass", "fail", "warn", "error", "skip")},
        "results": [
            known.get(_identity(one)) or _since(one, times.get(_identity(one))) for one in ordered[:MAX_RESULTS]
        ],
    }


def _since(one: Result, time: object) -> Result:
    seconds = time.get("seconds") if isinstance(time, dict) else None
    if type(seconds) is not int or not 0 <= seconds <= one["timestamp"]["seconds"]:
        return one
    return {**one, "timestamp": {"seconds": seconds, "nanos": 0}}


def stands(before: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether the stored report `before` says all that is `wanted`, and nothing else."""
    metadata = before.get("metadata") or {}
    return (
        before.get("results") == wanted["results"]
        and before.get("summary") == wanted["summary"]
        and MANAGED_BY.items() <= (metadata.get("labels") or {}).items()
        and (metadata.get("annotations") or {}).get(LEFT_OUT) == wanted["metadata"]["annotations"][LEFT_OUT]
        and not {"scope", "scopeSelector"} & before.keys()
        and not metadata.get("ownerReferences")
    )


def is_ours(stored: Mapping[str, Any]) -> bool:
    """Whether the stored report has our name and our label."""
    metadata = stored.get("metadata") or {}
    labels = metadata.get("labels")
    return metadata.get("name") == NAME and isinstance(labels, dict) and MANAGED_BY.items() <= labels.items()


def _results(stored: Mapping[str, Any]) -> list[Result]:
    # Attack: whoever has rights in the namespace writes here what they like, within the schema.
    found = stored.get("results")
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _identity(one: Result) -> tuple[str, ...]:
    """All but words and time. What is the same in it says the same."""
    resources, told = one.get("resources"), one.get("properties")
    first = resources[0] if isinstance(resources, list) and resources else None
    pod = first if isinstance(first, dict) else {}
    properties = told if isinstance(told, dict) else {}
    parts = (
        *(pod.get(name) for name in ("namespace", "name", "uid")),
        *(one.get(name) for name in ("policy", "rule", "result", "severity")),
        *(properties.get(name) for name in ("node", "codes")),
    )
    return tuple(str(part) for part in parts)
