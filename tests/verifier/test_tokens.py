"""Keys, results' signatures, and the files that hold secrets."""

from __future__ import annotations

import hashlib
import json
import stat
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from edges.private_files import create_private
from verifier.roles import Identity, Role, create_tokens, load_tokens
from verifier.tls import ensure_tls
from verifier.tokens import create_key, load_signer
from verifier.wire.codes import ReasonCode
from verifier.wire.encoding import encode_base64url
from verifier.wire.failures import MalformedEvidence, Rejection
from verifier.wire.result import RESULT_TYPE

NOW = 1_795_000_000


def test_a_signed_result_verifies_with_another_implementation(tmp_path: Path) -> None:
    signer = load_signer(tmp_path)
    claims = {"iss": "v", "text": 'quotes " and \u00fc', "n": 2**53, "list": [1, {"a": None}], "flag": True}
    for _ in range(64):  # enough for r or s to begin with a zero byte now and then
        token = signer.sign(claims, RESULT_TYPE)
        key = jwt.PyJWKSet.from_dict(signer.jwks)[jwt.get_unverified_header(token)["kid"]]
        assert jwt.decode(token, key, algorithms=["ES256"]) == claims
    assert jwt.get_unverified_header(token)["typ"] == RESULT_TYPE


def test_a_key_id_is_the_rfc_7638_thumbprint(tmp_path: Path) -> None:
    jwk = load_signer(tmp_path).jwks["keys"][0]
    text = f'{{"crv":"P-256","kty":"EC","x":"{jwk["x"]}","y":"{jwk["y"]}"}}'
    assert jwk["kid"] == encode_base64url(hashlib.sha256(text.encode()).digest())
    assert "d" not in jwk


def test_the_key_file_is_the_owners_only_and_the_same_key_comes_back(tmp_path: Path) -> None:
    first = load_signer(tmp_path)
    assert stat.S_IMODE((tmp_path / "0001.pem").stat().st_mode) == 0o600
    assert load_signer(tmp_path).jwks == first.jwks


def test_a_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    load_signer(tmp_path)
    (tmp_path / "0001.pem").chmod(0o640)
    with pytest.raises(Rejection) as refused:
        load_signer(tmp_path)
    assert refused.value.code is ReasonCode.FILE_MODE_UNSAFE


def test_rotation_signs_with_the_newest_key_and_publishes_both(tmp_path: Path) -> None:
    old = load_signer(tmp_path)
    create_key(tmp_path / "0002.pem")
    both = load_signer(tmp_path)
    kids = [key["kid"] for key in both.jwks["keys"]]
    assert kids[0] == old.jwks["keys"][0]["kid"] and len(kids) == 2
    assert jwt.get_unverified_header(both.sign({}, RESULT_TYPE))["kid"] == kids[1]


def test_a_key_of_another_curve_or_no_key_is_refused(tmp_path: Path) -> None:
    pem = ec.generate_private_key(ec.SECP384R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    for content in (pem, b"no key"):
        (tmp_path / "0001.pem").unlink(missing_ok=True)
        create_private(tmp_path / "0001.pem", content)
        with pytest.raises(MalformedEvidence) as refused:
            load_signer(tmp_path)
        assert refused.value.code is ReasonCode.SETTING_INVALID


def test_tokens_are_stored_as_digests_and_found_again(tmp_path: Path) -> None:
    create_tokens(tmp_path / "tokens.json", {"ops": (Role.OPERATOR, tmp_path / "ops.token")})
    token = (tmp_path / "ops.token").read_bytes().strip()
    assert token.decode() not in (tmp_path / "tokens.json").read_text()
    tokens = load_tokens(tmp_path / "tokens.json")
    assert tokens.identify(token) == Identity("ops", Role.OPERATOR)
    assert tokens.identify(token + b"x") is None and tokens.identify(b"") is None


def test_a_tokens_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    create_tokens(tmp_path / "tokens.json", {"ops": (Role.OPERATOR, tmp_path / "ops.token")})
    (tmp_path / "tokens.json").chmod(0o644)
    with pytest.raises(Rejection) as refused:
        load_tokens(tmp_path / "tokens.json")
    assert refused.value.code is ReasonCode.FILE_MODE_UNSAFE


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"tokens": []},
        {"tokens": [{"name": "a", "role": "admin", "sha256": "00" * 32}]},
        {"tokens": [{"name": "a", "role": "viewer", "sha256": "00" * 32, "extra": 1}]},
        {"tokens": [{"name": "a", "role": "viewer", "sha256": "00" * 32}] * 2},
    ],
)
def test_a_tokens_file_of_another_form_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    good = {"version": 1, "tokens": [{"name": "a", "role": "viewer", "sha256": "11" * 32}]}
    create_private(tmp_path / "good.json", json.dumps(good).encode())
    load_tokens(tmp_path / "good.json")
    create_private(tmp_path / "bad.json", json.dumps(good | change).encode())
    with pytest.raises(MalformedEvidence) as refused:
        load_tokens(tmp_path / "bad.json")
    assert refused.value.code is ReasonCode.SETTING_INVALID


def test_the_server_certificate_is_kept_while_it_serves_and_renewed_when_it_does_not(tmp_path: Path) -> None:
    certificate, key = ensure_tls(tmp_path, ("localhost", "127.0.0.1"), NOW)
    first, ca = certificate.read_bytes(), (tmp_path / "ca.pem").read_bytes()
    ensure_tls(tmp_path, ("localhost",), NOW)
    assert certificate.read_bytes() == first
    ensure_tls(tmp_path, ("localhost", "verifier.example"), NOW)
    second = certificate.read_bytes()
    assert second != first
    ensure_tls(tmp_path, ("localhost",), NOW + 380 * 86400)
    assert certificate.read_bytes() != second
    assert (tmp_path / "ca.pem").read_bytes() == ca
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in (key, tmp_path / "ca.key"))
