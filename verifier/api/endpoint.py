"""What stands before every handler: identity, limits, body, and the turning of refusals into answers.

One table (`api/routes.py`) says for each route who may call it; this is the only code that reads it, so there is no
route without an answer to that question.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from enum import Enum
from typing import Any
from urllib.parse import parse_qs

import structlog

from verifier.api.body import ClientGone, Receive, read_body
from verifier.api.connections import SCOPE_KEY, NodeConnection
from verifier.api.limits import RateLimiter
from verifier.api.problems import CONTENT_TYPE_PROBLEM, internal_error, problem_body, status_of
from verifier.entropy import Entropy
from verifier.metrics import Metrics
from verifier.roles import Identity, Role, Tokens
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence, Refusal, Rejection, printable

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

MAX_LOGGED_PATH = 200
_REQUEST_ID = re.compile(rb"[A-Za-z0-9_-]{8,64}")
_entropy = Entropy()
_log = structlog.get_logger("nodewarden.verifier")


class Access(Enum):
    """Who may call a route that needs no bearer token."""

    OPEN = "anyone, within the rate limit"
    NODE = "whoever proves an AK; refusals are rate-limited"


@dataclass(frozen=True, slots=True)
class Call:
    """One request, as a handler sees it. `body` is whole and bounded; nothing in it is believed."""

    body: bytes
    path: Mapping[str, str]
    query: Mapping[str, str]
    headers: Mapping[bytes, bytes]
    identity: Identity | None
    request_id: str

    @property
    def actor(self) -> str:
        """The caller's name for the audit log."""
        return "anonymous" if self.identity is None else f"{self.identity.role}:{self.identity.name}"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a handler answers: a body, or parts that are sent as they come."""

    body: bytes
    status: int = 200
    content_type: str = "application/json"
    parts: AsyncGenerator[bytes, None] | None = None
    proved_by: str | None = None
    """Whose AK the request was accepted by, as `NodeConnection.proved` has it; None where a token was, or nothing."""
    held: bool = False
    """It waits for something to say, and its connection may be closed for another's."""


