"""The store: units are all or nothing, shared commits, races that end in the database, a process that dies."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.verifier import fleet
from verifier.results import ResultMaker
from verifier.server import Verifier
from verifier.store.migrate import migrate, open_engine
from verifier.store.ports import AuditEntry, InventoryEk, InventoryEntry, NodeRecord, SignedResult, SignVoid
from verifier.store.schema import SCHEMA_VERSION
from verifier.store.sql import SqlStore
from verifier.store.writer import GroupWriter, Transaction
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Rejection, Unavailable


def _entry(kind: str = "test") -> AuditEntry:
    return AuditEntry(1, kind, "test", "request-1")


def test_the_database_is_the_owners_only(tmp_path: Path) -> None:
    SqlStore(tmp_path / "v.db", 0).close()
    assert stat.S_IMODE((tmp_path / "v.db").stat().st_mode) == 0o600


def test_a_database_of_a_later_release_is_refused(tmp_path: Path) -> None:
    SqlStore(tmp_path / "v.db", 0).close()
    with sqlite3.connect(tmp_path / "v.db") as connection:
        connection.execute("UPDATE schema_version SET version = ?", (SCHEMA_VERSION + 1,))
    connection.close()
    engine = open_engine(tmp_path / "v.db")
    with pytest.raises(Rejection) as refused:
        migrate(engine, 0)
    engine.dispose()
    assert refused.value.code is ReasonCode.SCHEMA_NEWER


def test_a_commit_is_synchronised_fully(tmp_path: Path) -> None:
    engine = open_engine(tmp_path / "v.db")
    with engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
    engine.dispose()


def test_a_unit_that_fails_is_undone_and_takes_no_other_with_it(tmp_path: Path) -> None:
    store = SqlStore(tmp_path / "v.db", 0)

    def failing(transaction: Transaction) -> None:
        transaction.cursor.execute("INSERT INTO audit (record) VALUES ('half')")
        raise Rejection(ReasonCode.NODE_UNKNOWN, "test")

    async def scenario() -> list[object]:
        writes: list[Awaitable[None]] = [store.write_audit(_entry(f"whole-{i}")) for i in range(5)]
        writes.insert(2, store._writer.write(failing))
        return list(await asyncio.gather(*writes, return_exceptions=True))

    outcomes = asyncio.run(scenario())
    records = [json.loads(row.record)["kind"] for row in store.audit_after(0, 100)]
    store.close()
    assert [type(outcome) for outcome in outcomes].count(Rejection) == 1
    assert records == [f"whole-{i}" for i in range(5)]


@pytest.mark.parametrize(("changes", "kept"), [(False, 5), (True, 0)])
def test_a_unit_without_a_savepoint_is_still_all_or_nothing(tmp_path: Path, changes: bool, kept: int) -> None:
    store = SqlStore(tmp_path / "v.db", 0)

    def failing(transaction: Transaction) -> None:
        if changes:
            transaction.cursor.execute("INSERT INTO audit (record) VALUES ('half')")
        raise Rejection(ReasonCode.NODE_UNKNOWN, "test")

    async def scenario() -> list[object]:
        writes: list[Awaitable[None]] = [store.write_audit(_entry(f"whole-{i}")) for i in range(5)]
        writes.insert(2, store._writer.write(failing, savepoint=False))
        return list(await asyncio.gather(*writes, return_exceptions=True))

    outcomes = asyncio.run(scenario())
    records = store.audit_after(0, 100)
    store.close()
    assert isinstance(outcomes[2], Rejection)
    assert len(records) == outcomes.count(None) == kept


def test_concurrent_units_share_commits(tmp_path: Path) -> None:
    commits: list[None] = []
    store = SqlStore(tmp_path / "v.db", 0, lambda: commits.append(None))

    async def scenario() -> None:
        await asyncio.gather(*(store.write_audit(_entry()) for _ in range(200)))

    asyncio.run(scenario())
    assert len(store.audit_after(0, 1000)) == 200
    store.close()
    assert len(commits) < 20


def test_a_database_that_cannot_be_written_fails_every_caller(tmp_path: Path) -> None:
    store = SqlStore(tmp_path / "v.db", 0)

    async def scenario() -> list[object]:
        store._writer._transaction.cursor.execute("PRAGMA query_only = ON")
        writes = [store.write_audit(_entry()) for _ in range(3)]
        failed: list[object] = list(await asyncio.gather(*writes, return_exceptions=True))
        store._writer._transaction.cursor.execute("PRAGMA query_only = OFF")
        await store.write_audit(_entry("after"))
        return failed

    outcomes = asyncio.run(scenario())
    records = store.audit_after(0, 10)
    store.close()
    assert [getattr(outcome, "code", None) for outcome in outcomes] == [ReasonCode.STORE_UNAVAILABLE] * 3
    assert [json.loads(row.record)["kind"] for row in records] == ["after"]


class _NoRollback:
    """A cursor whose disk is gone: neither COMMIT nor ROLLBACK succeeds."""

    def __init__(self, cursor: sqlite3.Cursor) -> None:
        self._cursor = cursor
        self.broken = True

    def execute(self, statement: str, *values: Any) -> object:
        if self.broken and statement in ("COMMIT", "ROLLBACK"):
            raise sqlite3.OperationalError("disk I/O error")
        return self._cursor.execute(statement, *values)

    def __getattr__(self, name: str) -> object:
        return getattr(self._cursor, name)


def test_a_rollback_that_fails_leaves_no_caller_waiting(tmp_path: Path) -> None:
    store = SqlStore(tmp_path / "v.db", 0)
    cursor = store._writer._transaction.cursor = _NoRollback(store._writer._transaction.cursor)  # type: ignore[assignment] # - stands for one

    async def scenario() -> list[object]:
        writes = [store.write_audit(_entry()) for _ in range(3)]
        failed: list[object] = []
        for write in writes:
            failed += await asyncio.gather(write, return_exceptions=True)
        cursor.broken = False
        await asyncio.gather(store.write_audit(_entry("lost")), return_exceptions=True)
        await store.write_audit(_entry("after"))
        return failed

    outcomes = asyncio.run(asyncio.wait_for(scenario(), 20))
    records = [json.loads(row.record)["kind"] for row in store.audit_after(0, 10)]
    store.close()
    assert [getattr(outcome, "code", None) for outcome in outcomes] == [ReasonCode.STORE_UNAVAILABLE] * 3
    assert records == ["after"]


def test_too_many_waiting_writes_are_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("verifier.store.writer.MAX_WAITING", 4)
    engine = open_engine(tmp_path / "v.db")
    migrate(engine, 0)
    writer = GroupWriter(engine, lambda: None)

    async def scenario() -> list[object]:
        return list(await asyncio.gather(*(writer.write(lambda _: None) for _ in range(8)), return_exceptions=True))

    outcomes = asyncio.run(scenario())
    writer.close()
    engine.dispose()
    assert sum(isinstance(outcome, Unavailable) for outcome in outcomes) == 4


def _no_void(node: NodeRecord, _previous: int) -> SignedResult:
    raise AssertionError(node)


def test_an_ek_is_listed_under_one_name_only(tmp_path: Path) -> None:
    store = SqlStore(tmp_path / "v.db", 0)
    ek = InventoryEk("public-key", "11" * 32)
    first = InventoryEntry("node-1", "ml", "prod", (ek,))

    async def scenario() -> None:
        await store.add_inventory((first,), _no_void, _entry())
        await store.add_inventory((replace(first, node_name="node-2"),), _no_void, _entry())

    with pytest.raises(Rejection) as refused:
        asyncio.run(scenario())
    assert refused.value.code is ReasonCode.EK_CONFLICT
    assert store.inventory() == [first]
    store.close()


def test_what_nothing_can_refer_to_is_purged(tmp_path: Path) -> None:
    clock = fleet.SetClock()
    verifier = fleet.start(tmp_path / "v", clock)

    async def scenario() -> None:
        forged = fleet.node(1)
        await fleet.enrol(verifier, forged)
        challenge = await fleet.challenge(verifier, forged)
        await verifier.service.attest(fleet.encoded(fleet.evidence(forged, challenge)), "request-1")
        await verifier.store.purge(fleet.NOW + 10_000)
        assert verifier.store.find_nonce(hashlib.sha256(challenge.nonce).digest()) is None
        known = verifier.store.known_boot_log(forged.enrolled.node_id)
        assert known is not None and verifier.store.boot_log(known) is not None
        await verifier.store.forget(forged.enrolled.node_id, _void(verifier), _entry())
        await verifier.store.purge(fleet.NOW + 10_000)
        assert verifier.store.boot_log(known) is None

    asyncio.run(scenario())
    verifier.close()


def _void(verifier: Verifier) -> SignVoid:
    results = ResultMaker(verifier.settings, verifier.signer)
    return lambda node, previous: results.void(node, previous, ReasonCode.NODE_REMOVED, fleet.NOW * 1000)


_VICTIM = """
import asyncio, os, signal, sys
from pathlib import Path
from tests.verifier import fleet
import verifier.store.writer as writer
from verifier.server import build_verifier
from verifier.settings import load_settings

