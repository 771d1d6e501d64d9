"""The admission webhook: AdmissionReview in, decision out, everything from memory.

Register `/validate` with `failurePolicy: Fail` for pods (CREATE, UPDATE), pods/ephemeralcontainers, pods/resize
(UPDATE), pods/binding and bindings (CREATE), by namespaceSelector: an objectSelector never matches a Binding. Register
`/mutate` for pods (CREATE) with `failurePolicy: Ignore`: it only steers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import structlog
from fastapi import Request
from fastapi.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from admission.clock import Clock
from admission.cluster_objects import Reader, parse_pod
from admission.cluster_view import ClusterState
from admission.decision import Allow, Deny, decide_binding, decide_pod_create, decide_pod_update, steer
from admission.events import reasons_of, request_id
from admission.http_edge import internal_error, problem, read_body, service_app, status_of
from admission.review import MAX_REVIEW_BYTES, Review, answer, answer_patch, parse_affinity, parse_binding, parse_review
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure, Refusal

_READER = Reader(ReasonCode.REVIEW_MALFORMED, "review.request.object")
_UPDATES = frozenset({"pods", "pods/ephemeralcontainers", "pods/resize"})
_BINDINGS = frozenset({"pods/binding", "bindings"})


def validate(state: ClusterState, review: Review, now: int) -> Allow | Deny:
    """The decision on `review`; a resource or operation that the webhook does not know is denied.

    Raises MalformedEvidence `review-malformed`.
    """
    if review.operation == "CREATE" and review.target in _BINDINGS:
        return decide_binding(state, parse_binding(review), now)
    if review.operation == "CREATE" and review.target == "pods":
        return decide_pod_create(state, parse_pod(review.object, review.namespace, _READER), now)
    if review.operation == "UPDATE" and review.target in _UPDATES:
        old = parse_pod(review.old_object, review.namespace, _READER)
        return decide_pod_update(state, old, parse_pod(review.object, review.namespace, _READER), now)
    return Deny((_unknown(review),))


def mutate(state: ClusterState, review: Review, now: int) -> bytes:
    """The answer to a mutating review: the pod, steered to verified nodes. Raises MalformedEvidence."""
    if (review.operation, review.target) != ("CREATE", "pods"):
        return answer(review, Deny((_unknown(review),)))
    pod = parse_pod(review.object, review.namespace, _READER)
    return answer_patch(review, steer(state, pod, parse_affinity(review), now))


def _unknown(review: Review) -> Failure:
    return Failure(ReasonCode.REVIEW_MALFORMED, "review.request.resource", f"{review.operation} {review.target}")


def webhook_app(
    state: Callable[[], ClusterState], reload: Callable[[], None], reload_seconds: int, clock: Clock
) -> ASGIApp:
    """The webhook over the newest `state()`."""
    return _Webhook(
        service_app(reload, reload_seconds),
        {
            "/validate": lambda review: _validated(state(), review, clock()),
            "/mutate": lambda review: mutate(state(), review, clock()),
        },
    )


class _Webhook:
    """Answers the two hooks itself and leaves all else to `app`.

    The framework's middleware and routing cost more than a decision, and the hooks need none of it (measured by
    benchmarks/binding_reviews.py).
    """

    def __init__(self, app: ASGIApp, hooks: Mapping[str, Callable[[Review], bytes]]) -> None:
        self._app, self._hooks = app, hooks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        decide = self._hooks.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if decide is None:
            await self._app(scope, receive, send)
            return
        response = await _answered(Request(scope, receive), decide)
        await response(scope, receive, send)


def _validated(state: ClusterState, review: Review, now: int) -> bytes:
    decision = validate(state, review, now)
    noted = decision.failures if isinstance(decision, Deny) else (*decision.warnings, *decision.audited)
    if noted or (isinstance(decision, Allow) and decision.exemptions):
        structlog.get_logger().info(
            "pod_denied" if isinstance(decision, Deny) else "pod_allowed_against_policy",
            target=review.target,
            operation=review.operation,
            namespace=review.namespace,
            name=review.name,
            dry_run=review.dry_run,
            reasons=reasons_of(noted),
            exemptions=[] if isinstance(decision, Deny) else list(decision.exemptions),
        )
    return answer(review, decision)


async def _answered(request: Request, decide: Callable[[Review], bytes]) -> Response:
    try:
        return Response(decide(parse_review(await read_body(request, MAX_REVIEW_BYTES))), media_type="application/json")
    except Refusal as refusal:
        identity = request_id(request.headers.get("x-request-id"))
        structlog.get_logger().warning("review_refused", request_id=identity, reasons=reasons_of((refusal.failure,)))
        return problem(status_of(refusal), (refusal.failure,), identity)
    except Exception as error:  # noqa: BLE001 - the edge: the API server takes any 500 as a denial
        identity = request_id(request.headers.get("x-request-id"))
        structlog.get_logger().error("review_failed", request_id=identity, error=type(error).__name__)
        return internal_error(identity)
