"""A client that hangs up in the middle of its body: no fault of ours, and no page in the log."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from admission.direct import DirectApp, Route
from admission.http_edge import service_app
from tests.admission.served import make_certificate, served, trusting
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure


def test_a_client_that_leaves_within_its_body_is_turned_away_as_any_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    certificate, refused = make_certificate(tmp_path), list[Failure | None]()
    routes = {"/validate": Route(lambda body: body, refused.append)}
    with served(DirectApp(service_app(lambda: None, 60), routes, 1000), certificate) as address:
        port = int(address.rpartition(":")[2])
        with (
            socket.create_connection(("127.0.0.1", port), timeout=5) as plain,
            trusting(certificate).wrap_socket(plain, server_hostname="127.0.0.1") as secure,
        ):
            secure.sendall(b"POST /validate HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
            time.sleep(0.2)
        deadline = time.monotonic() + 3
        while not refused and time.monotonic() < deadline:
            time.sleep(0.01)
    assert [failure and failure.code for failure in refused] == [ReasonCode.RATE_LIMITED]
    assert not [record for record in caplog.records if record.exc_info]
