"""Enrolment messages: a TPM introduces its EK and AK, and proves by activation that it holds both."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from verifier.wire.messages import Base64Url, Hex32, Message, NodeName


class EnrolmentRequest(Message):
    """What a node claims of its TPM: public areas as TPM2B_PUBLIC; certificates as DER, leaf first, then others."""

    version: Annotated[int, Field(ge=1, le=1)]
    """Not `Literal[1]`: that takes true for 1."""
    node_name: NodeName
    ek_public: Base64Url
    ak_public: Base64Url
    ek_certificates: Annotated[list[Base64Url], Field(max_length=8)]
    """Empty where the TPM has none; then only an inventory entry by public key admits the node."""
    node_token: Base64Url | None
    """The attester's projected ServiceAccount token (as bytes), where the verifier serves a cluster; else null."""


class EnrolmentResponse(Message):
    """TPM2_MakeCredential for the claimed EK and AK name."""

    enrolment_id: Base64Url
    node_id: Hex32
    credential_blob: Base64Url
    """TPM2B_ID_OBJECT without its outer size: 2B integrity HMAC, then the encrypted identity."""
    encrypted_secret: Base64Url
    """TPM2B_ENCRYPTED_SECRET without its outer size."""
    expires_at: int
    verifier_id: Annotated[str, Field(min_length=1, max_length=256)]
    """For comparison with the attester's own setting before anything is changed; an attester never adopts it."""


class ActivationRequest(Message):
    """The secret that TPM2_ActivateCredential recovered."""

    secret: Base64Url


class ActivationResponse(Message):
    """The node is enrolled; `admitted` says whether it may be verified already or waits for a person."""

    node_id: Hex32
    node_name: NodeName
    admitted: bool
    admission: Literal["inventory", "manual", "manufacturer"]