Handler = Callable[[Call], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class Guards:
    """What all endpoints share."""

    tokens: Tokens
    anonymous: RateLimiter
    refused: RateLimiter
    metrics: Metrics


class Endpoint:
    """An ASGI application for one route."""

    def __init__(self, handler: Handler, access: Access | frozenset[Role], max_body_bytes: int, guards: Guards) -> None:
        if isinstance(access, frozenset) and not access:
            raise ValueError("a route that no role may call")
        self.access = access
        self._handler = handler
        self._max_body_bytes = max_body_bytes
        self._guards = guards

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        request_id = request_id_of(headers)
        try:
            answer = await self._answer(scope, headers, receive, request_id)
        except Refusal as refusal:
            answer = self._refuse(refusal, scope, request_id)
        except ClientGone:
            return
        except Exception:  # noqa: BLE001 - the outermost edge: a fault of ours denies, and is told to the log only
            _log.exception("internal_error", request_id=request_id, path=_path(scope))
            self._guards.metrics.count(ReasonCode.INTERNAL_ERROR.value)
            status, body = internal_error(request_id)
            answer = Answer(body, status, CONTENT_TYPE_PROBLEM)
        await send_answer(answer, request_id, receive, send)

    async def _answer(self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, request_id: str) -> Answer:
        identity = self._admit(scope, headers)
        body = b"" if self._max_body_bytes == 0 else await read_body(headers, receive, self._max_body_bytes)
        query = scope["query_string"]
        call = Call(
            body=body,
            path=scope.get("path_params", {}),
            query=_query(query) if query else {},
            headers=headers,
            identity=identity,
            request_id=request_id,
        )
        answer = await self._handler(call)
        if self.access is not Access.OPEN:
            prove_connection(scope, answer.proved_by, held=answer.held)
        return answer

    def _admit(self, scope: Scope, headers: dict[bytes, bytes]) -> Identity | None:
        """Who calls; None on routes that need no token. Raises before any of the body is read."""
        guards = self._guards
        if self.access is Access.NODE:
            return None
        if self.access is Access.OPEN:
            _require_no_wait(guards.anonymous.wait_seconds(address_of(scope)))
            return None
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        identity = guards.tokens.identify(token) if scheme.lower() == b"bearer" and token else None
        if identity is None:
            raise Rejection(ReasonCode.AUTHENTICATION_REQUIRED, "authorization")
        if identity.role not in self.access:
            wanted = ", ".join(sorted(self.access))
            raise Rejection(ReasonCode.ROLE_FORBIDDEN, "authorization", identity.role, wanted)
        return identity

    def _refuse(self, refusal: Refusal, scope: Scope, request_id: str) -> Answer:
        guards = self._guards
        guards.metrics.count(refusal.code.value)
        if self.access is not Access.OPEN and not refusal.of_the_node:
            # Only refusals are limited, after the fact. Attack: a stranger behind the address of honest nodes who uses
            # up what is theirs, so that their verdicts run out; or hides from them the reason that they would act on.
            seconds = guards.refused.wait_seconds(address_of(scope))
            refusal = _rate_limited(seconds) if seconds else refusal
        status = status_of(refusal)
        _log.info("request_refused", request_id=request_id, path=_path(scope), code=refusal.code.value, status=status)
        return Answer(problem_body(refusal.failure, status, request_id), status, CONTENT_TYPE_PROBLEM)


def request_id_of(headers: Mapping[bytes, bytes]) -> str:
    """The client's X-Request-Id where it is harmless, else a new one."""
    claimed = headers.get(b"x-request-id")
    # Attack: an identifier that forges log lines or headers (CVE-2022-23949).
    if claimed is not None and _REQUEST_ID.fullmatch(claimed) is not None:
        return claimed.decode("ascii")
    return _entropy.take(8).hex()


def prove_connection(scope: Scope, by: str | None, *, held: bool) -> None:
    """The connection on which the request came is no stranger's any more."""
    connection: NodeConnection | None = scope.get(SCOPE_KEY)
    if connection is not None:
        connection.proved(by)
        if held:
            connection.held()


def address_of(scope: Scope) -> str:
    """The peer's address; never one that a header claims."""
    client = scope.get("client")
    return "unknown" if client is None else str(client[0])


async def send_answer(answer: Answer, request_id: str, receive: Receive, send: Send) -> None:
    """The answer is sent, with its request id; one in parts until its client goes."""
    headers = [
        (b"content-type", answer.content_type.encode("ascii")),
        (b"x-request-id", request_id.encode("ascii")),
        (b"cache-control", b"no-store"),
    ]
    if answer.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if answer.parts is None:
        headers.append((b"content-length", str(len(answer.body)).encode("ascii")))
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer.body})
        return
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    gone = asyncio.ensure_future(_client_gone(receive))
    try:
        async for part in answer.parts:
            # Sending to a client that went is no error, so a stream would go on for ever without this.
            if gone.done():
                return
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
    finally:
        gone.cancel()
        await answer.parts.aclose()


async def _client_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _path(scope: Scope) -> str:
    return printable(scope["path"][:MAX_LOGGED_PATH])


def _require_no_wait(seconds: int) -> None:
    if seconds:
        raise _rate_limited(seconds)


def _rate_limited(seconds: int) -> Rejection:
    return Rejection(ReasonCode.RATE_LIMITED, "requests", None, f"again after {seconds} s")


def _query(text: bytes) -> dict[str, str]:
    try:
        fields = parse_qs(text.decode("ascii"), keep_blank_values=True, strict_parsing=True, max_num_fields=8)
    except ValueError as error:
        # A parameter that was lost would be a default, and nobody would know.
        raise MalformedEvidence(ReasonCode.SCHEMA_MISMATCH, "query", None, "name=value") from error
    return {name: values[-1] for name, values in fields.items()}
