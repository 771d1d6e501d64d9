"""The audit log: every act is a row, the chain proves the rows, a checkpoint proves the chain."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.verifier import fleet
from tests.verifier.http import Http
from verifier.audit_log import AuditProof, read_checkpoint, verify_audit
from verifier.roles import Role
from verifier.server import Verifier
from verifier.store.ports import AuditHead
from verifier.store.sql import SqlStore
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence, Rejection, Unavailable


@pytest.fixture
def verifier(tmp_path: Path) -> Iterator[Verifier]:
    """A verifier with two rounds of chained acts and an unchained tail of one row."""
    started = fleet.start(tmp_path / "v", fleet.SetClock())
    asyncio.run(_acts(Http(started, tmp_path / "v")))
    yield started
    started.close()


async def _acts(http: Http) -> None:
    forged = fleet.node(0)
    await fleet.enrol(http.verifier, forged)
    await http.attest(forged)
    await http.verifier.chain_audit()
    await http.act("/v1/nodes/node-0/revoke")
    await http.act("/v1/nodes/node-0/approve")
    await http.verifier.chain_audit()
    await http.act("/v1/nodes/node-0/forget")


def _prove(verifier: Verifier, checkpoint: AuditHead | None = None) -> AuditProof:
    return verify_audit(verifier.store, verifier.signer.jwks, checkpoint)


def _tamper(verifier: Verifier, statement: str) -> None:
    with sqlite3.connect(verifier.settings.database) as connection:
        connection.execute(statement)
    connection.close()


def test_every_act_and_verdict_is_a_row_with_who_and_which_request(verifier: Verifier) -> None:
    records = [json.loads(row.record) for row in verifier.store.audit_after(0, 100)]
    kinds = [record["kind"] for record in records]
    assert kinds == ["enrolled", "enrolled", "verdict", "node-revoked", "node-approved", "node-forgotten"]
    assert {record["actor"] for record in records[3:]} == {"operator:operator"}
    assert all(record["request_id"] and record["node_name"] == "node-0" for record in records[1:])
    assert records[2]["detail"]["verdict"] == "affirming"


def test_the_chain_proves_its_rows_and_counts_the_tail(verifier: Verifier) -> None:
    assert _prove(verifier) == AuditProof(rows=5, last_id=5, unanchored=1, checkpoint_rows=None)


def test_a_checkpoint_kept_elsewhere_is_found_in_the_chain(verifier: Verifier) -> None:
    checkpoint = read_checkpoint(verifier.settings.audit_checkpoint_file)
    assert _prove(verifier, checkpoint).checkpoint_rows == 5
    assert len(verifier.settings.audit_checkpoint_file.read_text().splitlines()) == 2


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE audit SET record = replace(record, 'affirming', 'warning!!') WHERE id = 3",
        "DELETE FROM audit WHERE id = 2",
        "UPDATE audit SET id = 50 WHERE id = 5",
        "INSERT INTO audit (id, record) VALUES (0, '{}')",
        "UPDATE audit_heads SET rows = rows + 1",
        "UPDATE audit_heads SET token = 'x.y.z'",
    ],
)
def test_a_changed_log_is_seen(verifier: Verifier, statement: str) -> None:
    _tamper(verifier, statement)
    with pytest.raises(Rejection) as refused:
        _prove(verifier)
    assert refused.value.code is ReasonCode.AUDIT_CHAIN_BROKEN


def test_a_log_cut_off_with_its_heads_is_seen_by_the_checkpoint_only(verifier: Verifier) -> None:
    checkpoint = read_checkpoint(verifier.settings.audit_checkpoint_file)
    _tamper(verifier, "DELETE FROM audit_heads WHERE last_id = 5")
    _tamper(verifier, "DELETE FROM audit WHERE id > 3")
    assert _prove(verifier).rows == 3
    with pytest.raises(Rejection) as refused:
        _prove(verifier, checkpoint)
    assert refused.value.code is ReasonCode.AUDIT_CHAIN_BROKEN


def test_a_head_signed_by_another_key_is_refused(verifier: Verifier, tmp_path: Path) -> None:
    other = fleet.start(tmp_path / "other", fleet.SetClock())
    other.close()
    with pytest.raises(Rejection) as refused:
        verify_audit(verifier.store, other.signer.jwks, None)
    assert refused.value.code is ReasonCode.AUDIT_CHAIN_BROKEN


def test_a_result_is_never_taken_for_a_head(verifier: Verifier) -> None:
    result = verifier.store.results_after(0, 1)[0]
    with pytest.raises(Rejection) as refused:
        _prove(verifier, AuditHead(5, 5, "", 0, result.token))
    assert refused.value.code is ReasonCode.AUDIT_CHAIN_BROKEN


def test_a_checkpoint_file_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unavailable) as absent:
        read_checkpoint(tmp_path / "absent")
    assert absent.value.code is ReasonCode.FILE_UNREADABLE
    (tmp_path / "empty").write_text("")
    with pytest.raises(MalformedEvidence) as empty:
        read_checkpoint(tmp_path / "empty")
    assert empty.value.code is ReasonCode.SCHEMA_MISMATCH


def test_the_log_holds_no_nonce_token_or_secret(verifier: Verifier, tmp_path: Path) -> None:
    text = (verifier.settings.database).read_bytes() + Path(f"{verifier.settings.database}-wal").read_bytes()
    for role in Role:
        assert (tmp_path / "v" / "tokens" / f"{role.value}.token").read_bytes().strip() not in text
    assert b"PRIVATE KEY" not in text


def test_the_audit_route_pages(verifier: Verifier, tmp_path: Path) -> None:
    async def scenario() -> None:
        http = Http(verifier, tmp_path / "v")
        assert [row["id"] for row in (await http.get("/v1/audit?after=4"))["rows"]] == [5, 6]
        answer = await http.call("GET", "/v1/audit?after=-1", role=Role.VIEWER)
        assert answer.json()["code"] == ReasonCode.SCHEMA_MISMATCH

    asyncio.run(scenario())


def test_a_restarted_verifier_goes_on_with_the_same_chain(tmp_path: Path) -> None:
    clock = fleet.SetClock()
    verifier = fleet.start(tmp_path / "v", clock)
    asyncio.run(_acts(Http(verifier, tmp_path / "v")))
    verifier.close()
    store = SqlStore(verifier.settings.database, clock.now_ms())
    assert verify_audit(store, verifier.signer.jwks, None).rows == 5
    store.close()
