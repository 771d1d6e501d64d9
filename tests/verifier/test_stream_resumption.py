"""A consumer of the stream that comes back, after whatever happened to the verifier meanwhile."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from tests.verifier import fleet
from tests.verifier.http import Http, with_http
from verifier.api.stream import Commits, result_events
from verifier.server import Verifier, build_verifier

_START_OF_EVENT = b"event: result"


async def _all_that_stands(verifier: Verifier, after: int) -> bytes:
    stream = result_events(verifier.store, Commits(), after)
    told = b""
    while not told.endswith(b"event: snapshot-complete\ndata: {}\n\n"):
        told += await anext(stream)
    await stream.aclose()
    return told


def test_a_consumer_that_resumes_after_an_event_that_never_was_is_told_all_that_stands(tmp_path: Path) -> None:
    async def scenario(http: Http) -> None:
        forged = fleet.node(0)
        await fleet.enrol(http.verifier, forged)
        await http.attest(forged)
        last = http.verifier.store.last_event()
        assert (await _all_that_stands(http.verifier, last)).count(_START_OF_EVENT) == 0
        assert (await _all_that_stands(http.verifier, last + 1)).count(_START_OF_EVENT) == 1

    with_http(tmp_path / "v", scenario)


def test_a_database_restored_from_a_backup_gives_no_event_out_twice(tmp_path: Path) -> None:
    clock = fleet.SetClock()
    verifier = fleet.start(tmp_path / "v", clock)
    nodes = [fleet.node(which) for which in range(2)]

    async def attest_both(served: Verifier) -> None:
        for forged in nodes:
            challenge = await fleet.challenge(served, forged)
            await served.service.attest(fleet.encoded(fleet.evidence(forged, challenge)), "request-1")

    async def before() -> None:
        for forged in nodes:
            await fleet.enrol(verifier, forged)
        await attest_both(verifier)

    asyncio.run(before())
    verifier.close()
    shutil.copy(tmp_path / "v/verifier.db", tmp_path / "backup.db")

    verifier = build_verifier(verifier.settings, clock)
    asyncio.run(attest_both(verifier))
    seen = verifier.store.last_event()
    verifier.close()
    shutil.copy(tmp_path / "backup.db", tmp_path / "v/verifier.db")

    clock.forward(60)
    restored = build_verifier(verifier.settings, clock)
    asyncio.run(attest_both(restored))
    # Both are new to the consumer, and it hears of both.
    assert asyncio.run(_all_that_stands(restored, seen)).count(_START_OF_EVENT) == 2
    restored.close()
