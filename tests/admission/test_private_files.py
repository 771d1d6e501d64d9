"""Files that admission reads or makes: regular, bounded, and with a typed error for every odd name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from admission.durable_state import DurableSequences, DurableState
from admission.key_sets import fetch_key_set, load_key_set
from admission.results import ALGORITHMS
from tests.admission.served import make_certificate
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Refusal, Unavailable

ODD_NAMES = ["x\0y", "\ud800", "x" * 300, "text/below"]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_state_under_a_name_that_no_file_can_have_is_unreadable(tmp_path: Path, name: str) -> None:
    (tmp_path / "text").write_text("x")
    path = tmp_path / name
    with pytest.raises(Refusal) as caught:
        DurableState(path)
    assert caught.value.code is ReasonCode.FILE_UNREADABLE


@pytest.mark.parametrize("content", [b"\0" * 4096, b"junk" * 1000])
def test_a_state_file_that_is_no_database_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "state"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(Refusal) as caught:
        DurableState(path)
    assert caught.value.code is ReasonCode.STORE_UNAVAILABLE


def test_a_state_in_a_folder_that_is_not_there_is_unreadable(tmp_path: Path) -> None:
    with pytest.raises(Refusal) as caught:
        DurableState(tmp_path / "absent/state")
    assert caught.value.code is ReasonCode.FILE_UNREADABLE


def test_a_transaction_that_fails_leaves_the_state_usable(tmp_path: Path) -> None:
    state = DurableState(tmp_path / "state")
    state._connection.execute("CREATE TABLE parent (id INTEGER PRIMARY KEY)")
    state._connection.execute("CREATE TABLE child (id INTEGER REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED)")
    state._connection.execute("PRAGMA foreign_keys=ON")
    # A deferred constraint fails in COMMIT itself, and leaves the transaction open.
    with pytest.raises(Unavailable) as caught, state.transaction() as connection:
        connection.execute("INSERT INTO child VALUES (1)")
    assert caught.value.code is ReasonCode.STORE_UNAVAILABLE
    with pytest.raises(Unavailable):
        DurableSequences(state).remember(("node",), 2**63, "digest")
    DurableSequences(state).remember(("node",), 7, "digest")
    assert DurableSequences(state).highest("node") == (7, "digest")
    state.close()


def test_a_key_set_file_is_bounded_and_regular(tmp_path: Path) -> None:
    (tmp_path / "large").write_text(" " * 300_000)
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for name in ("large", "binary"):
        with pytest.raises(Refusal) as caught:
            load_key_set(tmp_path / name, ALGORITHMS)
        assert caught.value.code is ReasonCode.SETTING_INVALID
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Refusal) as caught:
        load_key_set(tmp_path / "pipe", ALGORITHMS)
    assert caught.value.code is ReasonCode.FILE_UNREADABLE


@pytest.mark.parametrize("host", ["[", "xn--\ud800", "a" * 70 + ".example", "exa mple", "host:port", "\u2603" * 64])
def test_an_address_that_is_none_is_refused_as_a_setting(tmp_path: Path, host: str) -> None:
    ca = make_certificate(tmp_path).certificate
    with pytest.raises(Refusal) as caught:
        fetch_key_set(f"https://{host}/jwks", ca, ALGORITHMS)
    assert caught.value.code in {ReasonCode.SETTING_INVALID, ReasonCode.VERIFIER_UNREACHABLE}
