"""The admission webhook: AdmissionReview in, decision out, everything from memory.

Register `/validate` with `failurePolicy: Fail`, by namespaceSelector (an objectSelector never matches a Binding, nor a
connection), for: pods CREATE, UPDATE; pods/ephemeralcontainers, pods/resize, pods/status UPDATE (a status update may
change labels); pods/binding and bindings CREATE; pods/exec, attach, portforward, proxy CONNECT; namespaces UPDATE,
DELETE. Register `/mutate` for pods CREATE with `failurePolicy: Ignore`: it only steers.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import structlog

from admission.access import decide_access, decide_namespace
from admission.clock import Clock
from admission.cluster_objects import Pod, Reader, parse_pod
from admission.cluster_view import AdmissionState
from admission.decision import ALLOW, Allow, Deny, decide_binding, decide_pod_create, decide_pod_update, steer
from admission.direct import DirectApp, Handler, Route
from admission.events import reasons_of
from admission.gating import must_wait, some_node_passes
from admission.http_edge import service_app
from admission.metrics import Hook, Outcome, ReviewMeter
from admission.node_check import RaisedFloor
from admission.review import (
    MAX_REVIEW_BYTES,
    Review,
    answer,
    answer_patch,
    parse_access,
    parse_affinity,
    parse_binding,
    parse_namespace_change,
    parse_review,
)
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure

_READER = Reader(ReasonCode.REVIEW_MALFORMED, "review.request.object")
_MUTATED = ("CREATE", "pods")
MAX_REMEMBERED_GATES = 1024


def validate(state: AdmissionState, review: Review, now: int) -> Allow | Deny:
    """The decision on `review`; a resource or operation that the webhook does not know is denied.

    Raises MalformedEvidence `review-malformed`.
    """
    match review.operation, review.target:
        case "CREATE", "pods/binding" | "bindings":
            return decide_binding(state, parse_binding(review), now)
        case "CREATE", "pods":
            return decide_pod_create(state, parse_pod(review.object, review.namespace, _READER), now)
        case "UPDATE", "pods" | "pods/ephemeralcontainers" | "pods/resize" | "pods/status":
            old = parse_pod(review.old_object, review.namespace, _READER)
            new = parse_pod(review.object, review.namespace, _READER)
            return decide_pod_update(state, old, new, review.user, now)
        case "CONNECT", "pods/exec" | "pods/attach" | "pods/portforward" | "pods/proxy":
            return decide_access(state, parse_access(review), now)
        case "UPDATE" | "DELETE", "namespaces":
            return decide_namespace(state, parse_namespace_change(review))
        case _:
            return Deny((_unknown(review),))


class Gates:
    """Which pods have to wait for a verified node; looks through the nodes at most once a second for one set of rules.

    Only where a controller is there to take the gates off again.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[str, ...], RaisedFloor | None], tuple[int, bool]] = {}

    def wait(self, state: AdmissionState, pod: Pod, now: int) -> bool:
        """Whether `pod` is to get our gate now."""
        governance = must_wait(state, pod, now)
        if governance is None:
            return False
        key = (tuple(applied.policy.name for applied in governance.policies), governance.raised)
        known = self._known.get(key)
        if known is None or known[0] != now:
            if len(self._known) >= MAX_REMEMBERED_GATES:
                self._known.clear()
            known = (now, not some_node_passes(state, governance, now))
            self._known[key] = known
        return known[1]


def mutate(state: AdmissionState, review: Review, gates: Gates | None, now: int) -> bytes:
    """The answer to a mutating review: the pod, steered to verified nodes. Raises MalformedEvidence."""
    if (review.operation, review.target) != _MUTATED:
        return answer(review, Deny((_unknown(review),)))
    pod = parse_pod(review.object, review.namespace, _READER)
    gate = gates is not None and gates.wait(state, pod, now)
    return answer_patch(review, steer(state, pod, parse_affinity(review), now), gate=gate)


def _unknown(review: Review) -> Failure:
    return Failure(ReasonCode.REVIEW_MALFORMED, "review.request.resource", f"{review.operation} {review.target}")


def _nobody(_: Review, __: Deny) -> None:
    return None


def webhook_app(
    state: Callable[[], AdmissionState],
    reload: Callable[[], None],
    reload_seconds: int,
    clock: Clock,
    *,
    gates: Gates | None = None,
    denied: Callable[[Review, Deny], None] = _nobody,
    unready: Callable[[], Failure | None] = lambda: None,
    meter: ReviewMeter | None = None,
) -> DirectApp:
    """The webhook over the newest `state()`. `denied` hears of each denial and must not block."""
    counted = ReviewMeter() if meter is None else meter
    routes = {
        "/validate": _route(
            "validate", lambda body: _validated(state(), parse_review(body), denied, counted, clock()), counted
        ),
        "/mutate": _route(
            "mutate", lambda body: _mutated(state(), parse_review(body), gates, counted, clock()), counted
        ),
    }
    return DirectApp(service_app(reload, reload_seconds, unready), routes, MAX_REVIEW_BYTES)


def _route(hook: Hook, decide: Handler, meter: ReviewMeter) -> Route:
    def measured(body: bytes) -> bytes:
        began = perf_counter()
        try:
            return decide(body)
        finally:
            meter.took(hook, perf_counter() - began)

    def turned_away(failure: Failure | None) -> None:
        meter.count(hook, "other", "failed" if failure is None else "refused", () if failure is None else (failure,))

    return Route(measured, turned_away)


def _mutated(state: AdmissionState, review: Review, gates: Gates | None, meter: ReviewMeter, now: int) -> bytes:
    answered = mutate(state, review, gates, now)
    known = (review.operation, review.target) == _MUTATED
    meter.count("mutate", review.target, "allowed" if known else "denied", () if known else (_unknown(review),))
    return answered


def _validated(
    state: AdmissionState, review: Review, denied: Callable[[Review, Deny], None], meter: ReviewMeter, now: int
) -> bytes:
    decision = validate(state, review, now)
    if isinstance(decision, Deny):
        denied(review, decision)
        meter.count("validate", review.target, "denied", decision.failures)
        _log(review, "pod_denied", decision.failures, ())
        return answer(review, decision)
    outcome: Outcome = "allowed"
    if decision is not ALLOW:
        outcome = "warned" if decision.warnings or decision.exemptions else "audited" if decision.audited else "allowed"
    noted = (*decision.warnings, *decision.audited)
    meter.count("validate", review.target, outcome, noted)
    if noted or decision.exemptions:
        _log(review, "pod_allowed_against_policy", noted, decision.exemptions)
    return answer(review, decision)


def _log(review: Review, event: str, failures: tuple[Failure, ...], exemptions: tuple[str, ...]) -> None:
    structlog.get_logger().info(
        event,
        target=review.target,
        operation=review.operation,
        namespace=review.namespace,
        name=review.name,
        dry_run=review.dry_run,
        reasons=reasons_of(failures),
        exemptions=list(exemptions),
    )
