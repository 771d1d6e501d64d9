"""Open files: a server holds no more connections than its process may hold."""

from __future__ import annotations

import resource

import pytest

from edges.open_files import SPARE_FILES, fit_to_files
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence


def test_no_more_connections_are_taken_than_there_are_files(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [(1024, 4096)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: limits.append(new))
    assert fit_to_files(200) == 200 and len(limits) == 1
    assert fit_to_files(12_000) == 4096 - SPARE_FILES
    assert limits[-1] == (4096, 4096)
    limits.append((600, 600))
    with pytest.raises(MalformedEvidence) as refused:
        fit_to_files(12_000)
    assert refused.value.code is ReasonCode.SETTING_INVALID
    limits.append((1024, resource.RLIM_INFINITY))
    assert fit_to_files(12_000) == 12_000
