"""Requests of strangers that were made to cost much, or to meet a fault of ours."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard

from tests.verifier import fleet
from tests.verifier.http import Http, with_http
from verifier.api.body import read_body
from verifier.api.routes import MAX_EVIDENCE_BYTES
from verifier.roles import Role
from verifier.wire.bundle import MAX_BOOT_LOG_BYTES
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence


def _pieces(size: int, count: int) -> Iterator[dict[str, Any]]:
    for number in range(count):
        yield {"type": "http.request", "body": bytes(size), "more_body": number < count - 1}


async def _read(size: int, count: int, max_bytes: int) -> bytes:
    pieces = _pieces(size, count)

    async def receive() -> dict[str, Any]:
        return next(pieces)

    return await read_body({}, receive, max_bytes)


def test_a_body_in_many_small_pieces_costs_no_more_than_its_size() -> None:
    started = time.perf_counter()
    assert len(asyncio.run(_read(64, 65_536, 4 << 20))) == 4 << 20
    # Copying all that came before, at every piece, takes tens of seconds.
    assert time.perf_counter() - started < 2


def test_a_body_is_cut_off_at_its_limit_whatever_it_declared() -> None:
    assert len(asyncio.run(_read(10, 10, 100))) == 100
    with pytest.raises(MalformedEvidence) as refused:
        asyncio.run(_read(10, 11, 100))
    assert refused.value.code is ReasonCode.BODY_TOO_LARGE


def test_the_largest_evidence_that_a_challenge_asks_for_is_read_and_little_more(tmp_path: Path) -> None:
    async def scenario(http: Http) -> None:
        forged = fleet.node(0)
        await fleet.enrol(http.verifier, forged)
        good = fleet.evidence(forged, await fleet.challenge(http.verifier, forged))
        largest = fleet.encoded(good, log=bytes(MAX_BOOT_LOG_BYTES))
        answer = await http.call("POST", "/v1/evidence", largest)
        assert answer.json()["reasons"][0]["code"] == ReasonCode.BOOT_LOG_MALFORMED
        bomb = zstandard.compress(b" " * (MAX_EVIDENCE_BYTES + 1))
        answer = await http.call("POST", "/v1/evidence", bomb, content_encoding="zstd")
        assert (answer.status_code, answer.json()["code"]) == (413, ReasonCode.BODY_TOO_LARGE)

    with_http(tmp_path / "v", scenario)


@pytest.mark.parametrize("structure", [b'{"a":[' + b"[]," * 600_000 + b"[]]}", b'{"' + b'":0,"' * 300_000 + b'":0}'])
def test_a_small_frame_that_unpacks_to_very_many_values_costs_little(tmp_path: Path, structure: bytes) -> None:
    async def scenario(http: Http) -> None:
        frame = zstandard.compress(structure)
        started = time.perf_counter()
        answer = await http.call("POST", "/v1/evidence", frame, content_encoding="zstd")
        assert (answer.status_code, answer.json()["code"]) == (413, ReasonCode.BODY_TOO_LARGE)
        assert time.perf_counter() - started < 0.5

    with_http(tmp_path / "v", scenario)


@pytest.mark.parametrize("after", ["%C2%B2", "-1", "+1", "%D9%A1", "1_0", "9" * 19, "", "x"])
def test_a_row_number_in_any_other_spelling_is_malformed(tmp_path: Path, after: str) -> None:
    async def scenario(http: Http) -> None:
        assert (await http.call("GET", "/v1/audit?after=0", role=Role.VIEWER)).status_code == 200
        answer = await http.call("GET", f"/v1/audit?after={after}", role=Role.VIEWER)
        assert (answer.status_code, answer.json()["code"]) == (400, ReasonCode.SCHEMA_MISMATCH)

    with_http(tmp_path / "v", scenario)


@pytest.mark.parametrize("after", ["-1", "1.0", "9" * 19, "x"])
def test_an_event_number_in_any_other_spelling_is_malformed(tmp_path: Path, after: str) -> None:
    async def scenario(http: Http) -> None:
        answer = await http.call("GET", "/v1/results?watch=true", role=Role.MACHINE, last_event_id=after)
        assert (answer.status_code, answer.json()["code"]) == (400, ReasonCode.SCHEMA_MISMATCH)

    with_http(tmp_path / "v", scenario)
