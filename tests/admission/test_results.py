"""Results as a relying party takes them: signed by the verifier, for this cluster, never older than before."""

from __future__ import annotations

import base64
import hmac
import json
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from admission.durable_state import DurableSequences, DurableState
from admission.key_sets import KeySet, parse_key_set
from admission.results import ALGORITHMS, InMemorySequences, ResultVerifier
from tests.admission.world import AUDIENCE, ISSUER, NODE_ID, NOW, Signer, a_result, jwk_of
from verifier.wire.codes import ReasonCode
from verifier.wire.encoding import encode_base64url
from verifier.wire.failures import Refusal
from verifier.wire.result import PROFILE_DEPLOYED, PROFILE_WORKING_GROUP, Verdict, result_claims

SIGNER = Signer()
HEADERS = {"kid": "key-1", "typ": "eat+jwt"}
SEQUENCE = a_result().sequence


def a_verifier(keys: KeySet | None = None) -> ResultVerifier:
    return ResultVerifier(lambda: keys or SIGNER.key_set(), ISSUER, AUDIENCE, InMemorySequences())


def code_of(token: str, verifier: ResultVerifier | None = None) -> ReasonCode:
    with pytest.raises(Refusal) as caught:
        (verifier or a_verifier()).verify(token)
    return caught.value.code


def typed(fields: dict[str, Any]) -> str:
    return SIGNER.token(fields, typ="eat+jwt")


def claims(**changes: Any) -> dict[str, Any]:
    return {**result_claims(a_result(), PROFILE_DEPLOYED, "test"), **changes}


@pytest.mark.parametrize("profile", [PROFILE_DEPLOYED, PROFILE_WORKING_GROUP])
def test_a_signed_result_is_taken_in_both_dialects(profile: str) -> None:
    token = typed(result_claims(a_result(), profile, "test"))
    assert a_verifier().verify(token) == a_result()


def test_a_result_by_an_unknown_key_is_refused() -> None:
    assert code_of(Signer().result(a_result())) is ReasonCode.RESULT_SIGNATURE_INVALID
    assert code_of(Signer("key-2").result(a_result())) is ReasonCode.RESULT_SIGNATURE_INVALID


def test_a_key_that_comes_with_the_token_is_never_used() -> None:
    stranger = Signer("mine")
    own = jwk_of(stranger.key.public_key())
    assert code_of(stranger.result(a_result(), jwk=own)) is ReasonCode.RESULT_SIGNATURE_INVALID
    for header in ({"jwk": own}, {"jku": "https://x"}, {"x5u": "https://x"}, {"x5c": ["x"]}):
        assert code_of(SIGNER.result(a_result(), **header)) is ReasonCode.RESULT_SIGNATURE_INVALID


def test_a_token_without_signature_or_with_another_algorithm_is_refused() -> None:
    unsigned = jwt.encode(claims(), "", "none", HEADERS)
    assert code_of(unsigned) is ReasonCode.RESULT_SIGNATURE_INVALID
    # The public key's own text as an HMAC secret; PyJWT would not make this token, an attacker does.
    header = encode_base64url(json.dumps({"alg": "HS256", "kid": "key-1", "typ": "eat+jwt"}).encode())
    signed = f"{header}.{encode_base64url(json.dumps(claims()).encode())}"
    tag = hmac.digest(json.dumps(SIGNER.jwks()["keys"][0]).encode(), signed.encode(), "sha256")
    assert code_of(f"{signed}.{encode_base64url(tag)}") is ReasonCode.RESULT_SIGNATURE_INVALID
    rsa_key = rsa.generate_private_key(65537, 2048)
    assert code_of(jwt.encode(claims(), rsa_key, "RS256", HEADERS)) is ReasonCode.RESULT_SIGNATURE_INVALID


def test_another_kind_of_token_under_the_verifiers_key_is_no_result() -> None:
    for kind in ("JWT", "nodewarden-audit-head+jwt", None):
        assert code_of(SIGNER.result(a_result(), typ=kind)) is ReasonCode.RESULT_MALFORMED


def test_every_changed_character_of_a_result_is_refused() -> None:
    token = SIGNER.result(a_result())
    for position in range(0, len(token), 7):
        other = "A" if token[position] != "A" else "B"
        if token[position] == ".":
            continue
        changed = token[:position] + other + token[position + 1 :]
        if position == len(token) - 1:
            continue  # the last character of a signature has spare bits
        assert code_of(changed) in {ReasonCode.RESULT_SIGNATURE_INVALID, ReasonCode.RESULT_MALFORMED}


def test_a_result_for_another_cluster_or_of_another_verifier_is_refused() -> None:
    assert code_of(typed(claims(aud="cluster-b"))) is ReasonCode.RESULT_AUDIENCE_WRONG
    assert code_of(typed(claims(aud=[AUDIENCE, "cluster-b"]))) is ReasonCode.RESULT_AUDIENCE_WRONG
    assert code_of(typed(claims(iss="https://evil.example"))) is ReasonCode.RESULT_SIGNATURE_INVALID


