"""The application over ASGI, without sockets: requests as each role, and as nobody."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx

from tests.verifier import fleet
from verifier.roles import Role
from verifier.server import Verifier


class Http:
    """Calls one verifier's application."""

    def __init__(self, verifier: Verifier, directory: Path) -> None:
        self.verifier = verifier
        transport = httpx.ASGITransport(app=verifier.app, client=("192.0.2.1", 1))
        self._client = httpx.AsyncClient(transport=transport, base_url="https://localhost")
        self._tokens = {role: (directory / "tokens" / f"{role.value}.token").read_text().strip() for role in Role}

    async def call(
        self,
        method: str,
        path: str,
        body: bytes | dict[str, Any] | None = None,
        role: Role | None = None,
        **headers: str,
    ) -> httpx.Response:
        """The answer; header names with underscores."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if role is not None:
            sent["authorization"] = f"Bearer {self._tokens[role]}"
        content = json.dumps(body).encode() if isinstance(body, dict) else body
        return await self._client.request(method, path, content=content, headers=sent)

    async def get(self, path: str, role: Role | None = Role.VIEWER) -> dict[str, Any]:
        """The JSON of a successful GET."""
        answer = await self.call("GET", path, role=role)
        assert answer.status_code == 200, answer.text
        fields: dict[str, Any] = answer.json()
        return fields

    async def act(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """The JSON of a successful POST by an operator."""
        answer = await self.call("POST", path, body, Role.OPERATOR)
        assert answer.status_code == 200, answer.text
        fields: dict[str, Any] = answer.json()
        return fields

    async def attest(self, forged: Any) -> dict[str, Any]:
        """A challenge and its evidence, over HTTP."""
        now = self.verifier.clock.now_ms() // 1000
        answer = await self.call("POST", "/v1/challenges", fleet.signed(forged, now))
        assert answer.status_code == 200, answer.text
        challenge = fleet.issued(forged, answer.json(), now)
        answer = await self.call("POST", "/v1/evidence", fleet.encoded(fleet.evidence(forged, challenge)))
        fields: dict[str, Any] = answer.json()
        return fields


def with_http(
    directory: Path, scenario: Callable[[Http], Awaitable[None]], clock: fleet.SetClock | None = None, **changes: Any
) -> None:
    """Runs `scenario` against a new verifier in `directory`."""
    verifier = fleet.start(directory, clock or fleet.SetClock(), **changes)

    async def run() -> None:
        await scenario(Http(verifier, directory))

    try:
        asyncio.run(run())
    finally:
        verifier.close()
