"""Pod-bound ServiceAccount tokens, checked offline against their issuer's keys.

A cluster's TokenReview also knows of deleted objects; here the manifests say which ServiceAccounts and pods exist, and
`admission.decision` compares the pod. Claims: kubernetes.io.{namespace, serviceaccount, pod, node}{name, uid}.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jwt

from admission.cluster_view import PodIdentity
from admission.key_sets import KeySet
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Rejection

BROKER_AUDIENCE = "nodewarden-broker"
ALGORITHMS = frozenset({"RS256", "ES256"})
"""What kube-apiserver signs with (--service-account-signing-key-file: RSA or P-256)."""
MAX_TOKEN_CHARACTERS = 16 * 1024
MAX_LIFETIME_SECONDS = 48 * 3600
"""A projected token lives an hour or so; kube-apiserver may extend to a year for old clients, which we refuse."""


class PodTokenVerifier:
    """Verifies tokens of one cluster's issuer for the broker's audience."""

    def __init__(self, keys: Callable[[], KeySet], issuer: str) -> None:
        self._keys, self._issuer = keys, issuer

    def verify(self, token: str, now: int) -> PodIdentity:
        """Who `token` speaks for at `now`.

        Raises Rejection `token-invalid`, `token-not-pod-bound`. Does not check that pod, node or ServiceAccount
        still exist, nor who presents the token. No refusal repeats any of the token.
        """
        claims = self._claims(token)
        expires_at, issued_at = claims["exp"], claims["iat"]
        if type(expires_at) is not int or type(issued_at) is not int:
            raise _invalid("exp and iat that are no integers")
        if now >= expires_at or expires_at - issued_at > MAX_LIFETIME_SECONDS:
            raise _invalid("expired, or of too long a life")
        not_before = claims.get("nbf", issued_at)
        if type(not_before) is not int or now < not_before:
            raise _invalid("not valid yet")
        bound = claims.get("kubernetes.io")
        if not isinstance(bound, dict):
            raise _not_bound("kubernetes.io")
        account, pod, node = (_named(bound, part) for part in ("serviceaccount", "pod", "node"))
        namespace = bound.get("namespace")
        if type(namespace) is not str or claims["sub"] != f"system:serviceaccount:{namespace}:{account[0]}":
            raise _invalid("a subject that is not the ServiceAccount it names")
        return PodIdentity(namespace, account[0], account[1], pod[0], pod[1], node[0], node[1], expires_at)

    def _claims(self, token: str) -> Mapping[str, Any]:
        if len(token) > MAX_TOKEN_CHARACTERS or not token.isascii():
            raise _invalid("too long or not ASCII")
        try:
            header = jwt.get_unverified_header(token)
            key_id = header.get("kid")
            key = self._keys().keys.get(key_id) if isinstance(key_id, str) else None
            # Attack: HS256 with the public key as the secret; the key's own JWK fixes its algorithm.
            if key is None or header.get("alg") != key.algorithm_name:
                raise _invalid("signed by no known key")
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=[str(key.algorithm_name)],
                audience=BROKER_AUDIENCE,
                issuer=self._issuer,
                options={
                    "require": ["iss", "aud", "exp", "iat", "sub"],
                    "verify_exp": False,
                    "verify_iat": False,
                    "verify_nbf": False,
                },
            )
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
            raise _invalid(type(error).__name__) from error
        return claims


def claimed_node(token: str) -> str:
    """The name of the node that `token` claims its pod to be on; nothing of the token is verified.

    Raises Rejection `token-invalid`, `token-not-pod-bound` for what cannot be a pod's token, whoever signed it.
    """
    if len(token) > MAX_TOKEN_CHARACTERS or not token.isascii():
        raise _invalid("too long or not ASCII")
    try:
        claims: dict[str, Any] = jwt.decode(token, options={"verify_signature": False})
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
        raise _invalid(type(error).__name__) from error
    bound = claims.get("kubernetes.io")
    if not isinstance(bound, dict):
        raise _not_bound("kubernetes.io")
    return _named(bound, "node")[0]


def _named(bound: Mapping[str, Any], part: str) -> tuple[str, str]:
    reference = bound.get(part)
    if not isinstance(reference, dict):
        raise _not_bound(part)
    name, uid = reference.get("name"), reference.get("uid")
    if type(name) is not str or type(uid) is not str or not name or not uid:
        raise _not_bound(part)
    return name, uid


def _invalid(observed: str) -> Rejection:
    return Rejection(ReasonCode.TOKEN_INVALID, "token", observed, f"a token for {BROKER_AUDIENCE}")


def _not_bound(part: str) -> Rejection:
    return Rejection(ReasonCode.TOKEN_NOT_POD_BOUND, f"token.{part}", "absent", "name and uid")
