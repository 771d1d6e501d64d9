"""Node tokens: which Node an attester runs on, by the cluster's word."""

from __future__ import annotations

import asyncio
import copy
import json
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from tests.verifier import fleet
from tests.verifier.evidence import attest_to, refused, result_of
from tests.verifier.http import Http
from tests.verifier.test_service_enrolment import begin, finish
from verifier.cluster_tokens import KubernetesNode, NodeTokens
from verifier.settings import ClusterSettings
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence, Rejection, Unavailable
from verifier.wire.messages import text_of

NOW = fleet.NOW
KEY = rsa.generate_private_key(65537, 2048)
CLAIMS: dict[str, Any] = {
    "iss": "https://kubernetes.default.svc",
    "aud": ["nodewarden-attester"],
    "exp": NOW + 600,
    "iat": NOW,
    "nbf": NOW,
    "sub": "system:serviceaccount:nodewarden:attester",
    "kubernetes.io": {
        "namespace": "nodewarden",
        "serviceaccount": {"name": "attester", "uid": "s-1"},
        "pod": {"name": "attester-x", "uid": "p-1"},
        "node": {"name": "node-0", "uid": "n-1"},
    },
}


def cluster(directory: Path) -> ClusterSettings:
    """The cluster's settings, its keys written to a file."""
    jwk = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(KEY.public_key())) | {"kid": "k1", "alg": "RS256", "use": "sig"}
    (directory / "jwks.json").write_text(json.dumps({"keys": [jwk]}))
    return ClusterSettings(
        issuer="https://kubernetes.default.svc",
        jwks_file=directory / "jwks.json",
        namespace="nodewarden",
        service_account="attester",
    )


def token(*path: str, value: Any = None, key: Any = KEY, algorithm: str = "RS256", kid: str = "k1") -> bytes:
    """A good token with the claim at `path` changed, or removed when the value is None."""
    claims = copy.deepcopy(CLAIMS)
    if path:
        *parents, last = path
        place = claims
        for parent in parents:
            place = place[parent]
        if value is None:
            del place[last]
        else:
            place[last] = value
    return jwt.encode(claims, key, algorithm, headers={"kid": kid}).encode()


def test_a_token_of_the_attesters_pod_names_its_node(tmp_path: Path) -> None:
    assert NodeTokens(cluster(tmp_path)).check(token(), NOW) == KubernetesNode("node-0", "n-1")


BAD = {
    "another audience": token("aud", value=["nodewarden-broker"]),
    "another issuer": token("iss", value="https://elsewhere"),
    "expired": token("exp", value=NOW),
    "not yet valid": token("nbf", value=NOW + 60),
    "no expiry": token("exp"),
    "a float expiry": token("exp", value=NOW + 600.5),
    "another namespace": token("kubernetes.io", "namespace", value="tenant"),
    "another account": token("kubernetes.io", "serviceaccount", "name", value="default"),
    "no pod": token("kubernetes.io", "pod"),
    "no node": token("kubernetes.io", "node"),
    "an empty node uid": token("kubernetes.io", "node", "uid", value=""),
    "no kubernetes claims": token("kubernetes.io"),
    "another key": token(key=rsa.generate_private_key(65537, 2048)),
    "an unknown key id": token(kid="k2"),
    "another algorithm": token(key=ec.generate_private_key(ec.SECP256R1()), algorithm="ES256"),
    "a shared secret": token(key="x" * 64, algorithm="HS256"),
    "no signature": jwt.encode(CLAIMS, "", "none", headers={"kid": "k1"}).encode(),
    "no token": b"\xff\xfe",
}


@pytest.mark.parametrize("name", BAD)
def test_any_other_token_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(Rejection) as caught:
        NodeTokens(cluster(tmp_path)).check(BAD[name], NOW)
    assert caught.value.code is ReasonCode.NODE_TOKEN_INVALID


def test_a_key_file_that_is_none_is_refused(tmp_path: Path) -> None:
    settings = cluster(tmp_path)
    for content in ('{"keys": []}', "no json", '{"keys": [{"kty": "oct", "k": "AA"}]}'):
        settings.jwks_file.write_text(content)
        with pytest.raises(MalformedEvidence) as refusal:
            NodeTokens(settings)
        assert refusal.value.code is ReasonCode.SETTING_INVALID
    settings.jwks_file.unlink()
    with pytest.raises(Unavailable) as absent:
        NodeTokens(settings)
    assert absent.value.code is ReasonCode.FILE_UNREADABLE


def test_evidence_for_a_cluster_carries_the_node_token(tmp_path: Path) -> None:
    verifier = fleet.start(tmp_path / "v", fleet.SetClock(), cluster=cluster(tmp_path))

    async def scenario() -> None:
        forged = fleet.node(0)
        await fleet.enrol(verifier, forged)
        challenge = await fleet.challenge(verifier, forged)
        assert challenge.node_token
        evidence = fleet.evidence(forged, challenge)
        assert await refused(verifier, fleet.encoded(evidence)) is ReasonCode.ITEM_MISSING
        for wrong, code in (
            (token("kubernetes.io", "node", "name", value="node-9"), ReasonCode.NODE_TOKEN_NAME_MISMATCH),
            (BAD["expired"], ReasonCode.NODE_TOKEN_INVALID),
        ):
            assert await refused(verifier, fleet.encoded(evidence, node_token=wrong)) is code
        answer = await attest_to(verifier, fleet.encoded(evidence, node_token=token()))
        assert result_of(verifier, answer["result"]).kubernetes_node_uid == "n-1"
        following = fleet.issued(forged, answer["next_challenge"], NOW)
        recreated = token("kubernetes.io", "node", "uid", value="n-2")
        answer = await attest_to(verifier, fleet.encoded(fleet.evidence(forged, following), node_token=recreated))
        assert result_of(verifier, answer["result"]).kubernetes_node_uid == "n-2"

    asyncio.run(scenario())
    verifier.close()


def test_enrolment_for_a_cluster_needs_the_node_token(tmp_path: Path) -> None:

    verifier = fleet.start(tmp_path / "v", fleet.SetClock(), cluster=cluster(tmp_path), admission="manual")

    async def scenario() -> None:
        http, forged = Http(verifier, tmp_path / "v"), fleet.node(0)
        assert (await begin(http, forged))["code"] == ReasonCode.NODE_TOKEN_MISSING
        elsewhere = text_of(token("kubernetes.io", "node", "name", value="node-9"))
        assert (await begin(http, forged, node_token=elsewhere))["code"] == ReasonCode.NODE_TOKEN_NAME_MISMATCH
        begun = await begin(http, forged, node_token=text_of(token()))
        assert (await finish(http, forged, begun))["node_name"] == "node-0"

    asyncio.run(scenario())
    verifier.close()
