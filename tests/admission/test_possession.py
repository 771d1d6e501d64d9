"""Proof of possession: this node's AK, this request, this token, now, once; and the one reader behind it."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admission.durable_state import DurableState, UsedRequests
from admission.possession import prove_possession, signed_part
from tests.admission.world import NODE_ID, NOW, EccAk, RsaAk, a_result, envelope, two
from verifier.evidence.tpm import parse_public
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence, Refusal, Rejection
from verifier.wire.messages import text_of
from verifier.wire.release import ReleaseEnvelope
from verifier.wire.request_signature import load_request_key, verify_signed_request
from verifier.wire.signed_request import RequestLabel, SignedRequest, message_to_sign

AK = EccAk()
RSA_AK = RsaAk()
TOKEN = "a.pod.token"


class Once:
    """A request memory for one test."""

    def __init__(self) -> None:
        self.used: set[tuple[str, str]] = set()

    def use(self, node_id: str, jti: str, now: int, forget_at: int) -> None:
        assert forget_at - now > 120
        if (node_id, jti) in self.used:
            raise Rejection(ReasonCode.REQUEST_REPLAYED, "jti")
        self.used.add((node_id, jti))


def proved(
    posted: ReleaseEnvelope, memory: Once | None = None, ak: EccAk | RsaAk = AK, now: int = NOW, **result: Any
) -> Any:
    state = a_result(**{"ak_public": text_of(ak.public), **result})
    return prove_possession(signed_part(posted), posted.token, state, memory or Once(), now)


def code_of(posted: ReleaseEnvelope, **how: Any) -> ReasonCode:
    with pytest.raises(Refusal) as caught:
        proved(posted, **how)
    assert TOKEN not in str(caught.value)
    return caught.value.code


@pytest.mark.parametrize("ak", [AK, RSA_AK], ids=["p256", "rsa2048"])
def test_a_request_signed_by_the_nodes_ak_is_proved(ak: EccAk | RsaAk) -> None:
    assert proved(envelope(ak, TOKEN, ["llm/key"]), ak=ak).secrets == ["llm/key"]


def test_a_request_by_another_key_proves_nothing() -> None:
    assert code_of(envelope(EccAk(), TOKEN, ["llm/key"])) is ReasonCode.POSSESSION_NOT_PROVED


def test_a_result_without_an_ak_proves_nothing() -> None:
    assert code_of(envelope(AK, TOKEN, ["llm/key"]), ak_public=None) is ReasonCode.POSSESSION_NOT_PROVED


def test_a_signature_made_for_another_kind_of_request_proves_nothing() -> None:
    posted = envelope(AK, TOKEN, ["llm/key"], label=RequestLabel.CHALLENGE)
    assert code_of(posted) is ReasonCode.POSSESSION_NOT_PROVED


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"node_id": "2e" * 32}, ReasonCode.NODE_MISMATCH),
        ({"iat": NOW - 61}, ReasonCode.REQUEST_NOT_FRESH),
        ({"iat": NOW + 61}, ReasonCode.REQUEST_NOT_FRESH),
        ({"token_sha256": "00" * 32}, ReasonCode.TOKEN_DIGEST_MISMATCH),
        ({"extra": 1}, ReasonCode.SCHEMA_MISMATCH),
        ({"secrets": []}, ReasonCode.SCHEMA_MISMATCH),
        ({"secrets": ["../x"]}, ReasonCode.SCHEMA_MISMATCH),
        ({"jti": "short"}, ReasonCode.SCHEMA_MISMATCH),
    ],
)
def test_a_signed_request_with_one_wrong_part_is_refused_for_it(changes: dict[str, Any], code: ReasonCode) -> None:
    assert code_of(envelope(AK, TOKEN, **{"secrets": ["llm/key"], **changes})) is code


def test_a_request_for_one_token_does_not_carry_another() -> None:
    posted = envelope(AK, TOKEN, ["llm/key"]).model_copy(update={"token": "a.stolen.token"})
    assert code_of(posted) is ReasonCode.TOKEN_DIGEST_MISMATCH


def test_a_request_counts_once() -> None:
    memory, posted = Once(), envelope(AK, TOKEN, ["llm/key"])
    proved(posted, memory)
    assert code_of(posted, memory=memory) is ReasonCode.REQUEST_REPLAYED


def test_a_stranger_cannot_use_up_a_nodes_request_id() -> None:
    memory = Once()
    forged = envelope(EccAk(), TOKEN, ["llm/key"], jti="j" * 32)
    assert code_of(forged, memory=memory) is ReasonCode.POSSESSION_NOT_PROVED
    proved(envelope(AK, TOKEN, ["llm/key"], jti="j" * 32), memory)


def test_a_used_request_is_remembered_across_restarts_for_as_long_as_it_could_count(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    state = DurableState(path)
    UsedRequests(state).use(NODE_ID, "j" * 32, NOW, NOW + 121)
    state.close()
    state = DurableState(path)
    with pytest.raises(Rejection) as caught:
        UsedRequests(state).use(NODE_ID, "j" * 32, NOW + 121, NOW + 242)
    assert caught.value.code is ReasonCode.REQUEST_REPLAYED
    UsedRequests(state).use(NODE_ID, "j" * 32, NOW + 122, NOW + 243)
    state.close()


# --- the reader of AKs and signatures ---


def signed(ak: EccAk | RsaAk) -> tuple[SignedRequest, bytes]:
    body = b'{"a":1}'
    return SignedRequest(body, ak.sign(message_to_sign(RequestLabel.SECRET_RELEASE, body))), ak.public


@pytest.mark.parametrize("ak", [AK, RSA_AK], ids=["p256", "rsa2048"])
def test_the_small_reader_and_the_verifiers_full_one_agree_on_an_ak(ak: EccAk | RsaAk) -> None:
    full, small = parse_public(ak.public).key, load_request_key(ak.public)
    numbers = small.public_numbers()
    for name in ("n", "x", "y"):
        wanted = getattr(full, "modulus" if name == "n" else name, None)
        assert getattr(numbers, name, None) == wanted


@pytest.mark.parametrize("ak", [AK, RSA_AK], ids=["p256", "rsa2048"])
def test_every_flipped_bit_of_body_and_signature_is_refused(ak: EccAk | RsaAk) -> None:
    request, public = signed(ak)
    key = load_request_key(public)
    assert verify_signed_request(key, RequestLabel.SECRET_RELEASE, request) == b'{"a":1}'
    for position in range(len(request.signature)):
        changed = bytearray(request.signature)
        changed[position] ^= 1
        with pytest.raises(Refusal) as caught:
            verify_signed_request(key, RequestLabel.SECRET_RELEASE, SignedRequest(request.claimed_body, bytes(changed)))
        assert caught.value.code in {ReasonCode.REQUEST_SIGNATURE_INVALID, ReasonCode.SIGNATURE_MALFORMED}
    with pytest.raises(Rejection) as refused:
        verify_signed_request(key, RequestLabel.SECRET_RELEASE, SignedRequest(b'{"a":2}', request.signature))
    assert refused.value.code is ReasonCode.REQUEST_SIGNATURE_INVALID


@pytest.mark.parametrize("ak", [AK, RSA_AK], ids=["p256", "rsa2048"])
def test_an_ak_or_signature_cut_short_or_with_bytes_after_it_is_malformed(ak: EccAk | RsaAk) -> None:
    request, public = signed(ak)
    key = load_request_key(public)
    for cut in [*(public[:n] for n in range(len(public))), public + b"\0"]:
        with pytest.raises(MalformedEvidence) as caught:
            load_request_key(cut)
        assert caught.value.code is ReasonCode.PUBLIC_AREA_MALFORMED
    for cut in [*(request.signature[:n] for n in range(len(request.signature))), request.signature + b"\0"]:
        with pytest.raises(MalformedEvidence) as caught:
            verify_signed_request(key, RequestLabel.SECRET_RELEASE, SignedRequest(request.claimed_body, cut))
        assert caught.value.code is ReasonCode.SIGNATURE_MALFORMED


def _public(change: Callable[[bytearray], object], ak: EccAk | RsaAk = AK) -> bytes:
    changed = bytearray(ak.public)
    change(changed)
    return bytes(changed)


@pytest.mark.parametrize(
    "public",
    [
        _public(lambda p: p.__setitem__(3, 0x08)),
        _public(lambda p: p.__setitem__(5, 0x04)),
        _public(lambda p: p.__setitem__(15, 0x14)),
        _public(lambda p: p.__setitem__(17, 0x0C)),
        _public(lambda p: p.__setitem__(19, 0x04)),
        _public(lambda p: p.__setitem__(-1, p[-1] ^ 1)),
        _public(lambda p: p.__setitem__(18, 0x04), RSA_AK),
        _public(lambda p: p.__setitem__(23, 0x03), RSA_AK),
        _public(lambda p: p.__setitem__(26, 0), RSA_AK),
        two(struct.pack(">HHI", 0x23, 0x0B, 0) + two(b"")),
    ],
)
def test_an_ak_of_another_kind_is_malformed(public: bytes) -> None:
    with pytest.raises(MalformedEvidence) as caught:
        load_request_key(public)
    assert caught.value.code is ReasonCode.PUBLIC_AREA_MALFORMED


def test_a_signature_of_the_other_algorithm_is_malformed() -> None:
    request, _ = signed(RSA_AK)
    with pytest.raises(MalformedEvidence) as caught:
        verify_signed_request(load_request_key(AK.public), RequestLabel.SECRET_RELEASE, request)
    assert caught.value.code is ReasonCode.SIGNATURE_MALFORMED


@given(st.binary(max_size=400))
def test_arbitrary_bytes_are_malformed_and_nothing_else(body: bytes) -> None:
    with pytest.raises(MalformedEvidence):
        load_request_key(body)
    with pytest.raises(Refusal) as caught:
        verify_signed_request(load_request_key(AK.public), RequestLabel.CHALLENGE, SignedRequest(b"", body))
    assert caught.value.code in {ReasonCode.REQUEST_SIGNATURE_INVALID, ReasonCode.SIGNATURE_MALFORMED}
