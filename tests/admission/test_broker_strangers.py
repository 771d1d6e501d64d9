"""Whoever holds no node's AK costs the API server nothing: no token is reviewed for him."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from admission.cluster_view import PodIdentity
from tests.admission.test_broker import SECRET, World
from tests.admission.world import NODE, NODE_UID, EccAk, Signer, envelope, token_claims
from verifier.wire.codes import ReasonCode


class Asked(World):
    """A broker that keeps the tokens which it had reviewed."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.reviewed: list[str] = []

    def check_token(self, token: str, now: int) -> PodIdentity:
        self.reviewed.append(token)
        return super().check_token(token, now)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Asked]:
    made = Asked(tmp_path)
    yield made
    made.database.close()


def test_the_token_of_a_request_that_the_claimed_node_signed_is_reviewed(world: Asked) -> None:
    token = world.token()
    assert world.opened(world.post(world.asked(token=token))) == SECRET
    assert world.reviewed == [token]


@pytest.mark.parametrize("issued", [True, False], ids=["stolen", "made up"])
def test_a_token_that_comes_without_its_nodes_signature_is_not_reviewed(world: Asked, issued: bool) -> None:
    token = world.token() if issued else Signer().token(token_claims())
    posted = envelope(EccAk(), token, ["llm/key"], iat=world.now)
    assert world.code(posted) is ReasonCode.POSSESSION_NOT_PROVED
    assert world.reviewed == []


@pytest.mark.parametrize("token", ["x", "a.b.c", "..", "e30.e30.e30", "e30.W10.AA", "é", "A" * 16_000])
def test_what_is_no_token_at_all_is_not_reviewed(world: Asked, token: str) -> None:
    answer = world.post(envelope(world.ak, token, ["llm/key"], iat=world.now))
    assert answer.status_code in (400, 403)
    assert answer.json()["code"] in {
        code.value for code in (ReasonCode.TOKEN_INVALID, ReasonCode.TOKEN_NOT_POD_BOUND, ReasonCode.SCHEMA_MISMATCH)
    }
    assert world.reviewed == []


def test_a_node_that_is_not_there_or_has_no_result_has_no_token_reviewed(world: Asked) -> None:
    claims = token_claims()
    claims["kubernetes.io"] = {**claims["kubernetes.io"], "node": {"name": "gpu-9", "uid": NODE_UID}}
    assert world.code(world.asked(token=Signer().token(claims))) is ReasonCode.NODE_UNKNOWN_TO_CLUSTER
    world.cluster = replace(world.cluster, results={})
    assert world.code(world.asked()) is ReasonCode.RESULT_MISSING
    assert world.reviewed == []
    assert NODE in world.cluster.nodes


def test_a_node_that_signs_for_a_made_up_token_gets_nothing_and_uses_up_no_request(world: Asked) -> None:
    made_up = Signer().token(token_claims())
    assert world.code(world.asked(token=made_up)) is ReasonCode.TOKEN_INVALID
    assert world.opened(world.post(world.asked())) == SECRET
