"""Projected ServiceAccount tokens of the attester, checked against the cluster's keys: which Node it runs on.

Claims as the TokenRequest API makes them for a pod-bound token (Kubernetes 1.32 and later put the node in): `iss`,
`aud`, `exp`, and `kubernetes.io` with namespace, serviceaccount, pod and node, each with name and uid.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jwt

from edges.private_files import require_unwritable
from verifier.settings import ClusterSettings
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence, Rejection, Unavailable

_ALGORITHMS = ["RS256", "ES256", "ES384"]
"""What API servers sign with; never the token's own choice beyond these."""


@dataclass(frozen=True, slots=True)
class KubernetesNode:
    """The Node object on which the attester's pod runs, as the cluster says."""

    name: str
    uid: str


class NodeTokens:
    """Checks node tokens of one cluster."""

    def __init__(self, cluster: ClusterSettings) -> None:
        self._cluster = cluster
        self._keys = _load_keys(cluster)

    def check(self, token: bytes, now: int) -> KubernetesNode:
        """The node named by a token that the cluster issued to the attester's own pod for this verifier.

        Raises Rejection `node-token-invalid`. Does not check that the name is the enrolled one.
        """
        try:
            text = token.decode("ascii")
            key = self._keys[jwt.get_unverified_header(text)["kid"]]
            claims = jwt.decode(
                text,
                key=key,
                algorithms=_ALGORITHMS,
                audience=self._cluster.audience,
                issuer=self._cluster.issuer,
                # Times are compared below, by the verifier's one clock.
                options={
                    "require": ["exp", "iss", "aud"],
                    "verify_exp": False,
                    "verify_iat": False,
                    "verify_nbf": False,
                },
            )
            return self._node(claims, now)
        except (jwt.PyJWTError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise Rejection(ReasonCode.NODE_TOKEN_INVALID, "node-token", type(error).__name__) from error

    def _node(self, claims: Mapping[str, Any], now: int) -> KubernetesNode:
        if type(claims["exp"]) is not int or now >= claims["exp"] or claims.get("nbf", 0) > now:
            raise Rejection(ReasonCode.NODE_TOKEN_INVALID, "node-token.exp", str(claims["exp"]), f"after {now}")
        bound = claims["kubernetes.io"]
        account = bound["serviceaccount"]["name"]
        if (bound["namespace"], account) != (self._cluster.namespace, self._cluster.service_account):
            expected = f"{self._cluster.namespace}/{self._cluster.service_account}"
            raise Rejection(
                ReasonCode.NODE_TOKEN_INVALID, "node-token.sub", f"{bound['namespace']}/{account}", expected
            )
        # Attack: a token without a pod outlives every pod and says nothing of a node.
        if not bound["pod"]["uid"] or not isinstance(bound["node"]["name"], str) or not bound["node"]["uid"]:
            raise Rejection(ReasonCode.NODE_TOKEN_INVALID, "node-token.node", "absent", "a pod-bound token")
        return KubernetesNode(bound["node"]["name"], str(bound["node"]["uid"]))


def _load_keys(cluster: ClusterSettings) -> Mapping[str, Any]:
    try:
        require_unwritable(cluster.jwks_file)
        document = json.loads(cluster.jwks_file.read_bytes())
        keys = {key.key_id: key.key for key in jwt.PyJWKSet.from_dict(document).keys if key.key_id}
    except OSError as error:
        raise Unavailable(ReasonCode.FILE_UNREADABLE, str(cluster.jwks_file), error.strerror) from error
    except (ValueError, jwt.PyJWTError) as error:
        raise MalformedEvidence(ReasonCode.SETTING_INVALID, str(cluster.jwks_file), type(error).__name__) from error
    if not keys:
        raise MalformedEvidence(ReasonCode.SETTING_INVALID, str(cluster.jwks_file), "no keys", "keys with a kid")
    return keys
