"""One form of JWE, made by another implementation, opened here; everything else refused."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st
from jwcrypto.jwe import JWE
from jwcrypto.jwk import JWK

from attester.jwe import open_jwe
from verifier.wire.codes import ReasonCode
from verifier.wire.encoding import encode_base64url
from verifier.wire.failures import MalformedEvidence, Rejection

KEY = ec.derive_private_key(0x1234567, ec.SECP256R1())
SECRET = b"the model's key"


def agree(x: bytes, y: bytes) -> bytearray:
    """As the TPM does it, with a key in software."""
    numbers = ec.EllipticCurvePublicNumbers(int.from_bytes(x), int.from_bytes(y), ec.SECP256R1())
    try:
        return bytearray(KEY.exchange(ec.ECDH(), numbers.public_key()))
    except ValueError as error:
        raise Rejection(ReasonCode.SECRET_DOES_NOT_OPEN, "point") from error


def sealed(secret: bytes = SECRET, **header: str) -> dict[str, Any]:
    """`secret` encrypted to KEY by jwcrypto, as flattened JSON."""
    numbers = KEY.public_key().public_numbers()
    x, y = (encode_base64url(value.to_bytes(32)) for value in (numbers.x, numbers.y))
    recipient = JWK(kty="EC", crv="P-256", x=x, y=y)
    protected = json.dumps({"alg": "ECDH-ES+A256KW", "enc": "A256GCM"} | header)
    return dict(json.loads(JWE(secret, protected=protected, recipient=recipient).serialize()))


def refused(jwe: dict[str, Any]) -> ReasonCode:
    with pytest.raises((MalformedEvidence, Rejection)) as refusal:
        open_jwe(jwe, agree)
    return refusal.value.code


def with_protected(jwe: dict[str, Any], **changes: object) -> dict[str, Any]:
    """`jwe` with another protected header; None removes a name."""
    text = jwe["protected"]
    header = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))) | changes
    kept = {name: value for name, value in header.items() if value is not None}
    return jwe | {"protected": encode_base64url(json.dumps(kept).encode())}


@pytest.mark.parametrize("secret", [b"", b"x", SECRET, bytes(70_000)])
def test_a_jwe_of_another_implementation_opens(secret: bytes) -> None:
    assert open_jwe(sealed(secret), agree) == secret


def test_party_information_enters_the_key_derivation() -> None:
    jwe = sealed(apu=encode_base64url(b"Alice"), apv=encode_base64url(b"Bob"))
    assert open_jwe(jwe, agree) == SECRET


@given(st.sampled_from(["encrypted_key", "iv", "ciphertext", "tag"]), st.data())
def test_a_flipped_bit_in_any_member_does_not_open(member: str, data: st.DataObject) -> None:
    jwe = sealed()
    text = jwe[member]
    body = bytearray(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    bit = data.draw(st.integers(0, len(body) * 8 - 1))
    body[bit // 8] ^= 1 << bit % 8
    assert refused(jwe | {member: encode_base64url(bytes(body))}) is ReasonCode.SECRET_DOES_NOT_OPEN


def test_a_changed_protected_header_does_not_open() -> None:
    assert refused(with_protected(sealed(), kid="other")) is ReasonCode.SECRET_DOES_NOT_OPEN


@pytest.mark.parametrize(
    "changes",
    [
        {"alg": "ECDH-ES"},
        {"alg": "dir"},
        {"alg": None},
        {"enc": "A128GCM"},
        {"enc": None},
        {"zip": "DEF"},
        {"crit": ["x"]},
        {"x": 1},
    ],
    ids=str,
)
def test_another_algorithm_or_extension_is_malformed(changes: dict[str, object]) -> None:
    assert refused(with_protected(sealed(), **changes)) is ReasonCode.JWE_MALFORMED


def test_a_header_name_given_twice_is_malformed() -> None:
    jwe = sealed()
    assert refused(with_protected(jwe, epk=jwe["header"]["epk"])) is ReasonCode.JWE_MALFORMED
    assert refused(jwe | {"header": jwe["header"] | {"alg": "dir"}}) is ReasonCode.JWE_MALFORMED


@pytest.mark.parametrize("name", ["protected", "encrypted_key", "iv", "ciphertext", "tag"])
def test_each_member_is_required_as_text(name: str) -> None:
    jwe = sealed()
    assert refused({member: value for member, value in jwe.items() if member != name}) is ReasonCode.JWE_MALFORMED
    values: tuple[object, ...] = (None, 1, [], "+", "A")
    for value in values:
        assert refused(jwe | {name: value}) is ReasonCode.JWE_MALFORMED


@pytest.mark.parametrize("name", ["recipients", "unprotected", "aad", "other"])
def test_another_member_is_malformed(name: str) -> None:
    assert refused(sealed() | {name: "AAAA"}) is ReasonCode.JWE_MALFORMED


@pytest.mark.parametrize(
    "epk",
    [
        None,
        "text",
        {},
        {"kty": "EC", "crv": "P-384", "x": "AA", "y": "AA"},
        {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"},
        {"kty": "EC", "crv": "P-256"},
        {"kty": "OKP", "crv": "X25519", "x": "AA"},
    ],
    ids=str,
)
def test_another_ephemeral_key_is_malformed(epk: object) -> None:
    assert refused(sealed() | {"header": {"epk": epk}}) is ReasonCode.JWE_MALFORMED


def test_a_point_outside_the_curve_does_not_open() -> None:
    epk = {"kty": "EC", "crv": "P-256", "x": encode_base64url(b"\1" * 32), "y": encode_base64url(b"\1" * 32)}
    assert refused(sealed() | {"header": {"epk": epk}}) is ReasonCode.SECRET_DOES_NOT_OPEN


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(
    st.dictionaries(st.sampled_from(["protected", "encrypted_key", "iv", "ciphertext", "tag", "header"]), json_values)
)
def test_any_object_is_refused_with_a_code(jwe: dict[str, Any]) -> None:
    assert refused(jwe) in (ReasonCode.JWE_MALFORMED, ReasonCode.SECRET_DOES_NOT_OPEN)
    assert refused(sealed() | jwe | {"iv": "AA"}) is ReasonCode.JWE_MALFORMED


def test_key_material_is_overwritten_after_use() -> None:
    shared: list[bytearray] = []

    def remember(x: bytes, y: bytes) -> bytearray:
        shared.append(agree(x, y))
        return shared[0]

    assert open_jwe(sealed(), remember) == SECRET
    assert shared == [bytearray(32)]
