"""Pod-bound ServiceAccount tokens, checked by the API server (TokenReview): it knows which objects were deleted."""

from __future__ import annotations

from typing import Any

from admission.cluster_objects import Reader
from admission.cluster_view import PodIdentity
from admission.kube import KubeClient
from admission.pod_tokens import BROKER_AUDIENCE, MAX_TOKEN_CHARACTERS
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Rejection

REVIEW_SECONDS = 5.0
_EXTRA = "authentication.kubernetes.io/"


def review_token(client: KubeClient, token: str, now: int) -> PodIdentity:
    """Who `token` speaks for: a pod of a node, for the broker's audience, as the API server says at this moment.

    Source: authentication.k8s.io/v1 TokenReview; extras since Kubernetes 1.32. Raises Rejection `token-invalid`,
    `token-not-pod-bound`; Unavailable when the server does not answer. The server checks expiry, so the identity's
    `expires_at` is only `now`: nothing outlives this request. No refusal repeats any of the token.
    """
    if not token or len(token) > MAX_TOKEN_CHARACTERS or not token.isascii():
        raise _invalid("too long or not ASCII")
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": {"token": token, "audiences": [BROKER_AUDIENCE]},
    }
    path = "/apis/authentication.k8s.io/v1/tokenreviews"
    answer = client.request("POST", path, body, timeout_seconds=REVIEW_SECONDS)
    reader = Reader(ReasonCode.TOKEN_INVALID, "tokenreview")
    status = reader.object(answer if isinstance(answer, dict) else {}, "status")
    # Attack: a server that knows no audiences answers for any; it then does not repeat ours.
    audiences = status.get("audiences")
    if status.get("authenticated") is not True or not isinstance(audiences, list) or BROKER_AUDIENCE not in audiences:
        raise _invalid("not authenticated for this audience")
    user = reader.object(status, "user")
    parts = reader.text(user, "username").split(":")
    if parts[:2] != ["system", "serviceaccount"] or len(parts) != 4:
        raise _invalid("no ServiceAccount")
    extra = reader.object(user, "extra")
    pod_name, pod_uid, node_name, node_uid = (
        _extra(extra, name) for name in ("pod-name", "pod-uid", "node-name", "node-uid")
    )
    return PodIdentity(
        parts[2], parts[3], reader.text(user, "uid"), pod_name, pod_uid, node_name, node_uid, expires_at=now
    )


def _extra(extra: Any, name: str) -> str:
    values = extra.get(_EXTRA + name)
    if not isinstance(values, list) or len(values) != 1 or type(values[0]) is not str or not values[0]:
        raise Rejection(ReasonCode.TOKEN_NOT_POD_BOUND, f"token.{name}", "absent", "one value")
    return values[0]


def _invalid(observed: str) -> Rejection:
    return Rejection(ReasonCode.TOKEN_INVALID, "token", observed, f"a token for {BROKER_AUDIENCE}")
