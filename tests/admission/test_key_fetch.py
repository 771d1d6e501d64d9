"""Fetching the verifier's keys from whoever answers in its place: it ends in time, and takes no more than it may."""

from __future__ import annotations

import gzip
import time
import tracemalloc
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.responses import Response

from admission import key_sets
from admission.key_sets import fetch_key_set
from admission.results import ALGORITHMS
from tests.admission.served import Certificate, make_certificate, served
from tests.edges.dripping import dripping
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Refusal


@pytest.fixture
def certificate(tmp_path: Path) -> Certificate:
    return make_certificate(tmp_path)


def _code(url: str, certificate: Certificate) -> ReasonCode:
    with pytest.raises(Refusal) as caught:
        fetch_key_set(f"{url}/jwks.json", certificate.certificate, ALGORITHMS)
    return caught.value.code


@pytest.mark.parametrize(
    ("first", "again"),
    [
        (b"HTTP/1.1 200 OK\r\nx: ", b"y"),
        (b"", b"HTTP/1.1 103 E\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9999\r\n\r\n", b" "),
    ],
)
def test_an_answer_that_never_ends_holds_nobody(
    certificate: Certificate, monkeypatch: pytest.MonkeyPatch, first: bytes, again: bytes
) -> None:
    monkeypatch.setattr(key_sets, "EXCHANGE_SECONDS", 0.5)
    began = time.monotonic()
    with dripping(certificate.certificate, certificate.key, first, again) as url:
        assert _code(url, certificate) is ReasonCode.VERIFIER_UNREACHABLE
        assert time.monotonic() - began < 5


def test_a_compressed_answer_is_not_unpacked(certificate: Certificate) -> None:
    app = FastAPI()
    packed = gzip.compress(bytes(64 * 1024 * 1024))
    answer = Response(packed, headers={"content-encoding": "gzip"})
    app.add_api_route("/jwks.json", lambda: answer)
    with served(app, certificate) as url:
        tracemalloc.start()
        try:
            assert _code(url, certificate) is ReasonCode.SETTING_INVALID
            assert tracemalloc.get_traced_memory()[1] < 32 * 1024 * 1024
        finally:
            tracemalloc.stop()