where = sys.argv[2]
if where == "before-commit":
    def dies(self):
        self._commits.get()
        os.kill(os.getpid(), signal.SIGKILL)
    writer.GroupWriter._commit_batches = dies
settings = load_settings(Path(sys.argv[1]))
verifier = build_verifier(settings, fleet.SetClock())

async def scenario():
    body = (Path(sys.argv[1]).parent / "bundle").read_bytes()
    await verifier.service.attest(body, "request-1")
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(scenario())
"""


@pytest.mark.parametrize("asked", [True, False], ids=["asked-for", "of-an-answer"])
@pytest.mark.parametrize(("where", "kept"), [("before-commit", False), ("after-answer", True)])
def test_a_process_that_is_killed_leaves_all_or_nothing(tmp_path: Path, where: str, kept: bool, asked: bool) -> None:
    clock = fleet.SetClock()
    verifier = fleet.start(tmp_path / "v", clock)
    forged = fleet.node(2)
    node_id = forged.enrolled.node_id

    async def before() -> tuple[bytes, bytes]:
        await fleet.enrol(verifier, forged)
        challenge = await fleet.challenge(verifier, forged)
        if not asked:
            answered = await verifier.service.attest(fleet.encoded(fleet.evidence(forged, challenge)), "request-0")
            challenge = fleet.issued(forged, json.loads(answered.body)["next_challenge"], fleet.NOW)
        return fleet.encoded(fleet.evidence(forged, challenge)), hashlib.sha256(challenge.nonce).digest()

    body, nonce = asyncio.run(before())
    sequence, rows = _sequence_and_rows(verifier.store, node_id)
    verifier.close()
    (tmp_path / "v" / "bundle").write_bytes(body)
    killed = subprocess.run(
        [sys.executable, "-c", _VICTIM, str(tmp_path / "v" / "verifier.yaml"), where],
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
        check=False,
        capture_output=True,
        timeout=60,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    store = SqlStore(tmp_path / "v" / "verifier.db", 0)
    live, state = store.find_next_nonce(node_id, nonce), store.find_nonce(nonce)
    used = store.was_used(node_id, nonce) or (state is not None and state.used)
    after, rows_after = _sequence_and_rows(store, node_id)
    store.close()
    assert used is kept
    assert (live is not None) is (not asked and not kept)
    assert (after > sequence) is kept
    assert rows_after == rows + kept


def _sequence_and_rows(store: SqlStore, node_id: str) -> tuple[int, int]:
    """The node's last sequence number, and how many verdicts were audited."""
    result = store.result(node_id)
    verdicts = [row for row in store.audit_after(0, 100) if json.loads(row.record)["kind"] == "verdict"]
    return 0 if result is None else result.sequence, len(verdicts)
