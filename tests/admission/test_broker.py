"""The broker with real keys: who gets a secret, who does not, under which lease, and what is logged of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog
from cryptography.hazmat.primitives.asymmetric import ec
from jwcrypto import jwe, jwk
from structlog.testing import capture_logs

from admission.broker import broker_app
from admission.cluster_view import PodIdentity, Snapshot
from admission.durable_state import DurableState, UsedRequests
from admission.leases import lease_key
from admission.local_leases import LocalLeases
from admission.pod_tokens import PodTokenVerifier
from admission.release import ReleaseService
from admission.sealed_store import SealedStore
from admission.secret_encryption import BindingKey
from attester.jwe import open_jwe
from tests.admission.world import (
    BOOT_ID,
    NODE,
    NODE_UID,
    NOW,
    POD_UID,
    TOKEN_ISSUER,
    EccAk,
    RsaAk,
    Signer,
    a_cluster,
    a_node,
    a_pod,
    a_result,
    envelope,
    jwk_of,
    token_claims,
)
from verifier.wire.codes import ReasonCode
from verifier.wire.encoding import encode_base64url
from verifier.wire.failures import Failure, MalformedEvidence, Rejection
from verifier.wire.messages import text_of
from verifier.wire.release import ReleaseEnvelope
from verifier.wire.result import Verdict

SECRET = b"the model key \x00\xff"


class World:
    """A broker over a cluster that a test may change, with the node's keys in software."""

    def __init__(self, path: Path) -> None:
        self.ak: EccAk | RsaAk = EccAk()
        self.binding = ec.generate_private_key(ec.SECP256R1())
        self.issuer = Signer()
        self.now = NOW
        self.cluster = a_cluster(pod=a_pod(node_name=NODE), result=self.good_result())
        self.tokens = PodTokenVerifier(self.issuer.key_set, TOKEN_ISSUER)
        self.store = SealedStore.create(path / "secrets", path / "key")
        self.store.put("llm/key", SECRET)
        self.store.put("llm/other", b"other")
        self.database = DurableState(path / "state.sqlite")
        self.service = ReleaseService(self, UsedRequests(self.database), LocalLeases(self.database), self.store)
        self.app = broker_app(self.service, lambda: None, 60, lambda: self.now)

    def good_result(self, **changes: Any) -> Any:
        key = jwk_of(self.binding.public_key())
        return a_result(**{"binding_key": key, "ak_public": text_of(self.ak.public), **changes})

    def with_result(self, **changes: Any) -> None:
        self.cluster = replace(self.cluster, results={NODE: self.good_result(**changes)})

    # the ClusterView
    def state(self) -> Snapshot:
        return self.cluster

    def check_token(self, token: str, now: int) -> PodIdentity:
        return self.tokens.verify(token, now)

    def token(self, **changes: Any) -> str:
        return self.issuer.token(token_claims(**changes))

    def asked(
        self, secrets: tuple[str, ...] = ("llm/key",), token: str | None = None, **changes: Any
    ) -> ReleaseEnvelope:
        return envelope(self.ak, token or self.token(), list(secrets), **{"iat": self.now, **changes})

    def post(self, posted: ReleaseEnvelope | bytes, **headers: str) -> httpx.Response:
        body = posted if isinstance(posted, bytes) else posted.model_dump_json().encode()

        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(app=self.app)
            async with httpx.AsyncClient(transport=transport, base_url="https://broker") as client:
                return await client.post("/v1/secrets/release", content=body, headers=headers)

        return asyncio.run(send())

    def code(self, posted: ReleaseEnvelope | bytes, status: int = 403) -> ReasonCode:
        answer = self.post(posted)
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"] == "application/problem+json"
        assert SECRET not in answer.content
        return next(code for code in ReasonCode if code.value == answer.json()["code"])

    def opened(self, answer: httpx.Response, index: int = 0) -> bytes:
        assert answer.status_code == 200, answer.text
        token = jwe.JWE()
        token.deserialize(json.dumps(answer.json()["secrets"][index]["jwe"]))
        numbers = self.binding.private_numbers()
        private = encode_base64url(numbers.private_value.to_bytes(32))
        token.decrypt(jwk.JWK(**jwk_of(self.binding.public_key()), d=private))
        payload: bytes = token.payload
        return payload


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.database.close()


def test_the_nodes_binding_key_opens_what_the_broker_released(world: World) -> None:
    answer = world.post(world.asked(("llm/key", "llm/other")))
    assert [world.opened(answer, 0), world.opened(answer, 1)] == [SECRET, b"other"]
    first = answer.json()["secrets"][0]
    assert (first["name"], first["path"]) == ("llm/key", "key.bin")
    assert json.loads(jwe.base64url_decode(first["jwe"]["protected"]))["alg"] == "ECDH-ES+A256KW"
    assert answer.headers["cache-control"] == "no-store"


