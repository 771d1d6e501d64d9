"""The secret broker's HTTP edge: one route, one decision, every answer logged without content or token."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import structlog
from fastapi import FastAPI, Request
from fastapi.responses import Response

from admission.broker_metrics import BrokerMeter, Outcome
from admission.clock import Clock
from admission.cluster_view import PodIdentity
from admission.events import reasons_of, request_id
from admission.http_edge import internal_error, problem, read_body, service_app, status_of
from admission.release import Released, ReleaseDenied, ReleaseService
from verifier.wire.failures import Failure, Refusal, Unavailable
from verifier.wire.messages import decode_message
from verifier.wire.release import ReleaseEnvelope

MAX_ENVELOPE_BYTES = 64 * 1024


def broker_app(
    service: ReleaseService,
    reload: Callable[[], None],
    reload_seconds: int,
    clock: Clock,
    *,
    denied: Callable[[PodIdentity, tuple[Failure, ...]], None] = lambda _, __: None,
    unready: Callable[[], Failure | None] = lambda: None,
    meter: BrokerMeter | None = None,
) -> FastAPI:
    """`POST /v1/secrets/release` over `service`. `denied` hears of pods that were denied, and must not block."""
    app = service_app(reload, reload_seconds, unready)
    counted = BrokerMeter() if meter is None else meter

    @app.post("/v1/secrets/release")
    async def post_release(request: Request) -> Response:
        identity, began = request_id(request.headers.get("x-request-id")), time.monotonic()
        try:
            body = await read_body(request, MAX_ENVELOPE_BYTES)
            envelope = decode_message(ReleaseEnvelope, body, "request", MAX_ENVELOPE_BYTES)
            # Signatures, SQLite and the sealed store block: in a thread, so that other requests go on.
            released = await asyncio.to_thread(service.release, envelope, clock())
        except ReleaseDenied as denial:
            _log_denied(identity, denial.failures)
            counted.answered("denied", time.monotonic() - began, denial.failures)
            if denial.identity is not None:
                denied(denial.identity, denial.failures)
            return problem(403, denial.failures, identity)
        except Refusal as refusal:
            _log_denied(identity, (refusal.failure,))
            outcome: Outcome = "unavailable" if isinstance(refusal, Unavailable) else "refused"
            counted.answered(outcome, time.monotonic() - began, (refusal.failure,))
            return problem(status_of(refusal), (refusal.failure,), identity)
        except Exception as error:  # noqa: BLE001 - the edge: whatever failed, nothing is released
            structlog.get_logger().error("release_failed", request_id=identity, error=type(error).__name__)
            counted.answered("failed", time.monotonic() - began)
            return internal_error(identity)
        _log_released(identity, released)
        counted.answered("released", time.monotonic() - began)
        counted.released(len(released.response.secrets))
        return Response(
            released.response.model_dump_json(),
            media_type="application/json",
            headers={"X-Request-Id": identity, "Cache-Control": "no-store"},
        )

    return app


def _log_denied(identity: str, failures: tuple[Failure, ...]) -> None:
    structlog.get_logger().warning("secret_release_denied", request_id=identity, reasons=reasons_of(failures))


def _log_released(identity: str, released: Released) -> None:
    structlog.get_logger().info(
        "secret_released",
        request_id=identity,
        pod=released.pod,
        pod_uid=released.pod_uid,
        node=released.node,
        boot_id=released.boot_id,
        leases=[
            {"secret": secret.name, "lease_id": secret.lease_id, "expires_at": secret.expires_at}
            for secret in released.response.secrets
        ],
    )
