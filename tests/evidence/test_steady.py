"""A bundle that is recognised must parse to exactly what the general way makes of it, or not be recognised at all."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.forge.evidence import ForgedEvidence, accepted
from verifier.evidence.parse import ParsedBundle, parse_bundle
from verifier.evidence.steady import SteadyBundles, parse_steady
from verifier.wire.bundle import Nonce
from verifier.wire.bundle_codec import decode_bundle, encode_bundle
from verifier.wire.encoding import encode_base64url
from verifier.wire.failures import MalformedEvidence


def _steady_evidence() -> ForgedEvidence:
    return replace(accepted(), log_by_digest=True)


BODY = encode_bundle(_steady_evidence().bundle())


def _general(body: bytes) -> ParsedBundle:
    return parse_bundle(decode_bundle(body))


def _knowing(body: bytes = BODY) -> SteadyBundles:
    bundles = SteadyBundles()
    bundles.keep(body, _general(body))
    return bundles


def _later(clock_ms: int, nonce: bytes) -> bytes:
    """What the node sends at a later challenge of the same boot."""
    evidence = _steady_evidence()
    challenge = replace(evidence.challenge, nonce=Nonce(nonce))
    return encode_bundle(replace(evidence, challenge=challenge, clock_ms=evidence.clock_ms + clock_ms).bundle())


def test_a_later_bundle_of_the_same_boot_is_recognised_and_parses_as_the_general_way_says() -> None:
    later = _later(60_000, b"\x07" * 32)
    head = _knowing().find(later)
    assert head is not None
    assert (head.claimed_node_id, head.claimed_nonce) == (
        _general(later).claimed_node_id,
        Nonce(b"\x07" * 32),
    )
    assert parse_steady(head) == _general(later)
    assert parse_steady(head) != _general(BODY)


def test_nothing_is_recognised_before_it_was_kept() -> None:
    assert SteadyBundles().find(BODY) is None


@pytest.mark.parametrize(
    "old,new",
    [
        (b'"log_size":', b'"log_size":1'),
        (b'"index":0,"kind":"boot-log"', b'"index":1,"kind":"boot-log"'),
        (b'"version":1', b'"version":2'),
        (b'"kind":"host-facts"', b'"kind":"node-token"'),
    ],
)
def test_a_change_of_anything_else_is_not_recognised(old: bytes, new: bytes) -> None:
    assert BODY.count(old) == 1
    assert _knowing().find(BODY.replace(old, new)) is None


def test_the_same_bundle_in_another_spelling_of_json_is_not_recognised() -> None:
    assert _knowing().find(json.dumps(json.loads(BODY)).encode()) is None


@pytest.mark.parametrize(
    "nonce", [b"", b"A" * 42, b"A" * 44, b"A" * 42 + b"B", b"\\u0041" + b"A" * 42, b"\xc3\xa9" + b"A" * 41]
)
def test_a_nonce_that_is_not_32_bytes_in_their_one_spelling_is_left_to_the_general_way(nonce: bytes) -> None:
    own = encode_base64url(_steady_evidence().challenge.nonce).encode()
    body = BODY.replace(b'"nonce":"' + own, b'"nonce":"' + nonce)
    assert body != BODY
    assert _knowing().find(body) is None


def test_what_never_was_canonical_json_is_not_kept() -> None:
    bundles = SteadyBundles()
    body = json.dumps(json.loads(BODY)).encode()
    bundles.keep(body, _general(body))
    assert bundles.find(body) is None


def test_a_bundle_with_the_whole_log_is_not_kept() -> None:
    body = encode_bundle(accepted().bundle())
    bundles = SteadyBundles()
    bundles.keep(body, _general(body))
    assert bundles.find(body) is None


def test_the_oldest_makes_room() -> None:
    spaced = BODY.replace(b'"version":1', b'"version":1 ')
    bundles = SteadyBundles(limit=1)
    bundles.keep(BODY, _general(BODY))
    bundles.keep(spaced, _general(spaced))
    assert bundles.find(BODY) is None
    assert bundles.find(spaced) is not None


def _outcome(body: bytes) -> ParsedBundle | str:
    try:
        return _general(body)
    except MalformedEvidence as refusal:
        return refusal.code.value


@given(
    at=st.integers(min_value=0, max_value=len(BODY)),
    remove=st.integers(min_value=0, max_value=40),
    insert=st.one_of(
        st.binary(max_size=24),
        st.sampled_from(
            [
                b'"',
                b"\\",
                b'","signature":"',
                b'","nonce":"',
                b'\\"nonce":"',
                b',"nonce":"',
                b'"attest":"',
                b"AAAA",
                b" ",
            ]
        ),
    ),
)
def test_however_a_body_is_changed_recognition_never_says_other_than_the_general_way(
    at: int, remove: int, insert: bytes
) -> None:
    changed = BODY[:at] + insert + BODY[at + remove :]
    head = _knowing().find(changed)
    if head is None:
        return
    try:
        seen: ParsedBundle | str = parse_steady(head)
    except MalformedEvidence as refusal:
        seen = refusal.code.value
    assert seen == _outcome(changed)


@given(
    at=st.integers(min_value=0, max_value=len(BODY)),
    insert=st.sampled_from(
        [b'\\"nonce":"', b'"nonce":"",', b'"signature":"AAAA",', b'"x":"\\","nonce":"', b" ", b"\n", b'\\"signature":"']
    ),
)
def test_whatever_could_be_kept_recognises_only_what_the_general_way_takes_too(at: int, insert: bytes) -> None:
    """A node may send what it likes: what is kept of it must not make a later body mean another thing."""
    kept = BODY[:at] + insert + BODY[at:]
    try:
        bundles = _knowing(kept)
    except MalformedEvidence:
        return
    later = _later(60_000, b"\x07" * 32)
    for body in (BODY, kept, later, later[:at] + insert + later[at:]):
        head = bundles.find(body)
        if head is not None:
            assert parse_steady(head) == _general(body)
