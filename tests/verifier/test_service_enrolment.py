"""Enrolment over HTTP: activation, inventory, conflicts, and the ways not to become a node."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

from tests.forge.evidence import ForgedNode
from tests.forge.keys import attestation_key
from tests.verifier import fleet
from tests.verifier.activation import activate
from tests.verifier.http import Http, with_http
from verifier.wire.codes import ReasonCode
from verifier.wire.messages import bytes_of, text_of


def entry(forged: ForgedNode, name: str | None = None, cohort: str = "prod-a", *more: str) -> dict[str, Any]:
    """An inventory entry by public key; `more` are further EKs of the same TPM."""
    eks = [{"publicKeySha256": digest} for digest in (forged.enrolled.node_id, *more)]
    return {"nodeName": name or forged.enrolled.node_name, "tenant": "ml", "cohort": cohort, "eks": eks}


async def list_in_inventory(http: Http, *entries: dict[str, Any]) -> None:
    await http.act("/v1/inventory", {"entries": list(entries)})


def request(forged: ForgedNode, **changes: Any) -> dict[str, Any]:
    """An enrolment request of a TPM without a certificate."""
    return {
        "version": 1,
        "node_name": forged.enrolled.node_name,
        "ek_public": text_of(forged.ek.tpm2b),
        "ak_public": text_of(forged.ak.tpm2b),
        "ek_certificates": [],
        "node_token": None,
    } | changes


async def begin(http: Http, forged: ForgedNode, **changes: Any) -> dict[str, Any]:
    answer = await http.call("POST", "/v1/enrolments", request(forged, **changes))
    fields: dict[str, Any] = answer.json()
    return fields


async def finish(http: Http, forged: ForgedNode, begun: dict[str, Any], secret: bytes | None = None) -> dict[str, Any]:
    if secret is None:
        blob, seed = bytes_of(begun["credential_blob"]), bytes_of(begun["encrypted_secret"])
        secret = activate(forged.ek, forged.ak, blob, seed)
    path = f"/v1/enrolments/{begun['enrolment_id']}/activation"
    fields: dict[str, Any] = (await http.call("POST", path, {"secret": text_of(secret)})).json()
    return fields


async def enrolled(http: Http, forged: ForgedNode) -> dict[str, Any]:
    return await finish(http, forged, await begin(http, forged))


def test_a_listed_tpm_enrols_and_is_affirmed(tmp_path: Path) -> None:
    async def scenario(http: Http) -> None:
        forged = fleet.node(0)
        await list_in_inventory(http, entry(forged))
        answer = await enrolled(http, forged)
        assert (answer["node_id"], answer["admitted"]) == (forged.enrolled.node_id, True)
        result = await http.attest(forged)
        # The good baseline asks for a certificate, which a TPM that is listed by its key only does not have.
        assert [reason["code"] for reason in result["reasons"]] == [
            ReasonCode.TPM_UNENDORSED,
        ]

    with_http(tmp_path / "v", scenario)


def test_a_tpm_that_is_not_listed_is_refused(tmp_path: Path) -> None:
    async def scenario(http: Http) -> None:
        assert (await begin(http, fleet.node(0)))["code"] == ReasonCode.EK_NOT_IN_INVENTORY

    with_http(tmp_path / "v", scenario)


def test_a_listed_tpm_may_not_take_another_name(tmp_path: Path) -> None:
    async def scenario(http: Http) -> None:
        await list_in_inventory(http, entry(fleet.node(0)))
        assert (await begin(http, fleet.node(0), node_name="other"))["code"] == ReasonCode.NODE_NAME_MISMATCH
        assert (await begin(http, fleet.node(0), node_name="Bad_Name"))["code"] == ReasonCode.NODE_NAME_INVALID

    with_http(tmp_path / "v", scenario)


def test_a_credential_may_be_tried_once(tmp_path: Path) -> None:
    async def scenario(http: Http) -> None:
        forged = fleet.node(0)
        await list_in_inventory(http, entry(forged))
        begun = await begin(http, forged)
        wrong = await finish(http, forged, begun, bytes(32))
        assert wrong["code"] == ReasonCode.CREDENTIAL_MISMATCH
        # Nothing of what would have been right is told (CVE-2023-38201).
        assert wrong["reasons"][0]["expected"] is None and wrong["reasons"][0]["observed"] is None
        assert (await finish(http, forged, begun))["code"] == ReasonCode.ENROLMENT_USED
        unknown = begun | {"enrolment_id": text_of(bytes(32))}
        assert (await finish(http, forged, unknown))["code"] == ReasonCode.ENROLMENT_UNKNOWN

    with_http(tmp_path / "v", scenario)


def test_an_enrolment_ends_after_five_minutes(tmp_path: Path) -> None:
    clock = fleet.SetClock()

    async def scenario(http: Http) -> None:
        forged = fleet.node(0)
        await list_in_inventory(http, entry(forged))
        begun = await begin(http, forged)
        clock.forward(300)
        assert (await finish(http, forged, begun))["code"] == ReasonCode.ENROLMENT_EXPIRED

    with_http(tmp_path / "v", scenario, clock)


def test_unsuitable_keys_are_refused(tmp_path: Path) -> None:
    async def scenario(http: Http) -> None:
        forged, other = fleet.node(0), attestation_key("p-256", 0, 0x00040472)
        await list_in_inventory(http, entry(forged))
        unrestricted = await begin(http, forged, ak_public=text_of(other.tpm2b))
        assert unrestricted["code"] == ReasonCode.AK_ATTRIBUTES_UNSUITABLE
        swapped = await begin(http, forged, ek_public=text_of(forged.ak.tpm2b))
        assert swapped["code"] == ReasonCode.EK_ATTRIBUTES_UNSUITABLE
        token = await begin(http, forged, node_token="AAAA")
        assert token["code"] == ReasonCode.ITEM_NOT_REQUESTED
        certificate = await begin(http, forged, ek_certificates=["AAAA"])
        assert certificate["code"] == ReasonCode.CERTIFICATE_MALFORMED

    with_http(tmp_path / "v", scenario)


def test_a_second_tpm_under_a_known_name_is_a_conflict_even_in_a_race(tmp_path: Path) -> None:
    async def scenario(http: Http) -> None:
        first, second = fleet.node(0, "same"), fleet.node(1, "same")
        begun = [await begin(http, forged) for forged in (first, second)]
        outcomes = await asyncio.gather(finish(http, first, begun[0]), finish(http, second, begun[1]))
        assert sorted(outcome.get("code", "enrolled") for outcome in outcomes) == [
            "enrolled",
            ReasonCode.NODE_NAME_CONFLICT,
        ]
        winner = first if "code" not in outcomes[0] else second
        nodes = (await http.get("/v1/nodes"))["nodes"]
        assert [node["node_id"] for node in nodes] == [winner.enrolled.node_id]
        assert (await begin(http, fleet.node(2, "same")))["code"] == ReasonCode.NODE_NAME_CONFLICT

    with_http(tmp_path / "v", scenario, admission="manual")


def test_one_tpm_under_two_names_is_a_conflict(tmp_path: Path) -> None:
    async def scenario(http: Http) -> None:
        await enrolled(http, fleet.node(0))
        assert (await begin(http, fleet.node(0), node_name="other"))["code"] == ReasonCode.EK_CONFLICT

    with_http(tmp_path / "v", scenario, admission="manual")


def test_another_ek_of_a_listed_tpm_makes_no_second_node(tmp_path: Path) -> None:
    async def scenario(http: Http) -> None:
        first, second = fleet.node(0, "same"), fleet.node(1, "same")
        await list_in_inventory(http, entry(first, "same", "prod-a", second.enrolled.node_id))
        await enrolled(http, first)
        assert (await begin(http, second))["code"] == ReasonCode.EK_CONFLICT

    with_http(tmp_path / "v", scenario)


def test_a_new_ak_voids_what_the_old_one_proved(tmp_path: Path) -> None:
    async def scenario(http: Http) -> None:
        forged = fleet.node(0)
        await list_in_inventory(http, entry(forged))
        await enrolled(http, forged)
        challenge = await fleet.challenge(http.verifier, forged)
        before = await http.get(f"/v1/nodes/{forged.enrolled.node_id}")
        await http.attest(forged)
        renewed = dataclasses.replace(forged, ak=fleet.node(8).ak)
        await enrolled(http, renewed)
        after = await http.get(f"/v1/nodes/{forged.enrolled.node_id}/explain")
        assert after["verdict"] == "none" and after["seq"] > (before["seq"] or 0)
        assert [reason["code"] for reason in after["reasons"]] == [ReasonCode.NODE_ENROLLED_ANEW]
        old = await http.call("POST", "/v1/evidence", fleet.encoded(fleet.evidence(forged, challenge)))
        assert old.json()["code"] == ReasonCode.NONCE_UNKNOWN
        stale = await http.call("POST", "/v1/challenges", fleet.signed(forged, fleet.NOW))
        assert stale.json()["code"] == ReasonCode.REQUEST_SIGNATURE_INVALID

    with_http(tmp_path / "v", scenario)


def test_manual_admission_reports_on_the_node_and_affirms_it_only_once_approved(tmp_path: Path) -> None:
    async def scenario(http: Http) -> None:
        forged = fleet.node(0)
        answer = await enrolled(http, forged)
        assert (answer["admitted"], answer["admission"]) == (False, "manual")
        await list_in_inventory(http, entry(forged))
        first = await http.attest(forged)
        assert ReasonCode.NODE_NOT_ADMITTED in [reason["code"] for reason in first["reasons"]]
        await http.act("/v1/nodes/node-0/approve")
        second = await http.attest(forged)
        assert ReasonCode.NODE_NOT_ADMITTED not in [reason["code"] for reason in second["reasons"]]

    with_http(tmp_path / "v", scenario, admission="manual")


def test_manufacturer_admission_needs_a_certificate(tmp_path: Path) -> None:
    async def scenario(http: Http) -> None:
        assert (await begin(http, fleet.node(0)))["code"] == ReasonCode.EK_CERTIFICATE_MISSING

    with_http(tmp_path / "v", scenario, admission="manufacturer")


def test_a_revoked_node_cannot_enrol_its_way_back(tmp_path: Path) -> None:
    async def scenario(http: Http) -> None:
        forged = fleet.node(0)
        await list_in_inventory(http, entry(forged))
        begun = await begin(http, forged)
        await enrolled(http, forged)
        await http.act("/v1/nodes/node-0/revoke")
        assert (await begin(http, forged))["code"] == ReasonCode.NODE_REVOKED
        assert (await finish(http, forged, begun))["code"] == ReasonCode.ENROLMENT_UNKNOWN

    with_http(tmp_path / "v", scenario)
