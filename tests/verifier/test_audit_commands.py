"""`nodewarden audit`: it proves up to the checkpoint by default, and makes nothing."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.verifier import fleet
from verifier.audit_commands import audit_app
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Rejection, Unavailable

RUN = CliRunner()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The directory of a stopped verifier with three chained rounds."""
    verifier = fleet.start(tmp_path / "v", fleet.SetClock())

    async def rounds() -> None:
        for which in range(3):
            await fleet.enrol(verifier, fleet.node(which))
            await verifier.chain_audit()

    asyncio.run(rounds())
    verifier.close()
    return tmp_path / "v"


def _run(directory: Path, *arguments: str) -> Result:
    command, *rest = arguments
    return RUN.invoke(audit_app, [command, "--config", str(directory / "verifier.yaml"), *rest])


def test_a_whole_log_is_proved_up_to_the_checkpoint_of_the_settings(directory: Path) -> None:
    proof = json.loads(_run(directory, "verify", "--json").output)
    assert (proof["rows"], proof["unanchored"], proof["checkpoint_rows"]) == (6, 0, 6)
    assert len(_run(directory, "export").output.splitlines()) == 6


def test_a_log_cut_off_at_a_head_is_seen_without_naming_a_checkpoint(directory: Path) -> None:
    with sqlite3.connect(directory / "verifier.db") as connection:
        connection.execute("DELETE FROM audit WHERE id > 2")
        connection.execute("DELETE FROM audit_heads WHERE last_id > 2")
    connection.close()
    refused = _run(directory, "verify").exception
    assert isinstance(refused, Rejection) and refused.code is ReasonCode.AUDIT_CHAIN_BROKEN


def test_a_missing_database_is_an_error_and_stays_missing(directory: Path) -> None:
    for file in directory.glob("verifier.db*"):
        file.unlink()
    for command in ("verify", "export"):
        refused = _run(directory, command).exception
        assert isinstance(refused, Unavailable) and refused.code is ReasonCode.STORE_UNAVAILABLE
    assert not list(directory.glob("verifier.db*"))


@pytest.mark.parametrize("content", [b"", b"no database at all" * 100])
def test_a_file_that_is_no_database_of_ours_is_an_error_and_stays_as_it_is(directory: Path, content: bytes) -> None:
    for file in directory.glob("verifier.db*"):
        file.unlink()
    (directory / "verifier.db").write_bytes(content)
    refused = _run(directory, "verify").exception
    assert isinstance(refused, Unavailable) and refused.code is ReasonCode.STORE_UNAVAILABLE
    assert (directory / "verifier.db").read_bytes() == content


def test_a_missing_signing_key_is_an_error_and_none_is_made(directory: Path) -> None:
    (directory / "keys").rename(directory / "keys.away")
    refused = _run(directory, "verify").exception
    assert isinstance(refused, Unavailable) and refused.code is ReasonCode.FILE_UNREADABLE
    assert not (directory / "keys").exists()


def test_a_missing_checkpoint_file_is_an_error(directory: Path) -> None:
    (directory / "audit-checkpoints.jsonl").unlink()
    refused = _run(directory, "verify").exception
    assert isinstance(refused, Unavailable) and refused.code is ReasonCode.FILE_UNREADABLE
