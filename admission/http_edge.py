"""What webhook and broker share at their HTTP edge: bounded bodies, typed problems, the reload task."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

import structlog
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.requests import ClientDisconnect

from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure, MalformedEvidence, Refusal, Unavailable

BODY_TIMEOUT_SECONDS = 5.0
"""Attack: a body that trickles in holds a connection; the API server sends its own within milliseconds."""


MAX_BODIES_BYTES = 64 * 1024 * 1024
"""Attack: many large bodies at once. An API server has a few reviews of some kilobytes in flight."""


class BodyBudget:
    """How many bytes of bodies may be in flight at once, in one process."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes, self.held_bytes = limit_bytes, 0

    @contextmanager
    def share(self) -> Iterator[BodyShare]:
        """One body's share, given back at the end of the block."""
        share = BodyShare(self)
        try:
            yield share
        finally:
            share.give_back()


class BodyShare:
    """What one body holds of the budget."""

    def __init__(self, budget: BodyBudget) -> None:
        self._budget, self._held_bytes = budget, 0

    def hold(self, size_bytes: int) -> None:
        """At least `size_bytes` are held. Raises Unavailable `rate-limited`."""
        more = max(0, size_bytes - self._held_bytes)
        budget = self._budget
        if budget.held_bytes + more > budget.limit_bytes:
            raise Unavailable(ReasonCode.RATE_LIMITED, "bodies", "too many at once", f"{budget.limit_bytes} bytes")
        budget.held_bytes += more
        self._held_bytes += more

    def give_back(self) -> None:
        self._budget.held_bytes -= self._held_bytes
        self._held_bytes = 0


_BUDGET = BodyBudget(MAX_BODIES_BYTES)


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The request's body.

    Raises MalformedEvidence `body-too-large` (a declared size is believed before a byte is read); Unavailable
    `rate-limited` when the body is slow or its client leaves, or when all bodies in flight together would be too large.
    """
    declared = request.headers.get("content-length", "")
    # httptools has refused what is no number; a body in chunks declares nothing.
    size = int(declared) if declared.isascii() and declared.isdigit() else 0
    if size > max_bytes:
        raise MalformedEvidence(ReasonCode.BODY_TOO_LARGE, "body", declared[:20], f"at most {max_bytes} bytes")
    parts: list[bytes] = []
    with _BUDGET.share() as share:
        share.hold(size)
        try:
            async with asyncio.timeout(BODY_TIMEOUT_SECONDS):
                received = 0
                async for part in request.stream():
                    received += len(part)
                    if received > max_bytes:
                        raise MalformedEvidence(ReasonCode.BODY_TOO_LARGE, "body", "more", f"at most {max_bytes} bytes")
                    share.hold(received)
                    parts.append(part)
        except TimeoutError as error:
            raise Unavailable(ReasonCode.RATE_LIMITED, "body", f"slower than {BODY_TIMEOUT_SECONDS} s") from error
        except ClientDisconnect as error:
            # Attack: a page of traceback in the log, and a fault of ours among the figures, for each one that hangs up.
            raise Unavailable(ReasonCode.RATE_LIMITED, "body", "the client left in the middle of it") from error
        return b"".join(parts)


def problem(status: int, failures: tuple[Failure, ...], request_id: str) -> Response:
    """RFC 9457 problem details for `failures`, at least one."""
    first = failures[0]
    return JSONResponse(
        {
            "type": f"https://nodewarden.dev/reasons/{first.code.value}",
            "title": first.code.value,
            "status": status,
            "code": first.code.value,
            "detail": first.line(),
            "reasons": [failure.as_json() for failure in failures],
            "request_id": request_id,
        },
        status_code=status,
        media_type="application/problem+json",
        headers={"X-Request-Id": request_id},
    )


def status_of(refusal: Refusal) -> int:
    """The HTTP status for `refusal`: 413 or 400 without form, 403 refused, 503 when asking again may help."""
    if isinstance(refusal, Unavailable):
        return 503
    if isinstance(refusal, MalformedEvidence):
        return 413 if refusal.code is ReasonCode.BODY_TOO_LARGE else 400
    return 403


def internal_error(request_id: str) -> Response:
    """The answer when we failed: nothing was granted, and nothing of the fault is told."""
    return problem(500, (Failure(ReasonCode.INTERNAL_ERROR, "request"),), request_id)


def service_app(
    reload: Callable[[], None], every_seconds: int, unready: Callable[[], Failure | None] = lambda: None
) -> FastAPI:
    """An application that calls `reload` in a thread all the time that it serves, and has `/healthz` and `/readyz`."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        task = asyncio.create_task(_reloading(reload, every_seconds))
        yield
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    app = FastAPI(title="Nodewarden", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        # Alive either way: a restart would not bring back what cannot be read.
        failure = unready()
        return {"status": "ok"} if failure is None else {"status": "stale", "code": failure.code.value}

    @app.get("/readyz")
    async def readyz() -> Response:
        failure = unready()
        return JSONResponse({"status": "ok"}) if failure is None else problem(503, (failure,), "readyz")

    return app


async def _reloading(reload: Callable[[], None], every_seconds: int) -> None:
    while True:
        await asyncio.sleep(every_seconds)
        try:
            await asyncio.to_thread(reload)
        except Exception as error:  # noqa: BLE001 - the state before stays in force and ages; the loop must go on
            structlog.get_logger().error("reload_failed", error=type(error).__name__)
