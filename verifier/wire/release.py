"""Secret release messages between a node's attester and the broker."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from verifier.wire.messages import Hex32, Message

SecretName = Annotated[
    str, Field(min_length=1, max_length=253, pattern=r"\A[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9])?\z")
]


class ReleaseRequest(Message):
    """Body of the AK-signed request (label `nodewarden/secret-release/1`): for which pod token and which secrets."""

    jti: Annotated[str, Field(min_length=16, max_length=64, pattern=r"\A[A-Za-z0-9_-]+\z")]
    iat: int
    node_id: Hex32
    token_sha256: Hex32
    """SHA-256 of the pod's ServiceAccount token text: the token alone, or the signature alone, starts nothing."""
    secrets: Annotated[list[SecretName], Field(min_length=1, max_length=32)]


class ReleaseEnvelope(Message):
    """What is posted: the pod's token, and the signed request (`verifier.wire.signed_request`) as base64url parts."""

    token: Annotated[str, Field(min_length=1, max_length=16 * 1024)]
    body: Annotated[str, Field(min_length=1, max_length=32 * 1024)]
    signature: Annotated[str, Field(min_length=1, max_length=8 * 1024)]


class ReleasedSecret(Message):
    """One secret: a flattened JSON JWE (ECDH-ES+A256KW, A256GCM) that only this boot of this node's TPM opens."""

    name: SecretName
    path: str
    """File name under which a pod mounts it."""
    jwe: dict[str, Any]
    lease_id: str
    expires_at: int


class ReleaseResponse(Message):
    """All requested secrets, or none: a partial release is a refusal."""

    secrets: Annotated[list[ReleasedSecret], Field(min_length=1, max_length=32)]
