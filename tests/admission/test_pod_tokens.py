"""ServiceAccount tokens: the API server's own, for the broker, bound to a pod and its node; else nothing."""

from __future__ import annotations

from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from hypothesis import given
from hypothesis import strategies as st

from admission.key_sets import parse_key_set
from admission.pod_tokens import ALGORITHMS, PodTokenVerifier
from tests.admission.world import NOW, TOKEN_ISSUER, Signer, an_identity, token_claims
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Rejection

SIGNER = Signer()
VERIFIER = PodTokenVerifier(SIGNER.key_set, TOKEN_ISSUER)


def code_of(token: str, now: int = NOW) -> ReasonCode:
    with pytest.raises(Rejection) as caught:
        VERIFIER.verify(token, now)
    assert token not in str(caught.value) or not token
    return caught.value.code


def bound(**changes: Any) -> dict[str, Any]:
    return {"kubernetes.io": {**token_claims()["kubernetes.io"], **changes}}


def test_a_projected_token_says_which_pod_on_which_node() -> None:
    assert VERIFIER.verify(SIGNER.token(token_claims()), NOW) == an_identity()


def test_an_rsa_key_of_the_issuer_works_as_well() -> None:
    key = rsa.generate_private_key(65537, 2048)
    jwk = jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    text = f'{{"keys": [{{"kty": "RSA", "n": "{jwk["n"]}", "e": "{jwk["e"]}", "kid": "r", "alg": "RS256"}}]}}'
    keys = parse_key_set(text, ALGORITHMS, "jwks")
    token = jwt.encode(token_claims(), key, "RS256", {"kid": "r"})
    assert PodTokenVerifier(lambda: keys, TOKEN_ISSUER).verify(token, NOW) == an_identity()


@pytest.mark.parametrize(
    "changes",
    [
        {"iss": "https://other"},
        {"aud": ["api"]},
        {"aud": "nodewarden-attester"},
        {"exp": NOW},
        {"exp": NOW - 1},
        {"exp": NOW + 49 * 3600},
        {"exp": NOW + 0.5},
        {"exp": "soon"},
        {"nbf": NOW + 1},
        {"nbf": "now"},
        {"sub": "system:serviceaccount:ml:web"},
        {"sub": "system:node:gpu-1"},
        bound(namespace="other"),
        bound(namespace=None),
    ],
)
def test_a_token_with_one_wrong_claim_is_invalid(changes: dict[str, Any]) -> None:
    assert code_of(SIGNER.token(token_claims(**changes))) is ReasonCode.TOKEN_INVALID


@pytest.mark.parametrize(
    "changes",
    [
        {"kubernetes.io": None},
        bound(pod=None),
        bound(node=None),
        bound(serviceaccount=None),
        bound(pod={"name": "llm-0"}),
        bound(pod={"name": "llm-0", "uid": ""}),
        bound(node={"name": 1, "uid": "x"}),
    ],
)
def test_a_token_that_names_no_pod_or_node_is_not_enough(changes: dict[str, Any]) -> None:
    assert code_of(SIGNER.token(token_claims(**changes))) is ReasonCode.TOKEN_NOT_POD_BOUND


@pytest.mark.parametrize("name", ["iss", "aud", "exp", "iat", "sub"])
def test_a_token_without_one_of_its_claims_is_invalid(name: str) -> None:
    claims = token_claims()
    del claims[name]
    assert code_of(SIGNER.token(claims)) is ReasonCode.TOKEN_INVALID


def test_a_token_of_another_signer_or_without_signature_is_invalid() -> None:
    assert code_of(Signer().token(token_claims())) is ReasonCode.TOKEN_INVALID
    assert code_of(Signer("unknown").token(token_claims())) is ReasonCode.TOKEN_INVALID
    assert code_of(jwt.encode(token_claims(), "", "none", {"kid": "key-1"})) is ReasonCode.TOKEN_INVALID
    rsa_key = rsa.generate_private_key(65537, 2048)
    assert code_of(jwt.encode(token_claims(), rsa_key, "RS256", {"kid": "key-1"})) is ReasonCode.TOKEN_INVALID
    assert code_of("x" * 20_000) is ReasonCode.TOKEN_INVALID


@given(st.text(max_size=300))
def test_arbitrary_text_is_no_token(token: str) -> None:
    with pytest.raises(Rejection) as caught:
        VERIFIER.verify(token, NOW)
    assert caught.value.code is ReasonCode.TOKEN_INVALID
