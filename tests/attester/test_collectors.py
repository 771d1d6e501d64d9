"""Logs whose size says nothing, that grow, or that are not there."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path

import pytest

from attester.collectors.boot_log import collect_boot_log
from attester.collectors.host_facts import collect_host_facts
from attester.collectors.ima_log import collect_ima_log
from attester.collectors.node_token import collect_node_token, read_token
from attester.collectors.securityfs import read_to_end
from verifier.evidence.host_facts import parse_host_facts
from verifier.wire.bundle import MAX_BOOT_LOG_BYTES, KnownBody
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Rejection, Unavailable


def test_a_file_of_reported_size_zero_is_read_to_its_end() -> None:
    # procfs reports size 0 as securityfs does.
    path = Path("/proc/self/status")
    assert path.stat().st_size == 0
    assert b"Pid:" in read_to_end(path, 1_000_000)


def test_a_log_that_grows_while_it_is_read_is_read_to_its_last_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"a" * 10)
    growth = [b"b" * 10, b"c" * 10]
    real_read = os.read

    def read_and_grow(descriptor: int, size: int) -> bytes:
        chunk = real_read(descriptor, size)
        if chunk and growth:
            with path.open("ab") as file:
                file.write(growth.pop(0))
        return chunk

    monkeypatch.setattr(os, "read", read_and_grow)
    assert read_to_end(path, 100) == b"a" * 10 + b"b" * 10 + b"c" * 10


def test_a_log_that_grows_without_end_is_refused_at_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"a")
    real_read = os.read

    def read_and_grow(descriptor: int, size: int) -> bytes:
        with path.open("ab") as file:
            file.write(b"b" * 1000)
        return real_read(descriptor, size)

    monkeypatch.setattr(os, "read", read_and_grow)
    with pytest.raises(Unavailable) as failure:
        read_to_end(path, 50_000)
    assert failure.value.code is ReasonCode.LOG_TOO_LARGE


@pytest.mark.parametrize("size", [MAX_BOOT_LOG_BYTES, MAX_BOOT_LOG_BYTES + 1])
def test_a_boot_log_may_be_as_long_as_the_limit_and_no_longer(tmp_path: Path, size: int) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * size)
    if size == MAX_BOOT_LOG_BYTES:
        assert collect_boot_log(path, None).log == b"x" * size
        return
    with pytest.raises(Unavailable) as failure:
        collect_boot_log(path, None)
    assert failure.value.code is ReasonCode.LOG_TOO_LARGE


def test_an_absent_an_empty_and_an_unreadable_log_are_never_an_empty_success(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    for path in (tmp_path / "absent", empty, tmp_path, tmp_path / "absent" / "below"):
        for collect in (lambda p: collect_boot_log(p, None), collect_ima_log, collect_host_facts):
            with pytest.raises(Unavailable) as failure:
                collect(path)
            assert failure.value.code is ReasonCode.LOG_UNREADABLE


def test_a_pipe_in_the_place_of_a_log_does_not_make_us_wait(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    finished = threading.Event()
    codes: list[ReasonCode] = []

    def attempt() -> None:
        try:
            read_to_end(path, 10)
        except Unavailable as failure:
            codes.append(failure.code)
        finished.set()

    threading.Thread(target=attempt, daemon=True).start()
    assert finished.wait(5)
    assert codes == [ReasonCode.LOG_UNREADABLE]


def test_a_log_is_named_by_digest_only_when_the_verifier_knows_exactly_this_one(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"the log")
    digest = hashlib.sha256(b"the log").digest()
    assert collect_boot_log(path, digest.hex()).log == KnownBody(digest, 7)
    assert collect_boot_log(path, hashlib.sha256(b"another").hexdigest()).log == b"the log"
    assert collect_boot_log(path, None).log == b"the log"


def test_host_facts_are_what_the_verifier_parses_and_name_this_boot() -> None:
    facts = parse_host_facts(collect_host_facts().body)
    assert facts.claimed_linux_boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert facts.claimed_kernel_release == os.uname().release
    assert facts.claimed_hostname == os.uname().nodename


def test_a_node_token_is_read_anew_each_time_without_its_newline(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("first\n")
    assert collect_node_token(path).token == b"first"
    path.write_text("second")
    assert read_token(path) == b"second"


def test_a_missing_node_token_is_node_token_missing(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    for path in (None, tmp_path / "absent", empty):
        with pytest.raises(Rejection) as refusal:
            read_token(path)
        assert refusal.value.code is ReasonCode.NODE_TOKEN_MISSING