@pytest.mark.parametrize("name", ["iss", "aud", "exp", "iat", "submods", "ear.status", "nodewarden", "eat_profile"])
def test_a_result_without_one_of_its_claims_is_malformed(name: str) -> None:
    fields = claims()
    del fields[name]
    expected = {ReasonCode.RESULT_MALFORMED}
    assert code_of(typed(fields)) in expected


@pytest.mark.parametrize(
    "changes",
    [
        {"iat": NOW + 0.5},
        {"submods": {}},
        {"ear.status": "warn"},
        {"ear.status": 258},
        {"eat_profile": "tag:x"},
        {"submods": {"boot": {"ear.status": "contraindicated", "ear.trustworthiness-vector": {"executables": 96}}}},
    ],
)
def test_a_result_that_contradicts_itself_or_the_format_is_malformed(changes: dict[str, Any]) -> None:
    assert code_of(typed(claims(**changes))) is ReasonCode.RESULT_MALFORMED


@pytest.mark.parametrize("token", ["", "a.b.c", "x" * 70_000, "é.é.é", "..", "e30.e30."])
def test_what_is_no_token_is_malformed_or_unsigned(token: str) -> None:
    assert code_of(token) in {ReasonCode.RESULT_MALFORMED, ReasonCode.RESULT_SIGNATURE_INVALID}


def test_an_older_result_is_never_taken_after_a_newer_one() -> None:
    verifier = a_verifier()
    verifier.verify(SIGNER.result(a_result(sequence=SEQUENCE + 1, verdict=Verdict.AFFIRMING)))
    assert code_of(SIGNER.result(a_result()), verifier) is ReasonCode.RESULT_ROLLED_BACK


def test_the_same_result_may_be_read_again_and_another_one_of_its_number_may_not() -> None:
    verifier = a_verifier()
    token = SIGNER.result(a_result())
    assert verifier.verify(token) == verifier.verify(token)
    twin = SIGNER.result(a_result(expires_at=NOW + 500))
    assert code_of(twin, verifier) is ReasonCode.RESULT_ROLLED_BACK


def test_a_result_of_a_replaced_tpm_does_not_come_back_under_the_nodes_name() -> None:
    verifier = a_verifier()
    verifier.verify(SIGNER.result(a_result(node_id="2e" * 32, sequence=SEQUENCE + 10)))
    assert code_of(SIGNER.result(a_result(node_id=NODE_ID)), verifier) is ReasonCode.RESULT_ROLLED_BACK


def test_a_restart_is_no_way_back_to_an_older_result(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    first = DurableState(path)
    ResultVerifier(SIGNER.key_set, ISSUER, AUDIENCE, DurableSequences(first)).verify(
        SIGNER.result(a_result(sequence=SEQUENCE + 1))
    )
    first.close()
    second = DurableState(path)
    after = ResultVerifier(SIGNER.key_set, ISSUER, AUDIENCE, DurableSequences(second))
    assert code_of(SIGNER.result(a_result()), after) is ReasonCode.RESULT_ROLLED_BACK
    second.close()


def test_a_state_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    DurableState(path).close()
    path.chmod(0o644)
    with pytest.raises(Refusal) as caught:
        DurableState(path)
    assert caught.value.code is ReasonCode.FILE_MODE_UNSAFE


def test_a_state_file_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    state = DurableState(path)
    state._connection.execute("PRAGMA user_version=99")
    state.close()
    with pytest.raises(Refusal) as caught:
        DurableState(path)
    assert caught.value.code is ReasonCode.STORE_UNAVAILABLE


def _jwks(*keys: dict[str, Any]) -> str:
    return json.dumps({"keys": list(keys)})


GOOD = SIGNER.jwks()["keys"][0]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        _jwks(),
        _jwks(GOOD, GOOD),
        json.dumps({"keys": [GOOD, None]}),
        json.dumps({"keys": ["d"]}),
        _jwks({**GOOD, "kid": ""}),
        _jwks({name: value for name, value in GOOD.items() if name != "kid"}),
        _jwks({**GOOD, "d": GOOD["x"]}),
        _jwks({**GOOD, "alg": "ES384"}),
        _jwks({**GOOD, "crv": "P-384"}),
        _jwks({**GOOD, "x": base64.urlsafe_b64encode(b"\1" * 32).decode().rstrip("=")}),
        _jwks({"kty": "oct", "k": "AAAA", "kid": "a", "alg": "HS256"}),
        _jwks(*[{**GOOD, "kid": str(n)} for n in range(65)]),
    ],
)
def test_a_key_set_with_one_unfit_key_is_refused_as_a_whole(text: str) -> None:
    with pytest.raises(Refusal) as caught:
        parse_key_set(text, ALGORITHMS, "jwks")
    assert caught.value.code is ReasonCode.SETTING_INVALID


def test_a_rotated_key_counts_as_soon_as_it_is_published() -> None:
    new = Signer("key-2")
    both = KeySet({**SIGNER.key_set().keys, **new.key_set().keys})
    assert a_verifier(both).verify(new.result(a_result())) == a_result()
