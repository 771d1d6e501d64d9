"""What people do with nodes, and how relying parties hear of it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import jwt
import pytest

from tests.verifier import fleet
from tests.verifier.http import Http, with_http
from tests.verifier.test_service_enrolment import begin, enrolled, entry, list_in_inventory
from verifier.api.endpoint import Answer, send_answer
from verifier.api.stream import Commits, result_events
from verifier.roles import Role
from verifier.wire.codes import ReasonCode


def _claims(token: str) -> dict[str, Any]:
    claims: dict[str, Any] = jwt.decode(token, options={"verify_signature": False})
    return claims


def test_a_revocation_is_a_signed_result_that_outlives_what_it_ends(tmp_path: Path) -> None:
    async def scenario(http: Http) -> None:
        forged = fleet.node(0)
        await fleet.enrol(http.verifier, forged)
        challenge = await fleet.challenge(http.verifier, forged)
        before = _claims((await http.attest(forged))["result"])
        after = _claims((await http.act("/v1/nodes/node-0/revoke"))["result"])
        assert after["ear.status"] == "contraindicated" and after["exp"] >= before["exp"]
        assert after["nodewarden"]["seq"] > before["nodewarden"]["seq"]
        assert after["nodewarden"]["reasons"][0]["code"] == ReasonCode.NODE_REVOKED
        evidence = await http.call("POST", "/v1/evidence", fleet.encoded(fleet.evidence(forged, challenge)))
        request = await http.call("POST", "/v1/challenges", fleet.signed(forged, fleet.NOW))
        assert evidence.json()["code"] == request.json()["code"] == ReasonCode.NODE_REVOKED
        await http.act("/v1/nodes/node-0/approve")
        assert (await http.get("/v1/nodes/node-0"))["verdict"] == "contraindicated"
        assert (await http.attest(forged))["verdict"] == "affirming"

    with_http(tmp_path / "v", scenario)


def test_evidence_on_its_way_does_not_undo_a_revocation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(http: Http) -> None:
        forged = fleet.node(0)
        await fleet.enrol(http.verifier, forged)
        challenge = await fleet.challenge(http.verifier, forged)
        commit = http.verifier.store.commit_attestation

        async def after_revocation(unit: Any) -> None:
            monkeypatch.setattr(http.verifier.store, "commit_attestation", commit)
            await http.act("/v1/nodes/node-0/revoke")
            await commit(unit)

        monkeypatch.setattr(http.verifier.store, "commit_attestation", after_revocation)
        answer = await http.call("POST", "/v1/evidence", fleet.encoded(fleet.evidence(forged, challenge)))
        assert answer.json()["code"] == ReasonCode.NODE_REVOKED
        assert (await http.get("/v1/nodes/node-0"))["verdict"] == "contraindicated"

    with_http(tmp_path / "v", scenario)


def test_replace_lets_only_the_new_tpm_take_the_name(tmp_path: Path) -> None:
    async def scenario(http: Http) -> None:
        old, new, third = fleet.node(0, "machine"), fleet.node(1, "machine"), fleet.node(2, "machine")
        await list_in_inventory(http, entry(old))
        await enrolled(http, old)
        await http.act("/v1/nodes/machine/replace", {"publicKeySha256": new.enrolled.node_id})
        for outsider in (old, third):
            assert (await begin(http, outsider))["code"] == ReasonCode.NODE_NAME_MISMATCH
        assert (await enrolled(http, new))["node_id"] == new.enrolled.node_id
        voided = http.verifier.store.result(old.enrolled.node_id)
        assert voided is not None
        assert _claims(voided.token)["nodewarden"]["reasons"][0]["code"] == ReasonCode.NODE_REMOVED

    with_http(tmp_path / "v", scenario)


def test_forget_removes_node_and_entry_and_its_sequence_goes_on(tmp_path: Path) -> None:
    async def scenario(http: Http) -> None:
        forged = fleet.node(0)
        await list_in_inventory(http, entry(forged))
        await enrolled(http, forged)
        await http.attest(forged)
        await http.act("/v1/nodes/node-0/forget")
        assert (await http.get("/v1/nodes"))["nodes"] == []
        assert (await http.get("/v1/inventory"))["entries"] == []
        unknown = await http.call("GET", "/v1/nodes/node-0", role=Role.VIEWER)
        assert (unknown.status_code, unknown.json()["code"]) == (404, ReasonCode.NODE_UNKNOWN)
        last = http.verifier.store.result(forged.enrolled.node_id)
        assert last is not None
        await list_in_inventory(http, entry(forged))
        await enrolled(http, forged)
        again = _claims((await http.attest(forged))["result"])
        assert again["nodewarden"]["seq"] > last.sequence

    with_http(tmp_path / "v", scenario)


def test_a_new_cohort_takes_effect_at_the_next_evidence(tmp_path: Path) -> None:
    async def scenario(http: Http) -> None:
        forged = fleet.node(0)
        await fleet.enrol(http.verifier, forged)
        assert (await http.attest(forged))["verdict"] == "affirming"
        await list_in_inventory(http, entry(forged, cohort="elsewhere"))
        answer = await http.attest(forged)
        assert [reason["code"] for reason in answer["reasons"]] == [ReasonCode.BASELINE_NONE]

    with_http(tmp_path / "v", scenario)


@pytest.mark.parametrize(
    "change",
    [
        {"nodeName": "UPPER"},
        {"nodeName": "line\nbreak"},
        {"eks": []},
        {"eks": [{}]},
        {"eks": [{"publicKeySha256": "0" * 64, "certificateSha256": "0" * 64}]},
        {"extra": 1},
    ],
)
def test_an_inventory_of_another_form_is_refused_whole(tmp_path: Path, change: dict[str, Any]) -> None:
    async def scenario(http: Http) -> None:
        good, bad = entry(fleet.node(0)), entry(fleet.node(1)) | change
        answer = await http.call("POST", "/v1/inventory", {"entries": [good, bad]}, Role.OPERATOR)
        assert answer.json()["code"] == ReasonCode.SCHEMA_MISMATCH
        assert (await http.get("/v1/inventory"))["entries"] == []

    with_http(tmp_path / "v", scenario)


def test_a_verdict_ages_to_none_when_its_node_falls_silent_or_fails(tmp_path: Path) -> None:
    clock = fleet.SetClock()

    async def scenario(http: Http) -> None:
        forged = fleet.node(0)
        await fleet.enrol(http.verifier, forged)
        await http.attest(forged)
        clock.forward(200)
        challenge = await fleet.challenge(http.verifier, forged)
        await http.call("POST", "/v1/evidence", fleet.encoded(fleet.evidence(forged, challenge), magic=1))
        assert (await http.get("/v1/nodes/node-0"))["verdict"] == "affirming"
        clock.forward(100)
        node = await http.get("/v1/nodes/node-0")
        assert (node["verdict"], node["last_verdict"]) == ("none", "affirming")

    with_http(tmp_path / "v", scenario, clock)


def test_explain_tells_each_baseline_version_and_what_it_failed(tmp_path: Path) -> None:
    async def scenario(http: Http) -> None:
        forged = fleet.node(0)
        await fleet.enrol(http.verifier, forged)
        await http.attest(forged)
        told = await http.get("/v1/nodes/node-0/explain")
        assert (told["verdict"], told["reasons"]) == ("affirming", [])
        assert [(c["baseline"], c["version"], c["failures"]) for c in told["candidates"]] == [
            ("test-nodes", "1.0.0", [])
        ]

    with_http(tmp_path / "v", scenario)


def test_the_stream_begins_with_what_stands_and_goes_on_in_commit_order(tmp_path: Path) -> None:
    async def scenario(http: Http) -> None:
        nodes = [fleet.node(which) for which in range(3)]
        for forged in nodes:
            await fleet.enrol(http.verifier, forged)
            await http.attest(forged)
        commits = Commits()
        stream = result_events(http.verifier.store, commits, 0)
        snapshot = await anext(stream)
        assert snapshot.count(b"event: result") == 3
        assert await anext(stream) == b"event: snapshot-complete\ndata: {}\n\n"
        coming = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0.05)
        assert not coming.done()
        await http.act("/v1/nodes/node-1/revoke")
        commits.committed()
        event = (await asyncio.wait_for(coming, 3)).decode()
        fields = dict(line.split(": ", 1) for line in event.strip().splitlines())
        assert json.loads(fields["data"])["verdict"] == "contraindicated"
        await stream.aclose()
        assert commits.streams == 0
        resumed = result_events(http.verifier.store, commits, int(fields["id"]))
        assert await anext(resumed) == b"event: snapshot-complete\ndata: {}\n\n"
        await resumed.aclose()

    with_http(tmp_path / "v", scenario)


def test_a_stream_ends_when_its_client_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("verifier.api.stream.KEEP_ALIVE_SECONDS", 0.05)

    async def scenario(http: Http) -> None:
        commits, sent = Commits(), []

        async def receive() -> dict[str, Any]:
            await asyncio.sleep(0.2)
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        answer = Answer(b"", 200, "text/event-stream", result_events(http.verifier.store, commits, 0))
        await asyncio.wait_for(send_answer(answer, "request-1", receive, send), 5)
        assert len(sent) > 2 and commits.streams == 0

    with_http(tmp_path / "v", scenario)


def test_a_silent_stream_shows_that_it_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("verifier.api.stream.KEEP_ALIVE_SECONDS", 0.05)

    async def scenario(http: Http) -> None:
        stream = result_events(http.verifier.store, Commits(), 0)
        assert [await anext(stream) for _ in range(3)][1:] == [b": alive\n\n"] * 2
        await stream.aclose()

    with_http(tmp_path / "v", scenario)


def test_a_stream_and_a_long_poll_end_when_the_server_stops(tmp_path: Path) -> None:
    async def scenario(http: Http) -> None:
        commits, wanted = Commits(), http.verifier.service.wanted
        stream = result_events(http.verifier.store, commits, 0)
        assert await anext(stream) == b"event: snapshot-complete\ndata: {}\n\n"
        waiting = asyncio.create_task(anext(stream, b"ended"))
        polling = asyncio.create_task(wanted.wait("0" * 64))
        await asyncio.sleep(0.05)
        commits.end()
        wanted.end()
        assert await asyncio.wait_for(waiting, 1) == b"ended"
        assert await asyncio.wait_for(polling, 1) is False

    with_http(tmp_path / "v", scenario)


def test_a_stream_that_is_woken_for_nothing_shows_that_it_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("verifier.api.stream.KEEP_ALIVE_SECONDS", 0.2)

    async def scenario(http: Http) -> None:
        commits = Commits()

        async def chain_audit_rows() -> None:
            while True:
                await asyncio.sleep(0.02)
                commits.committed()

        chaining = asyncio.ensure_future(chain_audit_rows())
        stream = result_events(http.verifier.store, commits, 0)
        assert await anext(stream) == b"event: snapshot-complete\ndata: {}\n\n"
        assert await asyncio.wait_for(anext(stream), 2) == b": alive\n\n"
        await stream.aclose()
        chaining.cancel()

    with_http(tmp_path / "v", scenario)
