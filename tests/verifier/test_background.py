"""The verifier's background work goes on, whatever one round of it meets."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.verifier import fleet
from verifier import server
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Unavailable


@pytest.mark.parametrize("fault", [Unavailable(ReasonCode.STORE_UNAVAILABLE, "store"), RuntimeError("a fault of ours")])
def test_a_round_that_fails_is_not_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception) -> None:
    monkeypatch.setattr(server, "CHAIN_SECONDS", 0.01)
    monkeypatch.setattr(server, "PURGE_ROUNDS", 1)
    verifier = fleet.start(tmp_path / "v", fleet.SetClock())
    rounds: list[str] = []
    enough = asyncio.Event()

    async def chain() -> None:
        rounds.append("chain")
        raise fault

    async def purge(_now: int) -> None:
        rounds.append("purge")
        if rounds.count("purge") == 3:
            enough.set()
        raise fault

    monkeypatch.setattr(server.Verifier, "chain_audit", lambda _self: chain())
    monkeypatch.setattr(verifier.store, "purge", purge)

    async def scenario() -> None:
        task = asyncio.create_task(server._background(verifier))
        await enough.wait()
        assert not task.done()
        task.cancel()

    asyncio.run(asyncio.wait_for(scenario(), 10))
    verifier.close()
    assert rounds[:4] == ["chain", "purge", "chain", "purge"]
