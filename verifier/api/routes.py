"""Every route of the verifier, with who may call it: the one table that decides. Handlers hold no logic."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import structlog
from starlette.routing import Route

from verifier.administration import MAX_INVENTORY_BYTES, Administration
from verifier.api.connections import PENDING
from verifier.api.endpoint import Access, Answer, Call, Endpoint, Guards, Handler
from verifier.api.stream import MAX_STREAMS, Commits, result_events, results_list
from verifier.enrolment_service import EnrolmentService
from verifier.metrics import Metrics
from verifier.roles import Role
from verifier.service import Service
from verifier.store.ports import NodeRecord, Store
from verifier.tokens import Signer
from verifier.wanted import Wanted
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence, Unavailable
from verifier.wire.signed_request import MAX_REQUEST_BYTES

READERS = frozenset({Role.VIEWER, Role.OPERATOR, Role.APPROVER, Role.MACHINE})
PEOPLE = frozenset({Role.VIEWER, Role.OPERATOR, Role.APPROVER})
OPERATORS = frozenset({Role.OPERATOR})
ADMITTERS = frozenset({Role.OPERATOR, Role.APPROVER})

MAX_EVIDENCE_BYTES = 2 * 1024 * 1024
"""A boot log of its full size and all else that a challenge asks for take 1.5 MiB; no challenge asks for more yet."""
_MAX_ENROLMENT_BYTES = 256 * 1024
_MAX_ACT_BYTES = 4096
_AUDIT_PAGE = 1000

_log = structlog.get_logger("nodewarden.verifier")


@dataclass(frozen=True, slots=True)
class Parts:
    """What the handlers call."""

    service: Service
    enrolment: EnrolmentService
    administration: Administration
    store: Store
    signer: Signer
    metrics: Metrics
    commits: Commits


def build_routes(parts: Parts, guards: Guards) -> list[Route]:
    """All routes. The first are the ones that are called all the time: matching is by order."""
    handlers = _Handlers(parts)
    table: tuple[tuple[str, str, Handler, Access | frozenset[Role], int], ...] = (
        ("POST", "/v1/evidence", handlers.evidence, Access.NODE, MAX_EVIDENCE_BYTES),
        ("POST", "/v1/attest-now", handlers.attest_now, Access.NODE, MAX_REQUEST_BYTES),
        ("POST", "/v1/challenges", handlers.challenge, Access.NODE, MAX_REQUEST_BYTES),
        ("GET", "/healthz", handlers.health, Access.OPEN, 0),
        ("GET", "/readyz", handlers.ready, Access.OPEN, 0),
        ("GET", "/.well-known/jwks.json", handlers.jwks, Access.OPEN, 0),
        ("POST", "/v1/enrolments", handlers.begin_enrolment, Access.OPEN, _MAX_ENROLMENT_BYTES),
        ("POST", "/v1/enrolments/{enrolment}/activation", handlers.activate, Access.OPEN, _MAX_ACT_BYTES),
        ("GET", "/v1/results", handlers.results, READERS, 0),
        ("GET", "/v1/nodes", handlers.nodes, READERS, 0),
        ("GET", "/v1/nodes/{node}", handlers.node, READERS, 0),
        ("GET", "/v1/nodes/{node}/explain", handlers.explain, PEOPLE, 0),
        ("POST", "/v1/nodes/{node}/approve", handlers.approve, ADMITTERS, _MAX_ACT_BYTES),
        ("POST", "/v1/nodes/{node}/revoke", handlers.revoke, OPERATORS, _MAX_ACT_BYTES),
        ("POST", "/v1/nodes/{node}/replace", handlers.replace, OPERATORS, _MAX_ACT_BYTES),
        ("POST", "/v1/nodes/{node}/forget", handlers.forget, OPERATORS, _MAX_ACT_BYTES),
        ("GET", "/v1/inventory", handlers.inventory, PEOPLE, 0),
        ("POST", "/v1/inventory", handlers.add_inventory, OPERATORS, MAX_INVENTORY_BYTES),
        ("GET", "/v1/audit", handlers.audit, PEOPLE, 0),
        ("GET", "/metrics", handlers.metrics, READERS, 0),
    )
    return [
        Route(path, Endpoint(handler, access, max_body_bytes, guards), methods=[method])
        for method, path, handler, access, max_body_bytes in table
    ]


class _Handlers:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._jwks = json.dumps(parts.signer.jwks).encode()

    async def evidence(self, call: Call) -> Answer:
        started = time.perf_counter()
        answered = await self._parts.service.attest(call.body, call.request_id)
        self._parts.metrics.verdict(answered.verdict)
        _log.info(
            "evidence_appraised",
            request_id=call.request_id,
            node_id=answered.node_id,
            verdict=answered.verdict,
            seq=answered.sequence,
            ms=round((time.perf_counter() - started) * 1000, 1),
        )
        return Answer(answered.body, proved_by=answered.node_id if answered.admitted else PENDING)

    async def challenge(self, call: Call) -> Answer:
        node, body = await self._parts.service.challenge(call.body)
        return Answer(body, proved_by=_prover(node))

    async def attest_now(self, call: Call) -> Answer:
        node = await self._parts.service.attest_now(call.body)
        # In parts: the connection counts as a node's from now on. Attack, or just a fleet behind one address: held
        # requests on connections that have proved nothing yet, until no node of that address gets another.
        waiting = _wanted(self._parts.service.wanted, node.node_id)
        return Answer(b"", parts=waiting, proved_by=_prover(node), held=True)

    async def begin_enrolment(self, call: Call) -> Answer:
        return Answer(await self._parts.enrolment.begin(call.body, call.request_id), 201)

    async def activate(self, call: Call) -> Answer:
        return Answer(await self._parts.enrolment.activate(call.path["enrolment"], call.body, call.request_id))

    async def health(self, call: Call) -> Answer:  # noqa: ARG002 - a handler takes its call
        return _json({"status": "alive"})

    async def ready(self, call: Call) -> Answer:  # noqa: ARG002 - a handler takes its call
        """Ready means that the store answers; what it holds is nobody's business here."""
        self._parts.store.find_nonce(b"")
        return _json({"status": "ready"})

    async def jwks(self, call: Call) -> Answer:  # noqa: ARG002 - a handler takes its call
        return Answer(self._jwks)

    async def results(self, call: Call) -> Answer:
        store, commits = self._parts.store, self._parts.commits
        if call.query.get("watch") != "true":
            return _json({"results": results_list(store)})
        if commits.streams >= MAX_STREAMS:
            raise Unavailable(ReasonCode.STREAMS_EXHAUSTED, "results", str(commits.streams))
        after = call.headers.get(b"last-event-id", b"0")
        if not after.isdigit() or len(after) > 18:
            raise MalformedEvidence(ReasonCode.SCHEMA_MISMATCH, "last-event-id", None, "a number")
        return Answer(b"", 200, "text/event-stream", result_events(store, commits, int(after)))

    async def nodes(self, call: Call) -> Answer:  # noqa: ARG002 - a handler takes its call
        return _json(self._parts.administration.nodes())

    async def node(self, call: Call) -> Answer:
        return _json(self._parts.administration.node(call.path["node"]))

    async def explain(self, call: Call) -> Answer:
        return _json(self._parts.administration.explain(call.path["node"]))

    async def approve(self, call: Call) -> Answer:
        return _json(await self._parts.administration.approve(call.path["node"], call.actor, call.request_id))

    async def revoke(self, call: Call) -> Answer:
        return _json(await self._parts.administration.revoke(call.path["node"], call.actor, call.request_id))

    async def replace(self, call: Call) -> Answer:
        act = self._parts.administration.replace(call.path["node"], call.body, call.actor, call.request_id)
        return _json(await act)

    async def forget(self, call: Call) -> Answer:
        return _json(await self._parts.administration.forget(call.path["node"], call.actor, call.request_id))

    async def inventory(self, call: Call) -> Answer:  # noqa: ARG002 - a handler takes its call
        return _json(self._parts.administration.inventory())

    async def add_inventory(self, call: Call) -> Answer:
        return _json(await self._parts.administration.add_inventory(call.body, call.actor, call.request_id))

    async def audit(self, call: Call) -> Answer:
        after = call.query.get("after", "0")
        # `isdigit` alone takes digits of any script, and not all of them make an int.
        if not (after.isascii() and after.isdigit()) or len(after) > 18:
            raise MalformedEvidence(ReasonCode.SCHEMA_MISMATCH, "after", None, "a row's number")
        rows = self._parts.store.audit_after(int(after), _AUDIT_PAGE)
        return _json({"rows": [{"id": row.id, "record": json.loads(row.record)} for row in rows]})

    async def metrics(self, call: Call) -> Answer:  # noqa: ARG002 - a handler takes its call
        return Answer(self._parts.metrics.text().encode(), content_type="text/plain; version=0.0.4")


def _prover(node: NodeRecord) -> str:
    return node.node_id if node.state == "admitted" else PENDING


async def _wanted(wanted: Wanted, node_id: str) -> AsyncGenerator[bytes, None]:
    yield json.dumps({"wanted": await wanted.wait(node_id)}).encode()


def _json(fields: dict[str, Any], status: int = 200) -> Answer:
    return Answer(json.dumps(fields).encode(), status)
