"""The long poll over HTTP: who may wait, what is answered, and what a waiting connection counts as."""

from __future__ import annotations

import asyncio
import json
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.forge.evidence import ForgedNode
from tests.verifier import fleet
from tests.verifier.http import Http, with_http
from verifier.api.connections import PENDING, SCOPE_KEY
from verifier.server import Verifier
from verifier.store.ports import NodeState
from verifier.wire.codes import ReasonCode
from verifier.wire.signed_request import RequestLabel


@dataclass
class _Poll:
    """One request as the server hands it to the application, and what was sent back."""

    verifier: Verifier
    body: bytes
    proofs: list[str | None] = field(default_factory=list)
    holds: int = 0
    started: asyncio.Event = field(default_factory=asyncio.Event)
    status: int = 0
    answer: bytes = b""

    def proved(self, by: str | None) -> None:
        self.proofs.append(by)

    def held(self) -> None:
        self.holds += 1

    async def run(self) -> None:
        scope: dict[str, Any] = {
            "type": "http",
            "http_version": "1.1",
            "method": "POST",
            "scheme": "https",
            "path": "/v1/attest-now",
            "raw_path": b"/v1/attest-now",
            "query_string": b"",
            "root_path": "",
            "headers": [(b"content-length", str(len(self.body)).encode())],
            "client": ("192.0.2.1", 1),
            "server": ("localhost", 8443),
            SCOPE_KEY: self,
        }
        sent = False

        async def receive() -> MutableMapping[str, Any]:
            nonlocal sent
            if sent:
                await asyncio.Event().wait()
            sent = True
            return {"type": "http.request", "body": self.body, "more_body": False}

        async def send(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                self.status = message["status"]
                self.started.set()
            else:
                self.answer += message.get("body", b"")

        await self.verifier.app(scope, receive, send)


def _signed(forged: ForgedNode, label: RequestLabel = RequestLabel.ATTEST_NOW) -> bytes:
    return fleet.signed(forged, fleet.NOW, label)


@pytest.mark.parametrize("state", ["admitted", "pending"])
def test_a_connection_is_a_nodes_while_its_request_is_held(tmp_path: Path, state: NodeState) -> None:
    async def scenario(http: Http) -> None:
        forged = fleet.node()
        await fleet.enrol(http.verifier, forged, state)
        poll = _Poll(http.verifier, _signed(forged))
        held = asyncio.ensure_future(poll.run())
        await asyncio.wait_for(poll.started.wait(), 5)
        by = PENDING if state == "pending" else forged.enrolled.node_id
        assert (poll.status, poll.answer, poll.proofs, poll.holds) == (200, b"", [by], 1)
        http.verifier.service.wanted.want(forged.enrolled.node_id)
        await asyncio.wait_for(held, 5)
        assert json.loads(poll.answer) == {"wanted": True}

    with_http(tmp_path, scenario)


def test_a_server_that_stops_lets_those_who_wait_go_and_wants_nothing(tmp_path: Path) -> None:
    async def scenario(http: Http) -> None:
        forged = fleet.node()
        await fleet.enrol(http.verifier, forged)
        poll = _Poll(http.verifier, _signed(forged))
        held = asyncio.ensure_future(poll.run())
        await asyncio.wait_for(poll.started.wait(), 5)
        # The headers go out before the wait begins.
        await asyncio.sleep(0.01)
        http.verifier.let_go()
        await asyncio.wait_for(held, 5)
        assert json.loads(poll.answer) == {"wanted": False}

    with_http(tmp_path, scenario)


@pytest.mark.parametrize(
    ("label", "revoked", "code"),
    [
        (RequestLabel.CHALLENGE, False, ReasonCode.REQUEST_SIGNATURE_INVALID),
        (RequestLabel.ATTEST_NOW, True, ReasonCode.NODE_REVOKED),
    ],
)
def test_who_may_not_wait_is_told_so_at_once_and_proves_nothing(
    tmp_path: Path, label: RequestLabel, revoked: bool, code: ReasonCode
) -> None:
    async def scenario(http: Http) -> None:
        forged = fleet.node()
        record = await fleet.enrol(http.verifier, forged)
        if revoked:
            await http.act(f"/v1/nodes/{record.node_name}/revoke")
        poll = _Poll(http.verifier, _signed(forged, label))
        await asyncio.wait_for(poll.run(), 5)
        assert json.loads(poll.answer)["code"] == code.value
        assert (poll.proofs, poll.holds) == ([], 0)

    with_http(tmp_path, scenario)


def test_a_request_to_wait_counts_once(tmp_path: Path) -> None:
    async def scenario(http: Http) -> None:
        forged = fleet.node()
        await fleet.enrol(http.verifier, forged)
        http.verifier.service.wanted.want(forged.enrolled.node_id)
        body = _signed(forged)
        assert (await http.call("POST", "/v1/attest-now", body)).json() == {"wanted": True}
        replayed = await http.call("POST", "/v1/attest-now", body)
        assert replayed.json()["code"] == ReasonCode.REQUEST_REPLAYED.value

    with_http(tmp_path, scenario)
