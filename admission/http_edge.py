"""What webhook and broker share at their HTTP edge: bounded bodies, typed problems, the reload task."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import structlog
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure, MalformedEvidence, Refusal, Unavailable

BODY_TIMEOUT_SECONDS = 5.0
"""Attack: a body that trickles in holds a connection; the API server sends its own within milliseconds."""


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The request's body. Raises `body-too-large` before more is held, Unavailable `rate-limited` when it is slow."""
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > max_bytes:
                    raise MalformedEvidence(ReasonCode.BODY_TOO_LARGE, "body", "more", f"at most {max_bytes} bytes")
    except TimeoutError as error:
        raise Unavailable(ReasonCode.RATE_LIMITED, "body", f"slower than {BODY_TIMEOUT_SECONDS} s") from error
    return bytes(body)


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
        return {"status": "ok"}

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