def test_an_rsa_ak_proves_possession_as_well(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.ak = RsaAk()
    world.with_result()
    assert world.opened(world.post(world.asked())) == SECRET
    world.database.close()


# --- who gets nothing ---


def test_a_stolen_token_alone_starts_nothing(world: World) -> None:
    thief = envelope(EccAk(), world.token(), ["llm/key"])
    assert world.code(thief) is ReasonCode.POSSESSION_NOT_PROVED


def test_a_token_stolen_to_another_verified_node_starts_nothing_there(world: World) -> None:
    # The thief holds the AK of another attested node: the token still says where its pod is.
    other = EccAk()
    thief = envelope(other, world.token(), ["llm/key"], node_id="2e" * 32)
    assert world.code(thief) is ReasonCode.POSSESSION_NOT_PROVED


def test_the_nodes_signature_with_a_token_of_a_pod_elsewhere_starts_nothing(world: World) -> None:
    claims = token_claims()["kubernetes.io"]
    away = world.token(**{"kubernetes.io": {**claims, "node": {"name": "gpu-9", "uid": "x"}}})
    assert world.code(world.asked(token=away)) is ReasonCode.NODE_UNKNOWN_TO_CLUSTER
    recreated = world.token(**{"kubernetes.io": {**claims, "node": {"name": NODE, "uid": "old"}}})
    assert world.code(world.asked(token=recreated)) is ReasonCode.NODE_MISMATCH


def test_a_token_of_a_deleted_pod_of_the_same_name_starts_nothing(world: World) -> None:
    claims = token_claims()["kubernetes.io"]
    old = world.token(**{"kubernetes.io": {**claims, "pod": {"name": "llm-0", "uid": "old"}}})
    assert world.code(world.asked(token=old)) is ReasonCode.POD_UID_MISMATCH


def test_a_token_for_another_audience_starts_nothing(world: World) -> None:
    assert world.code(world.asked(token=world.token(aud=["api"]))) is ReasonCode.TOKEN_INVALID


def test_a_legacy_token_that_names_no_pod_starts_nothing(world: World) -> None:
    claims = {k: v for k, v in token_claims()["kubernetes.io"].items() if k != "pod"}
    assert world.code(world.asked(token=world.token(**{"kubernetes.io": claims}))) is ReasonCode.TOKEN_NOT_POD_BOUND


@pytest.mark.parametrize(
    ("result", "code"),
    [
        ({"expires_at": NOW}, ReasonCode.RESULT_EXPIRED),
        ({"verdict": Verdict.CONTRAINDICATED}, ReasonCode.NODE_NOT_VERIFIED),
        ({"linux_boot_id": "before"}, ReasonCode.BOOT_MISMATCH),
        ({"kubernetes_node_uid": "old"}, ReasonCode.RESULT_NODE_MISMATCH),
        ({"binding_key": None}, ReasonCode.RESULT_WITHOUT_BINDING_KEY),
        ({"ak_public": None}, ReasonCode.POSSESSION_NOT_PROVED),
    ],
)
def test_a_node_that_is_not_verified_now_gets_nothing(world: World, result: dict[str, Any], code: ReasonCode) -> None:
    world.with_result(**result)
    assert world.code(world.asked()) is code


def test_a_node_whose_result_was_rolled_back_gets_nothing(world: World) -> None:
    world.cluster = replace(world.cluster, results={NODE: Failure(ReasonCode.RESULT_ROLLED_BACK, "seq")})
    assert world.code(world.asked()) is ReasonCode.RESULT_ROLLED_BACK


def test_a_request_posted_twice_counts_once(world: World) -> None:
    posted = world.asked()
    assert world.post(posted).status_code == 200
    assert world.code(posted) is ReasonCode.REQUEST_REPLAYED


def test_a_request_kept_for_later_does_not_count(world: World) -> None:
    posted = world.asked()
    world.now += 61
    assert world.code(posted) is ReasonCode.REQUEST_NOT_FRESH


def test_a_secret_that_is_allowed_and_not_stored_fails_the_whole_request(world: World) -> None:
    world.store.delete("llm/other")
    assert world.code(world.asked(("llm/key", "llm/other"))) is ReasonCode.SECRET_UNKNOWN


def test_a_store_that_was_altered_releases_nothing(world: World, tmp_path: Path) -> None:
    path = tmp_path / "secrets"
    path.write_bytes(path.read_bytes().replace(b"llm/key", b"llm/kex"))
    assert world.code(world.asked()) is ReasonCode.SECRET_STORE_INVALID


def test_a_binding_key_that_is_no_point_or_brings_its_private_half_is_refused(world: World) -> None:
    good = jwk_of(world.binding.public_key())
    for bad in (
        {**good, "x": encode_base64url(b"\1" * 32)},
        {**good, "crv": "P-384"},
        {**good, "kty": "OKP"},
        {**good, "d": good["x"]},
        {**good, "x": good["x"] + "="},
    ):
        with pytest.raises(MalformedEvidence):
            BindingKey(bad)
    world.with_result(binding_key={**good, "crv": "P-384"})
    assert world.code(world.asked(), 400) is ReasonCode.RESULT_MALFORMED


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, ReasonCode.JSON_INVALID),
        (b"[]", 400, ReasonCode.JSON_INVALID),
        (b'{"token": "a"}', 400, ReasonCode.SCHEMA_MISMATCH),
        (b'{"token": "a", "body": "!", "signature": "AA"}', 400, ReasonCode.ENCODING_NOT_CANONICAL),
        (b'{"token": "a", "token": "b", "body": "AA", "signature": "AA"}', 400, ReasonCode.JSON_INVALID),
        (b"[" * 60_000, 413, ReasonCode.BODY_TOO_LARGE),
        (b"[" * 10_000, 400, ReasonCode.JSON_INVALID),
        (b" " * 70_000, 413, ReasonCode.BODY_TOO_LARGE),
    ],
)
def test_a_body_without_form_is_refused_by_its_own_code(
    world: World, body: bytes, status: int, code: ReasonCode
) -> None:
    assert world.code(body, status) is code


