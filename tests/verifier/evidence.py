"""Running one node's evidence through a verifier in tests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import jwt
import pytest

from tests.forge.evidence import ForgedNode
from tests.verifier import fleet
from verifier.appraisal.context import IssuedChallenge
from verifier.server import Verifier
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Refusal
from verifier.wire.messages import decode_message
from verifier.wire.result import AttestationResult, result_from_claims
from verifier.wire.verdict import EvidenceResponse

Scenario = Callable[[Verifier, ForgedNode, IssuedChallenge], Awaitable[None]]


def with_node(verifier: Verifier, scenario: Scenario) -> None:
    """Runs `scenario` with an enrolled node and a live challenge for it."""

    async def run() -> None:
        forged = fleet.node(0)
        await fleet.enrol(verifier, forged)
        await scenario(verifier, forged, await fleet.challenge(verifier, forged))

    asyncio.run(run())


async def attest_to(verifier: Verifier, body: bytes) -> dict[str, Any]:
    """The decoded answer to evidence, in exactly the wire's form."""
    answered = await verifier.service.attest(body, "request-1")
    decode_message(EvidenceResponse, answered.body, "answer")
    fields: dict[str, Any] = json.loads(answered.body)
    return fields


async def refused(verifier: Verifier, body: bytes) -> ReasonCode:
    """The code with which evidence is refused."""
    with pytest.raises(Refusal) as caught:
        await verifier.service.attest(body, "request-1")
    return caught.value.code


def result_of(verifier: Verifier, token: str) -> AttestationResult:
    """The result in a token that this verifier signed."""
    key = jwt.PyJWKSet.from_dict(verifier.signer.jwks)[jwt.get_unverified_header(token)["kid"]]
    options: Any = {"verify_exp": False, "verify_iat": False}
    claims = jwt.decode(token, key, algorithms=["ES256"], audience="test-cluster", options=options)
    return result_from_claims(claims)
