"""AdmissionReview v1 as an API server sends it, and the answers it takes. Source: k8s.io/api/admission/v1.

Read by hand: this is the hot path, and only a few fields matter. What does not have the documented form is
`review-malformed`, which the edge turns into HTTP 400, so that `failurePolicy: Fail` denies.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from admission.access import AccessRequest, NamespaceChange
from admission.cluster_objects import MAX_ENTRIES, Reader
from admission.decision import ALLOW, Allow, BindingRequest, Deny
from admission.pod_rules import AccessWay
from admission.trust_objects import ATTESTATION_GATE, ENFORCED_NAMESPACE_LABEL
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure, MalformedEvidence

MAX_REVIEW_BYTES = 3 * 1024 * 1024
"""What an API server takes as a request body, and so for a creation; an update of two objects of more than half of
that is denied."""
MAX_REVIEW_MARKS = 250_000
"""Most commas and braces in a review, which is parsed on the event loop: what parsing costs is the number of values.
Attack: a tenant's pod of a million empty objects, which stops all other decisions meanwhile."""
API_VERSION = "admission.k8s.io/v1"
MAX_WARNINGS = 8
MAX_WARNING_CHARACTERS = 256
"""Kubernetes truncates warnings beyond 4096 characters in all."""
MAX_SHOWN_FAILURES = 8
MAX_TERMS = 1024

_READER = Reader(ReasonCode.REVIEW_MALFORMED, "review")
_WAYS: Mapping[str, AccessWay] = {
    "pods/exec": "exec",
    "pods/attach": "attach",
    "pods/portforward": "portforward",
    "pods/proxy": "proxy",
}


class Review(NamedTuple):
    """One request for admission. `target` is resource/subresource; `object` and `old_object` are as posted.

    One is made for each request: a tuple costs half of what a frozen dataclass does.
    """

    uid: str
    target: str
    operation: str
    namespace: str
    name: str
    dry_run: bool
    user: str
    object: Mapping[str, Any]
    old_object: Mapping[str, Any]


_ALLOWED = (
    orjson.dumps({"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": {"uid": "", "allowed": True}})
    .replace(b"%", b"%%")
    .replace(b'""', b"%b")
)


def parse_review(body: bytes) -> Review:
    """The review in `body`. Raises MalformedEvidence `review-malformed`, `body-too-large` (values beyond any pod)."""
    if len(body) > MAX_REVIEW_MARKS and body.count(b",") + body.count(b"{") > MAX_REVIEW_MARKS:
        raise MalformedEvidence(
            ReasonCode.BODY_TOO_LARGE, "review", "too many values", f"at most {MAX_REVIEW_MARKS} commas and braces"
        )
    try:
        document = orjson.loads(body)
    except ValueError as error:
        raise _malformed("body", "no JSON") from error
    if not isinstance(document, dict):
        raise _malformed("body", type(document).__name__)
    if document.get("apiVersion") != API_VERSION or document.get("kind") != "AdmissionReview":
        raise _malformed("apiVersion", f"{document.get('apiVersion')} {document.get('kind')}", API_VERSION)
    request = _READER.object(document, "request")
    resource = _READER.object(request, "resource")
    if resource.get("group") != "" or resource.get("version") != "v1":
        raise _malformed("request.resource", f"{resource.get('group')}/{resource.get('version')}", "core v1")
    dry_run = request.get("dryRun", False)
    if type(dry_run) is not bool:
        raise _malformed("request.dryRun", type(dry_run).__name__, "true or false")
    name, part = _READER.required_text(resource, "resource"), _READER.text(request, "subResource")
    return Review(
        uid=_READER.required_text(request, "uid"),
        target=f"{name}/{part}" if part else name,
        operation=_READER.required_text(request, "operation"),
        # A Namespace is not in a namespace; its review may name it as its own.
        namespace=_READER.required_text(request, "name" if name == "namespaces" else "namespace"),
        name=_READER.text(request, "name"),
        dry_run=dry_run,
        user=_READER.text(_READER.object(request, "userInfo"), "username"),
        object=_READER.object(request, "object"),
        old_object=_READER.object(request, "oldObject"),
    )


def parse_binding(review: Review) -> BindingRequest:
    """The Binding in `review`, by `pods/binding` or by the older `bindings`. Raises `review-malformed`."""
    body = review.object
    metadata, target = _READER.object(body, "metadata"), _READER.object(body, "target")
    name, node = _READER.required_text(metadata, "name"), _READER.required_text(target, "name")
    if body.get("kind") != "Binding" or _READER.text(target, "kind") not in ("", "Node"):
        raise _malformed("request.object", f"{body.get('kind')} to {target.get('kind')}", "a Binding to a Node")
    # Attack: a Binding whose object names another pod than the address that is checked.
    if (review.name or name) != name or _READER.text(metadata, "namespace") not in ("", review.namespace):
        raise _malformed("request.name", f"{review.namespace}/{review.name}", f"the Binding's own pod {name}")
    labels, annotations = _READER.texts(metadata, "labels"), _READER.texts(metadata, "annotations")
    return BindingRequest(review.namespace, name, _READER.text(metadata, "uid"), node, labels, annotations)


