"""One small cluster in which everything is accepted; tests change one thing of it."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

import jwt
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from admission.cluster_objects import Node, NodeUid, Pod, PodImage, PodUid, ServiceAccount
from admission.cluster_view import PodIdentity, Snapshot
from admission.key_sets import KeySet
from admission.trust_objects import NodeTrustPolicy, SecretGrant, SensitiveWorkload
from verifier.wire.encoding import canonical_json, encode_base64url
from verifier.wire.failures import Failure
from verifier.wire.messages import text_of
from verifier.wire.release import ReleaseEnvelope
from verifier.wire.result import PROFILE_DEPLOYED, AttestationResult, BaselineRef, Submodule, Verdict, result_claims
from verifier.wire.signed_request import RequestLabel, message_to_sign

NOW = 1_800_000_000
IMAGE = "registry.example/llm@sha256:" + "a" * 64
NODE = "gpu-1"
NODE_UID = "4a3d1d52-0000-4000-8000-000000000001"
POD_UID = "7b6e2c11-0000-4000-8000-000000000002"
ACCOUNT_UID = "0d1e2f33-0000-4000-8000-000000000003"
LINUX_BOOT = "11111111-2222-4333-8444-555555555555"
BOOT_ID = "b0" * 32
NODE_ID = "1d" * 32
ISSUER = "https://verifier.example"
AUDIENCE = "cluster-a"
TOKEN_ISSUER = "https://kubernetes.default.svc"

_ATTRIBUTES = 0x50072


def two(value: bytes) -> bytes:
    return struct.pack(">H", len(value)) + value


class EccAk:
    """A software key in the shape of a P-256 AK."""

    def __init__(self) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())

    @property
    def public(self) -> bytes:
        numbers = self.key.public_key().public_numbers()
        parameters = struct.pack(">HHHHH", 0x0010, 0x0018, 0x000B, 0x0003, 0x0010)
        unique = two(numbers.x.to_bytes(32)) + two(numbers.y.to_bytes(32))
        return two(struct.pack(">HHI", 0x0023, 0x000B, _ATTRIBUTES) + two(b"") + parameters + unique)

    def sign(self, message: bytes) -> bytes:
        r, s = decode_dss_signature(self.key.sign(message, ec.ECDSA(hashes.SHA256())))
        return struct.pack(">HH", 0x0018, 0x000B) + two(r.to_bytes(32)) + two(s.to_bytes(32))


class RsaAk:
    """A software key in the shape of an RSA-2048 AK."""

    def __init__(self) -> None:
        self.key = rsa.generate_private_key(65537, 2048)

    @property
    def public(self) -> bytes:
        parameters = struct.pack(">HHHHI", 0x0010, 0x0014, 0x000B, 2048, 0)
        unique = two(self.key.public_key().public_numbers().n.to_bytes(256))
        return two(struct.pack(">HHI", 0x0001, 0x000B, _ATTRIBUTES) + two(b"") + parameters + unique)

    def sign(self, message: bytes) -> bytes:
        signature = self.key.sign(message, padding.PKCS1v15(), hashes.SHA256())
        return struct.pack(">HH", 0x0014, 0x000B) + two(signature)


def jwk_of(key: ec.EllipticCurvePublicKey) -> dict[str, str]:
    numbers = key.public_numbers()
    x, y = (encode_base64url(value.to_bytes(32)) for value in (numbers.x, numbers.y))
    return {"kty": "EC", "crv": "P-256", "x": x, "y": y}


@dataclass
class Signer:
    """An ES256 key with its JWK Set: a verifier, or a cluster's token issuer."""

    kid: str = "key-1"
    key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))

    def jwks(self) -> dict[str, Any]:
        return {"keys": [{**jwk_of(self.key.public_key()), "kid": self.kid, "alg": "ES256", "use": "sig"}]}

    def key_set(self) -> KeySet:
        return KeySet({self.kid: jwt.PyJWK(self.jwks()["keys"][0])})

    def token(self, claims: dict[str, Any], **headers: Any) -> str:
        return jwt.encode(claims, self.key, "ES256", {"kid": self.kid, **headers})

    def result(self, result: AttestationResult, **headers: Any) -> str:
        return self.token(result_claims(result, PROFILE_DEPLOYED, "test"), **{"typ": "eat+jwt", **headers})


