"""The application: routes, and what is answered where there is none."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from verifier.api.endpoint import Guards, request_id_of
from verifier.api.problems import CONTENT_TYPE_PROBLEM, problem_body, status_of
from verifier.api.routes import Parts, build_routes
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Rejection

Lifespan = Callable[[], AbstractAsyncContextManager[None]]


def build_app(parts: Parts, guards: Guards, lifespan: Lifespan) -> FastAPI:
    """The verifier's application. It publishes no schema and no documentation pages: they would be open routes."""

    @asynccontextmanager
    async def run(_app: FastAPI) -> AsyncIterator[None]:
        async with lifespan():
            yield

    return FastAPI(
        title="Nodewarden verifier",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        # Its hooks cost a tenth of an empty request even when nobody listens.
        telemetry={"tracing": False, "metrics": False, "logs": False},
        routes=list(build_routes(parts, guards)),
        exception_handlers={HTTPException: _no_such_route},
        lifespan=run,
    )


async def _no_such_route(request: Request, _error: Exception) -> Response:
    refusal = Rejection(ReasonCode.ROUTE_UNKNOWN, "route", f"{request.method} {request.url.path}")
    request_id = request_id_of(dict(request.scope["headers"]))
    status = status_of(refusal)
    headers = {"x-request-id": request_id}
    return Response(problem_body(refusal.failure, status, request_id), status, headers, CONTENT_TYPE_PROBLEM)
