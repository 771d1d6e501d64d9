"""The verifier's stream of results without the rest of it: its own streaming code over TLS, and results of our choice.

What nodes prove is tested where the verifier is; here it only matters what follows from its word.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.admission.world import Signer, a_result
from tests.e2e.authority import Authority
from tests.e2e.programs import free_port, wait_until
from verifier.api.stream import Commits, result_events
from verifier.store.ports import Store, StoredResult
from verifier.wire.result import AttestationResult, Submodule, Verdict

TOKEN = "machine-token-of-the-tests"
RESULT_SECONDS = 300


class _Cut(Exception):
    """The verifier goes away."""


class _Commits(Commits):
    """Commits of a verifier that can be told to go away, so that its streams end in good order."""

    cut = False

    async def wait(self, seconds: float) -> None:
        if not self.cut:
            await super().wait(seconds)
        if self.cut:
            raise _Cut


async def _until_cut(events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    with suppress(_Cut):
        async for event in events:
            yield event


class VerifierStream:
    """Signed results by node name, newest last, as a verifier's store would page them out."""

    def __init__(self, folder: Path, authority: Authority) -> None:
        self.signer = Signer()
        self.port = free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        self.ca = authority.ca
        self._serving = authority.server("verifier")
        self._results: dict[str, StoredResult] = {}
        self._event = 0
        self._sequence = 0
        self._commits = _Commits()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self.token_file = folder / "verifier-token"
        self.token_file.write_text(TOKEN)
        self.token_file.chmod(0o600)

    def results_after(self, event: int, limit: int) -> list[StoredResult]:
        return sorted((r for r in self._results.values() if r.event > event), key=lambda r: r.event)[:limit]

    def last_event(self) -> int:
        return self._event

    def publish(self, node: dict[str, Any], verdict: Verdict = Verdict.AFFIRMING, **changes: Any) -> AttestationResult:
        """A result for the Node object `node`, signed and sent."""
        now = int(time.time())  # noqa: TID251 - the API server and the controller live in real time
        self._sequence = max(self._sequence + 1, now * 1000)
        name = node["metadata"]["name"]
        result = a_result(
            issued_at=now,
            expires_at=now + RESULT_SECONDS,
            sequence=self._sequence,
            verdict=verdict,
            submodules={"tpm": Submodule(verdict, {"instance-identity": 2 if verdict is Verdict.AFFIRMING else 96})},
            node_id=hashlib.sha256(name.encode()).hexdigest(),
            node_name=name,
            kubernetes_node_uid=node["metadata"]["uid"],
            linux_boot_id=node["status"].get("nodeInfo", {}).get("bootID") or None,
        )
        result = replace(result, **changes)
        self._event += 1
        token = self.signer.result(result)
        self._results[name] = StoredResult(
            node_id=result.node_id,
            node_name=name,
            sequence=result.sequence,
            event=self._event,
            verdict=result.verdict.value,
            issued_at=result.issued_at,
            expires_at=result.expires_at,
            token=token,
            explanation="[]",
            kubernetes_node_uid=result.kubernetes_node_uid,
        )
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._commits.committed)
        return result

    def forget(self) -> None:
        """No node ever had a result."""
        self._results.clear()

    def jwks_file(self, folder: Path) -> Path:
        path = folder / "results-jwks.json"
        path.write_text(json.dumps(self.signer.jwks()))
        return path

    def start(self) -> None:
        app = Starlette(routes=[Route("/v1/results", self._stream)])
        config = uvicorn.Config(
            app,
            port=self.port,
            lifespan="off",
            ssl_certfile=str(self._serving.certificate),
            ssl_keyfile=str(self._serving.key),
            log_config=None,
            timeout_graceful_shutdown=5,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        wait_until("the stream is served", lambda: self._server is not None and self._server.started, 20)

    def stop(self) -> None:
        """Connections break and new ones are refused, until `start`."""
        if self._server is not None and self._thread is not None:
            self._commits.cut = True
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._commits.committed)
            self._server.should_exit = True
            self._thread.join(15)
            self._server = self._loop = None
            self._commits = _Commits()

    async def _stream(self, request: Request) -> Response:
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return JSONResponse({}, status_code=401)
        self._loop = asyncio.get_running_loop()
        after = int(request.headers.get("last-event-id", "0"))
        events = result_events(cast("Store", self), self._commits, after)
        return StreamingResponse(_until_cut(events), media_type="text/event-stream")


@contextmanager
def verifier_stream(folder: Path, authority: Authority) -> Iterator[VerifierStream]:
    """A stream that is served while the block runs."""
    stream = VerifierStream(folder, authority)
    stream.start()
    try:
        yield stream
    finally:
        stream.stop()