def test_a_store_that_cannot_write_denies_and_says_to_try_again(world: World) -> None:
    world.database.close()
    assert world.code(world.asked(), 503) is ReasonCode.STORE_UNAVAILABLE


def test_a_fault_of_ours_grants_nothing_and_tells_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> bytes:
        raise RuntimeError(SECRET.decode("latin-1"))

    monkeypatch.setattr(world.store, "read", broken)
    with capture_logs() as logs:
        assert world.code(world.asked(), 500) is ReasonCode.INTERNAL_ERROR
    assert [entry["event"] for entry in logs] == ["release_failed"]
    assert "model key" not in json.dumps(logs)


# --- leases ---


def lease_of(answer: httpx.Response) -> tuple[str, int]:
    assert answer.status_code == 200, answer.text
    first = answer.json()["secrets"][0]
    return first["lease_id"], first["expires_at"]


def test_asking_again_gives_the_same_lease_encrypted_anew(world: World) -> None:
    first, second = world.post(world.asked()), world.post(world.asked())
    assert lease_of(first) == lease_of(second)
    assert first.json()["secrets"][0]["jwe"] != second.json()["secrets"][0]["jwe"]
    assert world.opened(second) == SECRET


def test_a_lease_ends_with_the_result_or_its_own_time_whichever_is_first(world: World) -> None:
    answer = world.post(world.asked(("llm/key", "llm/other")))
    ends = [secret["expires_at"] for secret in answer.json()["secrets"]]
    assert ends == [NOW + 240, NOW + 60]


def test_a_renewed_result_does_not_lengthen_a_running_lease_and_a_new_one_follows_it(world: World) -> None:
    first = lease_of(world.post(world.asked()))
    world.now += 100
    world.with_result(issued_at=world.now, expires_at=world.now + 300, sequence=NOW * 1000 + 1)
    assert lease_of(world.post(world.asked())) == first
    world.now = first[1]
    world.with_result(issued_at=world.now, expires_at=world.now + 300, sequence=NOW * 1000 + 2)
    later = lease_of(world.post(world.asked()))
    assert later[0] != first[0]
    assert later[1] == world.now + 300


def test_a_running_lease_is_not_given_to_another_binding_key(world: World) -> None:
    world.post(world.asked())
    world.binding = ec.generate_private_key(ec.SECP256R1())
    world.with_result()
    assert world.code(world.asked()) is ReasonCode.LEASE_HELD


def test_another_boot_and_another_pod_get_leases_of_their_own(world: World) -> None:
    first = lease_of(world.post(world.asked()))
    world.binding = ec.generate_private_key(ec.SECP256R1())
    world.with_result(boot_id="b1" * 32, linux_boot_id="second-boot")
    world.cluster = replace(world.cluster, nodes={NODE: a_node(claimed_boot_id="second-boot")})
    assert lease_of(world.post(world.asked()))[0] != first[0]
    keys = {
        lease_key(POD_UID, NODE_UID, BOOT_ID, "a"),
        lease_key("x", NODE_UID, BOOT_ID, "a"),
        lease_key(POD_UID, "x", BOOT_ID, "a"),
        lease_key(POD_UID, NODE_UID, "x", "a"),
        lease_key(POD_UID, NODE_UID, BOOT_ID, "b"),
    }
    assert len(keys) == 5


