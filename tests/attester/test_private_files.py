"""Who may read and write what the attester keeps."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest

from attester import tpm_lock
from attester.keys import AkBlob
from attester.state import Enrolment, read_enrolment
from attester.templates import EkType
from attester.tpm_lock import exclusive
from edges.private_files import read_own, replace_private, require_private_directory
from tests.attester.machine import write_enrolment
from verifier.wire.bundle import NodeId
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Rejection, Unavailable

ENROLMENT = Enrolment(NodeId("ab" * 32), "node-a", "https://v.example/", AkBlob(EkType.P_384, b"\1\2", b"\3\4"))


def test_an_enrolment_is_read_back_from_a_file_of_mode_0600_in_a_directory_of_mode_0700(tmp_path: Path) -> None:
    state = tmp_path / "state"
    write_enrolment(state, ENROLMENT)
    assert read_enrolment(state) == ENROLMENT
    assert state.stat().st_mode & 0o7777 == 0o700
    assert [path.name for path in state.iterdir()] == ["enrolment.json"]
    assert (state / "enrolment.json").stat().st_mode & 0o7777 == 0o600


def test_the_process_umask_does_not_open_the_file(tmp_path: Path) -> None:
    previous = os.umask(0)
    try:
        write_enrolment(tmp_path / "state", ENROLMENT)
    finally:
        os.umask(previous)
    assert (tmp_path / "state/enrolment.json").stat().st_mode & 0o7777 == 0o600
    assert (tmp_path / "state").stat().st_mode & 0o7777 == 0o700


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o620, 0o666])
def test_an_enrolment_that_others_may_read_or_write_is_refused(tmp_path: Path, mode: int) -> None:
    state = tmp_path / "state"
    write_enrolment(state, ENROLMENT)
    (state / "enrolment.json").chmod(mode)
    with pytest.raises(Rejection) as refusal:
        read_enrolment(state)
    assert refusal.value.code is ReasonCode.FILE_MODE_UNSAFE


@pytest.mark.parametrize("mode", [0o701, 0o710, 0o755, 0o777])
def test_a_state_directory_that_others_may_enter_is_refused(tmp_path: Path, mode: int) -> None:
    state = tmp_path / "state"
    write_enrolment(state, ENROLMENT)
    state.chmod(mode)
    for attempt in (lambda: read_enrolment(state), lambda: write_enrolment(state, ENROLMENT)):
        with pytest.raises(Rejection) as refusal:
            attempt()
        assert refusal.value.code is ReasonCode.FILE_MODE_UNSAFE


def test_a_link_in_the_place_of_directory_or_file_is_not_followed(tmp_path: Path) -> None:
    real = tmp_path / "real"
    write_enrolment(real, ENROLMENT)
    (tmp_path / "linked").symlink_to(real)
    with pytest.raises(Rejection) as refusal:
        require_private_directory(tmp_path / "linked")
    assert refusal.value.code is ReasonCode.FILE_MODE_UNSAFE
    (real / "file").symlink_to(real / "enrolment.json")
    with pytest.raises(Unavailable) as failure:
        read_own(real / "file", 10_000)
    assert failure.value.code is ReasonCode.FILE_UNREADABLE


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"version":2}', b'{"version":1}', b"\xff"])
def test_a_damaged_enrolment_is_not_enrolled(tmp_path: Path, content: bytes) -> None:
    state = tmp_path / "state"
    require_private_directory(state)
    replace_private(state / "enrolment.json", content)
    with pytest.raises(Rejection) as refusal:
        read_enrolment(state)
    assert refusal.value.code is ReasonCode.NOT_ENROLLED


def test_no_enrolment_is_not_enrolled(tmp_path: Path) -> None:
    with pytest.raises(Rejection) as refusal:
        read_enrolment(tmp_path / "state")
    assert refusal.value.code is ReasonCode.NOT_ENROLLED


@pytest.mark.parametrize("directory", [True, False])
def test_a_lock_that_cannot_be_opened_is_a_refusal(tmp_path: Path, directory: bool) -> None:
    require_private_directory(tmp_path / "runtime")
    lock = tmp_path / "runtime/lock"
    if directory:
        lock.mkdir()
    else:
        lock.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Unavailable) as failure, exclusive(tmp_path / "runtime"):
        pass
    assert failure.value.code is ReasonCode.FILE_UNREADABLE
    assert not (tmp_path / "elsewhere").exists()


def _hold(directory: Path, held: object, release: object) -> None:
    with exclusive(directory):
        held.set()  # type: ignore[attr-defined] # a multiprocessing event, whose class is made at run time
        release.wait(20)  # type: ignore[attr-defined] # likewise


def test_two_processes_are_not_at_the_tpm_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = multiprocessing.get_context("spawn")
    held, release = context.Event(), context.Event()
    directory = tmp_path / "runtime"
    other = context.Process(target=_hold, args=(directory, held, release))
    other.start()
    try:
        assert held.wait(20)
        monkeypatch.setattr(tpm_lock, "LOCK_SECONDS", 0.2)
        with pytest.raises(Unavailable) as failure, exclusive(directory):
            pass
        assert failure.value.code is ReasonCode.TPM_UNAVAILABLE
    finally:
        release.set()
        other.join(20)
    with exclusive(directory):
        pass
