"""What people are told by `nodes` and `inventory`, and what these ask of the verifier."""

from __future__ import annotations

import asyncio
import copy
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.forge import baselines
from tests.verifier import fleet
from tests.verifier.http import Http, with_http
from tests.verifier.test_service_enrolment import entry
from verifier import node_commands
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Refusal

RUN = CliRunner()


class _Client:
    """Answers commands from a verifier without sockets."""

    def __init__(self, http: Http) -> None:
        self._http = http
        self.posted: list[Any] = []

    def get(self, path: str) -> dict[str, Any]:
        return asyncio.run(self._http.get(path))

    def post(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        self.posted.append(copy.deepcopy(body))
        return asyncio.run(self._http.act(path, body))


@pytest.fixture
def clock() -> fleet.SetClock:
    return fleet.SetClock()


def _with_commands(directory: Path, clock: fleet.SetClock, monkeypatch: pytest.MonkeyPatch, scenario: Any) -> None:
    """Runs `scenario` (not a coroutine, as commands are none) with an HTTP client and the commands' own."""
    verifier = fleet.start(directory, clock)
    http = Http(verifier, directory)
    client = _Client(http)
    monkeypatch.setattr(node_commands._Target, "client", lambda _self: client)
    try:
        scenario(http, client)
    finally:
        verifier.close()


def _nodes(*arguments: str) -> Result:
    return RUN.invoke(node_commands.nodes_app, arguments)


def _inventory(*arguments: str) -> Result:
    return RUN.invoke(node_commands.inventory_app, arguments)


def test_lists_have_a_head_and_say_when_they_are_empty(
    tmp_path: Path, clock: fleet.SetClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scenario(http: Http, _client: _Client) -> None:
        assert "no node" in _nodes("list").output and "empty" in _inventory("list").output
        asyncio.run(fleet.enrol(http.verifier, fleet.node(0)))
        head, row = _nodes("list").output.splitlines()
        assert head.startswith("NODE") and row.startswith("node-0") and row.endswith(ReasonCode.RESULT_MISSING.value)
        asyncio.run(http.attest(fleet.node(0)))
        row = _nodes("list").output.splitlines()[1]
        assert "affirming" in row and "2026-11-18T11:06:40Z" in row
        assert "2026-11-18T11:06:40Z" in _nodes("show", "node-0").output

    _with_commands(tmp_path / "v", clock, monkeypatch, scenario)


def test_an_expired_verdict_says_so_and_since_when(
    tmp_path: Path, clock: fleet.SetClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scenario(http: Http, _client: _Client) -> None:
        asyncio.run(fleet.enrol(http.verifier, fleet.node(0)))
        asyncio.run(http.attest(fleet.node(0)))
        clock.forward(1000)
        told = asyncio.run(http.get("/v1/nodes/node-0/explain"))
        assert [reason["code"] for reason in told["reasons"]] == [ReasonCode.RESULT_EXPIRED]
        assert told["reason"] == ReasonCode.RESULT_EXPIRED
        assert ReasonCode.RESULT_EXPIRED.value in _nodes("explain", "node-0").output

    _with_commands(tmp_path / "v", clock, monkeypatch, scenario)


def test_each_reason_is_printed_once_where_one_baseline_judged(
    tmp_path: Path, clock: fleet.SetClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = baselines.document()
    document["bootSets"][0]["cmdline"]["require"].append("module.sig_enforce=1")

    def scenario(http: Http, _client: _Client) -> None:
        fleet.write_baseline(http.verifier.settings.baselines_dir, document)
        http.verifier.reload_baselines()
        asyncio.run(fleet.enrol(http.verifier, fleet.node(0)))
        asyncio.run(http.attest(fleet.node(0)))
        output = _nodes("explain", "node-0").output
        assert output.count(ReasonCode.CMDLINE_ARGUMENT_MISSING.value) == 1
        assert "test-nodes 1.0.0: failed, as above" in output

    _with_commands(tmp_path / "v", clock, monkeypatch, scenario)


def test_baselines_that_were_refused_are_told_where_their_absence_is_felt(
    tmp_path: Path, clock: fleet.SetClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scenario(http: Http, _client: _Client) -> None:
        asyncio.run(fleet.enrol(http.verifier, fleet.node(0)))
        bad = http.verifier.settings.baselines_dir / "bad.yaml"
        bad.write_text("version: 1.10\n")
        http.verifier.reload_baselines()
        assert ReasonCode.BASELINE_INVALID.value in _nodes("explain", "node-0").output
        bad.unlink()
        http.verifier.reload_baselines()
        assert ReasonCode.BASELINE_INVALID.value not in _nodes("explain", "node-0").output

    _with_commands(tmp_path / "v", clock, monkeypatch, scenario)


def test_approving_tells_which_tpm_and_that_it_must_attest_first(
    tmp_path: Path, clock: fleet.SetClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scenario(http: Http, _client: _Client) -> None:
        forged = fleet.node(0)
        asyncio.run(fleet.enrol(http.verifier, forged))
        asyncio.run(http.attest(forged))
        _nodes("revoke", "node-0")
        output = _nodes("approve", forged.enrolled.node_id).output
        assert forged.enrolled.node_id in output and "stays contraindicated until its next attestation" in output

    _with_commands(tmp_path / "v", clock, monkeypatch, scenario)


def test_adding_a_listed_name_with_another_tpm_is_refused_and_keeps_all_its_eks_otherwise(
    tmp_path: Path, clock: fleet.SetClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scenario(_http: Http, client: _Client) -> None:
        client.post("/v1/inventory", {"entries": [entry(fleet.node(0), "worker", "prod-a", "22" * 32)]})
        place = ("worker", "--tenant", "ml", "--cohort", "prod-b", "--public-key-sha256")
        refused = _inventory("add", *place, "11" * 32).exception
        assert isinstance(refused, Refusal) and refused.code is ReasonCode.EK_CONFLICT
        assert _inventory("add", *place, "22" * 32).exit_code == 0
        (listed,) = client.get("/v1/inventory")["entries"]
        assert listed["cohort"] == "prod-b" and len(listed["eks"]) == 2

    _with_commands(tmp_path / "v", clock, monkeypatch, scenario)


def test_no_result_outlives_the_baseline_that_made_it(tmp_path: Path, clock: fleet.SetClock) -> None:
    document = baselines.document()

    async def scenario(http: Http) -> None:
        document["metadata"]["expires"] = "2026-11-18T11:08:00Z"
        fleet.write_baseline(http.verifier.settings.baselines_dir, document)
        http.verifier.reload_baselines()
        await fleet.enrol(http.verifier, fleet.node(0))
        assert (await http.attest(fleet.node(0)))["verdict"] == "affirming"
        assert (await http.get("/v1/nodes/node-0"))["expires_at"] == fleet.NOW + 80

    with_http(tmp_path / "v", scenario, clock)
