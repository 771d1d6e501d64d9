"""Enrolments that were begun before a person changed their mind, and names that a stranger wants."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.verifier import fleet
from tests.verifier.http import Http, with_http
from tests.verifier.test_service_enrolment import begin, enrolled, entry, finish, list_in_inventory
from verifier.roles import Role
from verifier.store import nodes as store_nodes
from verifier.store.sql import KEEP_PENDING_SECONDS
from verifier.wire.codes import ReasonCode


@pytest.mark.parametrize("act", ["revoke", "forget"])
def test_an_enrolment_that_waits_does_not_survive_the_end_of_its_node(tmp_path: Path, act: str) -> None:
    async def scenario(http: Http) -> None:
        forged = fleet.node(0)
        await list_in_inventory(http, entry(forged))
        await enrolled(http, forged)
        begun = await begin(http, forged)
        await http.act(f"/v1/nodes/node-0/{act}")
        assert (await finish(http, forged, begun))["code"] == ReasonCode.ENROLMENT_UNKNOWN

    with_http(tmp_path / "v", scenario)


def test_an_enrolment_of_the_old_tpm_does_not_survive_its_replacement(tmp_path: Path) -> None:
    async def scenario(http: Http) -> None:
        old, new = fleet.node(0), fleet.node(1, "node-0")
        await list_in_inventory(http, entry(old))
        await enrolled(http, old)
        begun = await begin(http, old)
        await http.act("/v1/nodes/node-0/replace", {"publicKeySha256": new.enrolled.node_id})
        assert (await finish(http, old, begun))["code"] == ReasonCode.ENROLMENT_UNKNOWN
        assert (await enrolled(http, new))["admitted"] is True

    with_http(tmp_path / "v", scenario)


def test_an_enrolment_that_waits_while_its_entry_changes_begins_again(tmp_path: Path) -> None:
    async def scenario(http: Http) -> None:
        forged = fleet.node(0)
        await list_in_inventory(http, entry(forged))
        begun = await begin(http, forged)
        await list_in_inventory(http, entry(forged, cohort="quarantine"))
        assert (await finish(http, forged, begun))["code"] == ReasonCode.ENROLMENT_UNKNOWN
        await enrolled(http, forged)
        assert (await http.get("/v1/nodes/node-0"))["cohort"] == "quarantine"

    with_http(tmp_path / "v", scenario)


def test_activation_asks_the_inventory_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Without the removal of waiting enrolments: the second of two defences, alone.
    monkeypatch.setattr("verifier.store.trust.delete", lambda table: table.delete().where(table.c.node_id == "nobody"))

    async def scenario(http: Http) -> None:
        moved, listed_elsewhere = fleet.node(0), fleet.node(1)
        await list_in_inventory(http, entry(moved), entry(listed_elsewhere))
        begun = [await begin(http, forged) for forged in (moved, listed_elsewhere)]
        other = entry(fleet.node(5), "node-1")
        await list_in_inventory(http, entry(moved, cohort="quarantine"), other)
        await finish(http, moved, begun[0])
        assert (await http.get("/v1/nodes/node-0"))["cohort"] == "quarantine"
        assert (await finish(http, listed_elsewhere, begun[1]))["code"] == ReasonCode.NODE_NAME_MISMATCH
        await list_in_inventory(http, entry(listed_elsewhere, "node-9"))

    with_http(tmp_path / "v", scenario)


def test_an_entry_that_names_another_tpm_than_the_enrolled_one_is_refused_whole(tmp_path: Path) -> None:
    async def scenario(http: Http) -> None:
        forged, other, third = fleet.node(0), fleet.node(1, "node-0"), fleet.node(2)
        await list_in_inventory(http, entry(forged))
        await enrolled(http, forged)
        body = {"entries": [entry(third), entry(other) | {"tenant": "payments"}]}
        refused = await http.call("POST", "/v1/inventory", body, Role.OPERATOR)
        assert (refused.status_code, refused.json()["code"]) == (409, ReasonCode.EK_CONFLICT)
        assert [listed["nodeName"] for listed in (await http.get("/v1/inventory"))["entries"]] == ["node-0"]
        node = await http.get("/v1/nodes/node-0")
        assert (node["node_id"], node["tenant"]) == (forged.enrolled.node_id, "ml")
        # All EKs of one TPM belong to one entry: adding one is no other machine.
        await list_in_inventory(http, entry(forged, None, "prod-a", other.enrolled.node_id))

    with_http(tmp_path / "v", scenario)


def test_a_node_that_is_moved_loses_its_verdict_with_a_signed_result(tmp_path: Path) -> None:
    async def scenario(http: Http) -> None:
        forged = fleet.node(0)
        await fleet.enrol(http.verifier, forged)
        await http.attest(forged)
        before = await http.get("/v1/nodes/node-0")
        assert before["verdict"] == "affirming"
        same = await http.act("/v1/inventory", {"entries": [entry(forged)]})
        assert (same, (await http.get("/v1/nodes/node-0"))["seq"]) == ({"written": 1, "reassigned": 0}, before["seq"])
        await list_in_inventory(http, entry(forged, cohort="elsewhere"))
        after = await http.get("/v1/nodes/node-0/explain")
        assert after["verdict"] == "none" and after["seq"] > before["seq"]
        assert [reason["code"] for reason in after["reasons"]] == [ReasonCode.NODE_REASSIGNED]

    with_http(tmp_path / "v", scenario)


@pytest.mark.parametrize("admission", ["manual", "inventory"])
def test_a_name_in_the_inventory_is_for_its_own_tpm_however_nodes_are_admitted(tmp_path: Path, admission: str) -> None:
    async def scenario(http: Http) -> None:
        listed, stranger = fleet.node(0), fleet.node(7, "node-0")
        await list_in_inventory(http, entry(listed))
        refused = await begin(http, stranger)
        assert refused["code"] == ReasonCode.NODE_NAME_MISMATCH
        assert (await enrolled(http, listed))["node_name"] == "node-0"

    with_http(tmp_path / "v", scenario, admission=admission)


def test_a_stranger_that_waits_under_a_name_gives_way_to_the_tpm_that_is_listed(tmp_path: Path) -> None:
    async def scenario(http: Http) -> None:
        listed, stranger = fleet.node(0), fleet.node(7, "node-0")
        assert (await enrolled(http, stranger))["admitted"] is False
        await list_in_inventory(http, entry(listed))
        assert (await http.call("GET", "/v1/nodes/node-0", role=Role.VIEWER)).status_code == 404
        assert (await enrolled(http, listed))["node_id"] == listed.enrolled.node_id
        # By its id, a person admits the TPM that was looked at, whoever has the name by then.
        unknown = await http.call("POST", f"/v1/nodes/{stranger.enrolled.node_id}/approve", None, Role.APPROVER)
        assert unknown.json()["code"] == ReasonCode.NODE_UNKNOWN
        approved = await http.act(f"/v1/nodes/{listed.enrolled.node_id}/approve")
        assert approved["state"] == "admitted"

    with_http(tmp_path / "v", scenario, admission="manual")


def test_a_node_that_nobody_approves_for_a_day_is_gone_with_its_name(tmp_path: Path) -> None:
    clock = fleet.SetClock()

    async def scenario(http: Http) -> None:
        waiting, approved = fleet.node(0), fleet.node(1)
        for forged in (waiting, approved):
            await enrolled(http, forged)
        await http.act("/v1/nodes/node-1/approve")
        clock.forward(KEEP_PENDING_SECONDS)
        await http.verifier.store.purge(clock.now_ms() // 1000)
        assert len((await http.get("/v1/nodes"))["nodes"]) == 2
        clock.forward(1)
        await http.verifier.store.purge(clock.now_ms() // 1000)
        assert [node["node_name"] for node in (await http.get("/v1/nodes"))["nodes"]] == ["node-1"]
        assert (await enrolled(http, fleet.node(5, "node-0")))["node_name"] == "node-0"

    with_http(tmp_path / "v", scenario, clock, admission="manual")


def test_nodes_that_wait_for_a_person_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_nodes, "MAX_PENDING", 3)
    clock = fleet.SetClock()

    async def scenario(http: Http) -> None:
        for which in range(5):
            await enrolled(http, fleet.node(which))
            clock.forward(1)
        names = [node["node_name"] for node in (await http.get("/v1/nodes"))["nodes"]]
        assert names == ["node-2", "node-3", "node-4"]

    with_http(tmp_path / "v", scenario, clock, admission="manual")


def test_whoever_enrols_is_told_no_name_of_the_inventory(tmp_path: Path) -> None:
    async def scenario(http: Http) -> None:
        forged, other = fleet.node(0, "secret-name-1"), fleet.node(1, "secret-name-2")
        await list_in_inventory(http, entry(forged), entry(other))
        await enrolled(http, forged)
        for claimed, name in ((forged, "x"), (other, "secret-name-1"), (fleet.node(2), "secret-name-1")):
            answer = await begin(http, claimed, node_name=name)
            told = json.dumps(answer).replace(name, "")
            assert answer["status"] in (403, 409) and "secret" not in told

    with_http(tmp_path / "v", scenario)


def test_a_stranger_who_is_not_listed_has_no_certificate_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def followed(*_: object) -> None:
        raise AssertionError("a path was looked for")

    monkeypatch.setattr("verifier.enrolment_service.verify_ek_certificate", followed)

    async def scenario(http: Http) -> None:
        answer = await begin(http, fleet.node(0), ek_certificates=["MAA"])
        assert answer["code"] == ReasonCode.EK_NOT_IN_INVENTORY

    with_http(tmp_path / "v", scenario)
