"""Turns at the TPM: one process waits no longer because another has many threads that want it."""

from __future__ import annotations

import multiprocessing
import threading
import time
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from attester import tpm_lock
from attester.tpm_lock import exclusive
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Unavailable

THREADS, HOLD_SECONDS, TIMES = 40, 0.05, 5


def _take_turns(directory: Path, started: Any, waits: Any) -> None:
    started.wait(20)
    for _ in range(TIMES):
        began = time.monotonic()
        with exclusive(directory):
            waits.put(time.monotonic() - began)
        time.sleep(2 * HOLD_SECONDS)


def test_a_daemon_waits_for_a_turn_or_two_where_forty_mounts_wait_too(tmp_path: Path) -> None:
    directory, over = tmp_path / "runtime", threading.Event()
    context = multiprocessing.get_context("spawn")
    started, waits = context.Event(), context.Queue()

    def mount() -> None:
        while not over.is_set():
            with exclusive(directory):
                time.sleep(HOLD_SECONDS)

    daemon = context.Process(target=_take_turns, args=(directory, started, waits))
    daemon.start()
    mounts = [threading.Thread(target=mount) for _ in range(THREADS)]
    for thread in mounts:
        thread.start()
    try:
        started.set()
        found = [waits.get(timeout=60) for _ in range(TIMES)]
    finally:
        over.set()
        for thread in mounts:
            thread.join(20)
        daemon.join(20)
    assert sum(found) < TIMES * 10 * HOLD_SECONDS


def test_a_thread_too_waits_no_longer_than_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tpm_lock, "LOCK_SECONDS", 0.1)
    refused: Queue[ReasonCode] = Queue()

    def other() -> None:
        with pytest.raises(Unavailable) as failure, exclusive(tmp_path / "runtime"):
            pass
        refused.put(failure.value.code)

    with exclusive(tmp_path / "runtime"):
        thread = threading.Thread(target=other)
        thread.start()
        assert refused.get(timeout=20) is ReasonCode.TPM_UNAVAILABLE
    thread.join(20)
    with exclusive(tmp_path / "runtime"):
        pass