def parse_access(review: Review) -> AccessRequest:
    """The connection in `review` (PodExecOptions and the like). Raises `review-malformed`.

    The name is the pod's; of a proxied connection it may be POD:PORT or SCHEME:POD:PORT, as the API server splits it
    (apimachinery, util/net SplitSchemeNamePort).
    """
    way = _WAYS.get(review.target)
    parts = review.name.split(":")
    name = parts[1] if len(parts) == 3 else parts[0]
    if way is None or not name or len(parts) > (3 if review.target == "pods/proxy" else 1):
        raise _malformed("request.resource", f"{review.target} {review.name}", "a connection to a pod")
    return AccessRequest(review.namespace, name, way)


def parse_namespace_change(review: Review) -> NamespaceChange:
    """What `review` does to the label that puts a namespace in the webhook's sight. Raises `review-malformed`."""
    before, after = (
        _READER.texts(_READER.object(fields, "metadata"), "labels").get(ENFORCED_NAMESPACE_LABEL) == "true"
        for fields in (review.old_object, review.object)
    )
    return NamespaceChange(review.name, before, None if review.operation == "DELETE" else after)


def parse_affinity(review: Review) -> Mapping[str, Any]:
    """The affinity of the Pod in `review`, of the form that `admission.affinity` reads. Raises `review-malformed`."""
    affinity = _READER.object(_READER.object(review.object, "spec"), "affinity")
    node = _READER.object(affinity, "nodeAffinity")
    required = _READER.object(node, "requiredDuringSchedulingIgnoredDuringExecution")
    for term in _READER.objects(required, "nodeSelectorTerms", MAX_TERMS):
        _READER.objects(term, "matchExpressions", MAX_TERMS)
        _READER.objects(term, "matchFields", MAX_TERMS)
    return affinity


def answer(review: Review, decision: Allow | Deny) -> bytes:
    """The AdmissionReview that answers `review` with `decision`."""
    if decision is ALLOW:
        return _ALLOWED % orjson.dumps(review.uid)
    response: dict[str, Any] = {"uid": review.uid, "allowed": isinstance(decision, Allow)}
    if isinstance(decision, Deny):
        response["status"] = _status(review, decision.failures)
    else:
        warnings = [f"nodewarden would deny: {_sentence(failure)}" for failure in decision.warnings]
        warnings += [f"nodewarden: exempted by {exemption}" for exemption in decision.exemptions]
        if warnings:
            response["warnings"] = [text[:MAX_WARNING_CHARACTERS] for text in warnings[:MAX_WARNINGS]]
        if decision.audited:
            codes = ",".join(dict.fromkeys(failure.code.value for failure in decision.audited))
            response["auditAnnotations"] = {"would-deny": codes}
    return orjson.dumps({"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response})


def answer_patch(review: Review, affinity: Mapping[str, Any] | None, *, gate: bool) -> bytes:
    """The AdmissionReview that lets `review` through, with `affinity` set where it is not None, and with our
    scheduling gate where `gate` (RFC 6902)."""
    patch: list[dict[str, Any]] = []
    if affinity is not None:
        # "add" to an existing member replaces it (RFC 6902, section 4.1).
        patch.append({"op": "add", "path": "/spec/affinity", "value": affinity})
    if gate:
        gates = [*_READER.objects(_READER.object(review.object, "spec"), "schedulingGates", MAX_ENTRIES)]
        patch.append({"op": "add", "path": "/spec/schedulingGates", "value": [*gates, {"name": ATTESTATION_GATE}]})
    response: dict[str, Any] = {"uid": review.uid, "allowed": True}
    if patch:
        text = base64.b64encode(orjson.dumps(patch)).decode("ascii")
        response |= {"patchType": "JSONPatch", "patch": text}
    return orjson.dumps({"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response})


def _status(review: Review, failures: tuple[Failure, ...]) -> dict[str, Any]:
    shown = failures[:MAX_SHOWN_FAILURES]
    details: dict[str, Any] = {
        "name": review.name,
        "kind": review.target,
        "causes": [{"reason": f.code.value, "message": f.line(), "field": f.claim} for f in shown],
    }
    if any(failure.code in (ReasonCode.POD_UNKNOWN, ReasonCode.VIEW_STALE) for failure in failures):
        details["retryAfterSeconds"] = 1
    return {
        "status": "Failure",
        "code": 403,
        "reason": "Forbidden",
        "message": "nodewarden: " + " ".join(_sentence(failure) for failure in shown),
        "details": details,
    }


def _sentence(failure: Failure) -> str:
    return f"{failure.code.value} ({failure.line()}). {failure.code.remedy}"


def _malformed(place: str, observed: str, expected: str | None = None) -> MalformedEvidence:
    return MalformedEvidence(ReasonCode.REVIEW_MALFORMED, f"review.{place}", observed, expected)