def test_a_lease_exists_before_the_secret_is_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def reading(_: str) -> bytes:
        with world.database.transaction() as connection:
            seen.append(connection.execute("SELECT count(*) FROM leases").fetchone()[0])
        return SECRET

    monkeypatch.setattr(world.store, "read", reading)
    world.post(world.asked())
    assert seen == [1]


def test_leases_outlive_a_restart_and_never_hold_content(world: World, tmp_path: Path) -> None:
    first = lease_of(world.post(world.asked()))
    world.database.close()
    world.database = DurableState(tmp_path / "state.sqlite")
    world.service = ReleaseService(world, UsedRequests(world.database), LocalLeases(world.database), world.store)
    world.app = broker_app(world.service, lambda: None, 60, lambda: world.now)
    assert lease_of(world.post(world.asked())) == first
    on_disk = b"".join(path.read_bytes() for path in tmp_path.glob("state.sqlite*"))
    assert SECRET not in on_disk


# --- the log ---


def test_releases_and_denials_are_logged_without_content_or_token(world: World) -> None:
    token = world.token()
    with capture_logs() as logs:
        posted = world.asked(token=token)
        world.post(posted, **{"X-Request-Id": "request-0001"})
        world.post(posted)
        world.post(world.asked(token=world.token(aud="api")))
    assert [entry["event"] for entry in logs] == ["secret_released", "secret_release_denied", "secret_release_denied"]
    assert logs[0]["request_id"] == "request-0001"
    assert logs[0]["leases"][0]["secret"] == "llm/key"
    assert logs[1]["reasons"][0]["code"] == ReasonCode.REQUEST_REPLAYED.value
    text = json.dumps(logs)
    for hidden in (token, token.split(".")[2], posted.signature, "the model key"):
        assert hidden not in text


def test_a_request_id_that_is_no_harmless_text_is_replaced(world: World) -> None:
    with capture_logs() as logs:
        for claimed in ("short", "x" * 65, "evil id; drop"):
            answer = world.post(world.asked(), **{"X-Request-Id": claimed})
            assert answer.headers["x-request-id"] != claimed
    assert len({entry["request_id"] for entry in logs}) == 3
    assert structlog.get_logger() is not None


def test_the_attesters_own_reader_opens_what_the_broker_encrypts(world: World) -> None:
    def agree(x: bytes, y: bytes) -> bytearray:
        numbers = ec.EllipticCurvePublicNumbers(int.from_bytes(x), int.from_bytes(y), ec.SECP256R1())
        return bytearray(world.binding.exchange(ec.ECDH(), numbers.public_key()))

    for _ in range(4):
        answer = world.post(world.asked())
        assert open_jwe(answer.json()["secrets"][0]["jwe"], agree) == SECRET


# --- at the same time ---


def test_one_request_sent_by_many_at_once_counts_once(world: World) -> None:
    posted = world.asked()

    def send(_: int) -> str:
        try:
            world.service.release(posted, world.now)
        except Rejection as rejection:
            return rejection.code.value
        return "released"

    with ThreadPoolExecutor(8) as pool:
        outcomes = sorted(pool.map(send, range(16)))
    assert outcomes == sorted(["released"] + [ReasonCode.REQUEST_REPLAYED.value] * 15)


def test_many_requests_for_one_secret_at_once_share_one_lease(world: World) -> None:
    posted = [world.asked() for _ in range(16)]
    with ThreadPoolExecutor(8) as pool:
        released = list(pool.map(lambda one: world.service.release(one, world.now), posted))
    assert len({one.response.secrets[0].lease_id for one in released}) == 1


def test_leases_and_used_requests_are_forgotten_in_time(world: World) -> None:
    world.post(world.asked())
    world.now += 8 * 24 * 3600
    result = {"issued_at": world.now, "expires_at": world.now + 300, "sequence": NOW * 1000 + 9}
    world.with_result(**result)
    claims = {"iat": world.now, "nbf": world.now, "exp": world.now + 600}
    assert world.post(world.asked(("llm/other",), token=world.token(**claims))).status_code == 200
    with world.database.transaction() as connection:
        leases = connection.execute("SELECT count(*) FROM leases").fetchone()
        used = connection.execute("SELECT count(*) FROM used_requests").fetchone()
    assert (leases, used) == ((1,), (1,))
