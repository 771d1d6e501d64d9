"""What happens while the broker answers: it waits for the API server and its store, and the cluster goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from tests.admission.test_broker import SECRET, World, world
from tests.admission.world import NODE, EccAk, a_node, a_pod, jwk_of
from verifier.wire.codes import ReasonCode
from verifier.wire.messages import text_of
from verifier.wire.result import Verdict

__all__ = ["world"]


def _during_the_token_check(world: World, change: Callable[[], None]) -> None:
    check = world.tokens.verify

    def checking(token: str, now: int) -> Any:
        change()
        return check(token, now)

    world.tokens.verify = checking  # type: ignore[method-assign]  # - the API server that answers late


def _during_the_reading(world: World, change: Callable[[], None]) -> None:
    def reading(name: str) -> bytes:
        change()
        return SECRET

    world.store.read = reading  # type: ignore[method-assign]  # - a backend that answers late


MOMENTS = pytest.mark.parametrize("moment", [_during_the_token_check, _during_the_reading])
Moment = Callable[[World, Callable[[], None]], None]


@MOMENTS
def test_a_node_that_falls_while_the_broker_answers_gets_nothing(world: World, moment: Moment) -> None:
    moment(world, lambda: world.with_result(verdict=Verdict.CONTRAINDICATED))
    assert world.code(world.asked()) is ReasonCode.NODE_NOT_VERIFIED


@MOMENTS
def test_a_node_that_reboots_while_the_broker_answers_gets_nothing(world: World, moment: Moment) -> None:
    def reboot() -> None:
        world.cluster = replace(
            world.cluster, nodes={NODE: a_node(claimed_boot_id="5f0c9d3e-0000-4000-8000-00000000dead")}
        )

    moment(world, reboot)
    assert world.code(world.asked()) is ReasonCode.BOOT_MISMATCH


@MOMENTS
def test_a_pod_that_is_deleted_while_the_broker_answers_gets_nothing(world: World, moment: Moment) -> None:
    gone = replace(a_pod(node_name=NODE), deleting=True)
    moment(world, lambda: setattr(world, "cluster", replace(world.cluster, pods={(gone.namespace, gone.name): gone})))
    assert world.code(world.asked()) is ReasonCode.POD_DELETING


@MOMENTS
@pytest.mark.parametrize("changed", ["binding_key", "boot_id", "ak_public"])
def test_an_answer_for_keys_that_are_no_more_the_nodes_is_not_given(world: World, moment: Moment, changed: str) -> None:
    later = {
        "binding_key": jwk_of(ec.generate_private_key(ec.SECP256R1()).public_key()),
        "boot_id": "c1" * 32,
        "ak_public": text_of(EccAk().public),
    }
    moment(world, lambda: world.with_result(**{changed: later[changed]}))
    assert world.code(world.asked()) is ReasonCode.BOOT_MISMATCH


@MOMENTS
def test_a_node_that_attests_again_meanwhile_gets_its_secret(world: World, moment: Moment) -> None:
    moment(world, lambda: world.with_result(sequence=2_000_000_000_000))
    assert world.opened(world.post(world.asked())) == SECRET
