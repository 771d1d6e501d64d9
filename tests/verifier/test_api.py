"""The HTTP edge: who may call what, limits, and answers that tell no secret."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import zstandard
from starlette.routing import Route

from tests.verifier import fleet
from tests.verifier.http import Http, with_http
from verifier.api.body import decompress
from verifier.api.endpoint import Access, Endpoint
from verifier.api.limits import RateLimiter
from verifier.api.problems import status_of
from verifier.metrics import Metrics
from verifier.roles import Role
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence, Unavailable
from verifier.wire.messages import decode_message
from verifier.wire.verdict import Problem

OPEN = {"/healthz", "/readyz", "/.well-known/jwks.json", "/v1/enrolments", "/v1/enrolments/{enrolment}/activation"}
BY_AK = {"/v1/evidence", "/v1/challenges", "/v1/attest-now"}


def _routes(http: Http) -> list[tuple[str, Route, Endpoint]]:
    found = []
    for route in http.verifier.app.routes:
        assert isinstance(route, Route) and isinstance(route.endpoint, Endpoint)
        assert route.methods is not None
        found += [(method, route, route.endpoint) for method in sorted(route.methods - {"HEAD"})]
    return found


def test_only_the_listed_routes_need_no_token(tmp_path: Path) -> None:
    async def scenario(http: Http) -> None:
        routes = _routes(http)
        assert {route.path for _, route, endpoint in routes if endpoint.access is Access.OPEN} == OPEN
        assert {route.path for _, route, endpoint in routes if endpoint.access is Access.NODE} == BY_AK
        assert len(routes) == len({(method, route.path) for method, route, _ in routes})

    with_http(tmp_path / "v", scenario)


def test_every_other_route_is_401_without_identity_and_403_with_the_wrong_role(tmp_path: Path) -> None:
    async def scenario(http: Http) -> None:
        closed = [entry for entry in _routes(http) if entry[1].path not in OPEN | BY_AK]
        assert len(closed) >= 12
        for method, route, endpoint in closed:
            path = re.sub(r"\{[^}]+\}", "x", route.path)
            assert isinstance(endpoint.access, frozenset)
            for authorization in ("", "Bearer", "Bearer wrong", "Basic eDp5"):
                answer = await http.call(method, path, authorization=authorization)
                assert answer.status_code == 401, (method, path)
                assert answer.json()["code"] == ReasonCode.AUTHENTICATION_REQUIRED
                assert answer.headers["www-authenticate"] == "Bearer"
            for role in set(Role) - endpoint.access:
                answer = await http.call(method, path, role=role)
                assert (answer.status_code, answer.json()["code"]) == (403, ReasonCode.ROLE_FORBIDDEN), (path, role)
            for role in endpoint.access:
                answer = await http.call(method, path, role=role)
                assert answer.status_code not in (401, 403), (method, path, role)

    with_http(tmp_path / "v", scenario)


def test_no_documentation_or_schema_is_served(tmp_path: Path) -> None:
    async def scenario(http: Http) -> None:
        for path in ("/docs", "/redoc", "/openapi.json", "/", "/v1/nodes/", "/v1/evidence/../nodes"):
            answer = await http.call("GET", path)
            assert answer.status_code in (401, 404)
        answer = await http.call("DELETE", "/v1/nodes")
        assert (answer.status_code, answer.json()["code"]) == (404, ReasonCode.ROUTE_UNKNOWN)

    with_http(tmp_path / "v", scenario)


def test_errors_are_problems_with_a_request_id(tmp_path: Path) -> None:
    async def scenario(http: Http) -> None:
        for path, code, status in (
            ("/v1/evidence", ReasonCode.JSON_INVALID, 400),
            ("/v1/challenges", ReasonCode.JSON_INVALID, 400),
            ("/v1/enrolments", ReasonCode.JSON_INVALID, 400),
        ):
            answer = await http.call("POST", path, b"{", x_request_id="given-by-client")
            problem = decode_message(Problem, answer.content, "problem")
            assert (answer.status_code, problem.status, problem.code) == (status, status, code)
            assert problem.request_id == answer.headers["x-request-id"] == "given-by-client"
            assert answer.headers["content-type"] == "application/problem+json"

    with_http(tmp_path / "v", scenario)


@pytest.mark.parametrize("claimed", ["short", "x" * 65, "new line", "colour\x1b[31m", "semi;colon"])
def test_a_request_id_that_could_forge_a_log_line_is_replaced(tmp_path: Path, claimed: str) -> None:
    async def scenario(http: Http) -> None:
        answer = await http.call("GET", "/healthz", x_request_id=claimed)
        assert re.fullmatch("[0-9a-f]{16}", answer.headers["x-request-id"])

    with_http(tmp_path / "v", scenario)


def test_a_fault_of_ours_is_a_500_that_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(http: Http) -> None:
        def fails(*_: object) -> None:
            raise RuntimeError("the secret is swordfish")

        monkeypatch.setattr(http.verifier.store, "find_nonce", fails)
        answer = await http.call("GET", "/readyz")
        assert (answer.status_code, answer.json()["code"]) == (500, ReasonCode.INTERNAL_ERROR)
        assert "swordfish" not in answer.text and "Runtime" not in answer.text

    with_http(tmp_path / "v", scenario)


def test_a_body_over_the_limit_is_refused_before_it_is_read(tmp_path: Path) -> None:
    async def scenario(http: Http) -> None:
        answer = await http.call("POST", "/v1/challenges", b"x" * 40_000)
        assert (answer.status_code, answer.json()["code"]) == (413, ReasonCode.BODY_TOO_LARGE)
        answer = await http.call("POST", "/v1/challenges", b"{}", content_length="99999999999")
        assert answer.json()["code"] == ReasonCode.BODY_TOO_LARGE

    with_http(tmp_path / "v", scenario)


def test_zstd_bodies_are_taken(tmp_path: Path) -> None:
    async def scenario(http: Http) -> None:
        forged = fleet.node(0)
        await fleet.enrol(http.verifier, forged)
        body = zstandard.compress(fleet.encoded(fleet.evidence(forged, await fleet.challenge(http.verifier, forged))))
        answer = await http.call("POST", "/v1/evidence", body, content_encoding="zstd")
        assert answer.json()["verdict"] == "affirming"
        answer = await http.call("POST", "/v1/evidence", body, content_encoding="gzip")
        assert answer.json()["code"] == ReasonCode.COMPRESSION_INVALID

    with_http(tmp_path / "v", scenario)


def _undeclared(content: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=False).compress(content)


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (b"no frame", ReasonCode.COMPRESSION_INVALID),
        (zstandard.compress(b"a" * 100)[:-1], ReasonCode.COMPRESSION_INVALID),
        (zstandard.compress(b"a" * 100) + b"x", ReasonCode.COMPRESSION_INVALID),
        (zstandard.compress(b"a" * 100) * 2, ReasonCode.COMPRESSION_INVALID),
        (_undeclared(b"a" * 100), ReasonCode.COMPRESSION_INVALID),
        (zstandard.compress(bytes(10_000_000)), ReasonCode.BODY_TOO_LARGE),
    ],
)
def test_a_zstd_bomb_or_a_broken_frame_is_refused(frame: bytes, code: ReasonCode) -> None:
    assert decompress(zstandard.compress(b"a" * 1000), 1000) == b"a" * 1000
    with pytest.raises(MalformedEvidence) as refused:
        decompress(frame, 1000)
    assert refused.value.code is code


def test_anonymous_routes_are_rate_limited_by_address(tmp_path: Path) -> None:
    async def scenario(http: Http) -> None:
        codes = [(await http.call("GET", "/healthz")).status_code for _ in range(6)]
        assert codes == [200] * 5 + [429]

    with_http(tmp_path / "v", scenario, anonymous_requests_per_minute=5)


def test_refused_evidence_is_rate_limited_and_accepted_evidence_is_not(tmp_path: Path) -> None:
    async def scenario(http: Http) -> None:
        forged = fleet.node(0)
        await fleet.enrol(http.verifier, forged)
        for _ in range(8):
            assert (await http.attest(forged))["verdict"] == "affirming"
        codes = [(await http.call("POST", "/v1/evidence", b"{")).status_code for _ in range(6)]
        assert codes == [400] * 5 + [429]
        # A stranger behind the same address cannot make an honest node's verdict run out.
        assert (await http.attest(forged))["verdict"] == "affirming"

    with_http(tmp_path / "v", scenario, refused_requests_per_minute=5)


def test_rate_limits_keep_bounded_memory_and_take_an_ipv6_network_as_one() -> None:
    limiter = RateLimiter(per_minute=2, limit=10)
    for number in range(100):
        limiter.wait_seconds(f"192.0.2.{number}")
    assert len(limiter._buckets) <= 10
    waits = [limiter.wait_seconds(f"2001:db8::{number}") for number in range(3)]
    assert waits[:2] == [0, 0] and waits[2] > 0


def test_streams_are_bounded(tmp_path: Path) -> None:
    async def scenario(http: Http) -> None:
        endpoint = next(e for _, r, e in _routes(http) if r.path == "/v1/results")
        endpoint._handler.__self__._parts.commits.streams = 256  # type: ignore[attr-defined] # a bound method
        answer = await http.call("GET", "/v1/results?watch=true", role=Role.MACHINE)
        assert (answer.status_code, answer.json()["code"]) == (503, ReasonCode.STREAMS_EXHAUSTED)

    with_http(tmp_path / "v", scenario)


def test_metrics_name_codes_and_never_nodes(tmp_path: Path) -> None:
    async def scenario(http: Http) -> None:
        forged = fleet.node(0)
        await fleet.enrol(http.verifier, forged)
        await http.attest(forged)
        await http.call("POST", "/v1/evidence", b"{")
        text = (await http.call("GET", "/metrics", role=Role.MACHINE)).text
        assert 'nodewarden_verdicts_total{verdict="affirming"} 1' in text
        assert 'nodewarden_refusals_total{code="json-invalid"} 1' in text
        assert "node-0" not in text

    with_http(tmp_path / "v", scenario)


def test_a_stranger_cannot_grow_the_audit_log(tmp_path: Path) -> None:
    async def scenario(http: Http) -> None:
        for _ in range(50):
            await http.call("POST", "/v1/evidence", b"{")
        await http.verifier.chain_audit()
        records = [json.loads(row.record) for row in http.verifier.store.audit_after(0, 100)]
        assert [(record["kind"], record["detail"]) for record in records] == [("refusals", {"json-invalid": 50})]

    with_http(tmp_path / "v", scenario)


def test_unavailable_is_503_and_reports_are_taken_once() -> None:
    assert status_of(Unavailable(ReasonCode.STORE_UNAVAILABLE, "store")) == 503
    metrics = Metrics()
    metrics.count("a")
    assert (metrics.take_unreported(), metrics.take_unreported()) == ({"a": 1}, {})