def a_result(**changes: Any) -> AttestationResult:
    result = AttestationResult(
        issuer=ISSUER,
        audience=AUDIENCE,
        issued_at=NOW - 30,
        expires_at=NOW + 240,
        sequence=NOW * 1000,
        verdict=Verdict.AFFIRMING,
        submodules={
            "tpm": Submodule(Verdict.AFFIRMING, {"instance-identity": 2}),
            "boot": Submodule(Verdict.AFFIRMING, {"executables": 3}),
        },
        node_id=NODE_ID,
        node_name=NODE,
        kubernetes_node_uid=NODE_UID,
        boot_id=BOOT_ID,
        linux_boot_id=LINUX_BOOT,
        cohort="gpu",
        tenant="default",
        baseline=BaselineRef("h200-prod", "4.2.0", "ba" * 32),
        policy_stale=False,
        evidence_sha256="ee" * 32,
        binding_key=None,
        ak_public=None,
        reasons=(),
    )
    return replace(result, **changes)


def a_pod(**changes: Any) -> Pod:
    pod = Pod(
        namespace="ml",
        name="llm-0",
        uid=PodUid(POD_UID),
        labels={},
        annotations={},
        service_account="llm",
        node_name="",
        images=(PodImage("container", "main", IMAGE),),
        tolerations=(),
        deleting=False,
        ended=False,
    )
    return replace(pod, **changes)


def a_node(**changes: Any) -> Node:
    return replace(Node(NODE, NodeUid(NODE_UID), LINUX_BOOT, deleting=False), **changes)


def a_policy(**changes: Any) -> NodeTrustPolicy:
    policy = NodeTrustPolicy(
        name="h200-prod",
        enforcement="deny",
        accept=frozenset({Verdict.AFFIRMING}),
        baselines={"h200-prod": (4, 1, 0)},
        max_evidence_age_seconds=300,
        min_remaining_seconds=60,
        exemptions=(),
    )
    return replace(policy, **changes)


def a_workload(**changes: Any) -> SensitiveWorkload:
    workload = SensitiveWorkload(
        name="llm",
        subjects=frozenset({("ml", "llm")}),
        policy="h200-prod",
        stricter=(),
        images=frozenset({IMAGE}),
        secrets={"llm/key": SecretGrant("llm/key", "key.bin", 900), "llm/other": SecretGrant("llm/other", "other", 60)},
    )
    return replace(workload, **changes)


def a_cluster(
    *,
    pod: Pod | None = None,
    node: Node | None = None,
    policies: tuple[NodeTrustPolicy, ...] | None = None,
    workloads: tuple[SensitiveWorkload, ...] | None = None,
    result: AttestationResult | Failure | None = None,
) -> Snapshot:
    pod, node = pod or a_pod(), node or a_node()
    return Snapshot(
        pods={(pod.namespace, pod.name): pod},
        nodes={node.name: node},
        service_accounts={("ml", "llm"): ServiceAccount("ml", "llm", ACCOUNT_UID)},
        policies={policy.name: policy for policy in ((a_policy(),) if policies is None else policies)},
        workloads=(a_workload(),) if workloads is None else workloads,
        results={node.name: a_result() if result is None else result},
    )


def an_identity(**changes: Any) -> PodIdentity:
    return replace(PodIdentity("ml", "llm", ACCOUNT_UID, "llm-0", POD_UID, NODE, NODE_UID, NOW + 600), **changes)


def token_claims(**changes: Any) -> dict[str, Any]:
    claims: dict[str, Any] = {
        "iss": TOKEN_ISSUER,
        "aud": ["nodewarden-broker"],
        "sub": "system:serviceaccount:ml:llm",
        "iat": NOW - 10,
        "nbf": NOW - 10,
        "exp": NOW + 600,
        "jti": str(uuid4()),
        "kubernetes.io": {
            "namespace": "ml",
            "serviceaccount": {"name": "llm", "uid": ACCOUNT_UID},
            "pod": {"name": "llm-0", "uid": POD_UID},
            "node": {"name": NODE, "uid": NODE_UID},
        },
    }
    return {**claims, **changes}


def envelope(
    ak: EccAk | RsaAk, token: str, secrets: list[str], label: RequestLabel = RequestLabel.SECRET_RELEASE, **changes: Any
) -> ReleaseEnvelope:
    fields: dict[str, Any] = {
        "jti": uuid4().hex,
        "iat": NOW,
        "node_id": NODE_ID,
        "token_sha256": hashlib.sha256(token.encode()).hexdigest(),
        "secrets": secrets,
        **changes,
    }
    body = canonical_json(fields)
    return ReleaseEnvelope(token=token, body=text_of(body), signature=text_of(ak.sign(message_to_sign(label, body))))
