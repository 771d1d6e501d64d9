"""The result's claims: both dialects carry the same, and nothing that contradicts itself decodes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure, MalformedEvidence
from verifier.wire.result import (
    PROFILE_DEPLOYED,
    PROFILE_WORKING_GROUP,
    AttestationResult,
    BaselineRef,
    Submodule,
    Verdict,
    result_claims,
    result_from_claims,
    tier_of,
    worst,
)

RESULT = AttestationResult(
    issuer="https://verifier.example",
    audience="cluster-a",
    issued_at=1000,
    expires_at=1300,
    sequence=7,
    verdict=Verdict.AFFIRMING,
    submodules={
        "tpm": Submodule(Verdict.AFFIRMING, {"instance-identity": 2, "hardware": 0}),
        "boot": Submodule(Verdict.AFFIRMING, {"executables": 3, "configuration": 2}),
    },
    node_id="ab" * 32,
    node_name="node-a",
    kubernetes_node_uid=None,
    boot_id="cd" * 32,
    linux_boot_id="0b1c2d3e-4f50-4617-8293-a4b5c6d7e8f9",
    cohort="prod-a",
    tenant="ml",
    baseline=BaselineRef("b", "1.0.0", "ef" * 32),
    policy_stale=False,
    evidence_sha256="12" * 32,
    binding_key={"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"},
    ak_public="AA",
    reasons=(),
)
PROFILES = (PROFILE_DEPLOYED, PROFILE_WORKING_GROUP)


def _claims(profile: str = PROFILE_DEPLOYED) -> dict[str, Any]:
    return copy.deepcopy(result_claims(RESULT, profile, "test"))


def _refused(claims: dict[str, Any]) -> ReasonCode:
    with pytest.raises(MalformedEvidence) as caught:
        result_from_claims(claims)
    return caught.value.code


@pytest.mark.parametrize("profile", PROFILES)
def test_a_result_survives_both_dialects(profile: str) -> None:
    assert result_from_claims(result_claims(RESULT, profile, "test")) == RESULT
    reasons = (Failure(ReasonCode.SECURE_BOOT_OFF, "boot.secure_boot", pcr=7).as_json(),)
    denied = replace(RESULT, verdict=Verdict.CONTRAINDICATED, reasons=reasons, baseline=None, binding_key=None)
    assert result_from_claims(result_claims(denied, profile, "test")) == denied


def test_the_deployed_dialect_writes_words_and_the_working_groups_writes_tiers() -> None:
    assert _claims()["ear.status"] == "affirming"
    assert _claims(PROFILE_WORKING_GROUP)["ear_status"] == 2


def test_unknown_claims_are_ignored() -> None:
    assert result_from_claims(_claims() | {"nbf": 1, "extra": {"a": 1}}) == RESULT


FAULTS: dict[str, Callable[[dict[str, Any]], object]] = {
    "another profile": lambda c: c.update(eat_profile="tag:other"),
    "no profile": lambda c: c.pop("eat_profile"),
    "a float time": lambda c: c.update(iat=1000.0),
    "true for a time": lambda c: c.update(exp=True),
    "no end": lambda c: c.pop("exp"),
    "a list of audiences": lambda c: c.update(aud=["a"]),
    "an unknown verdict": lambda c: c.update({"ear.status": "fine"}),
    "a number beyond a byte for a verdict": lambda c: c.update({"ear.status": 258}),
    "true for a verdict": lambda c: c.update({"ear.status": True}),
    "no verdict": lambda c: c.pop("ear.status"),
    "no submodules": lambda c: c.update(submods={}),
    "a submodule without a verdict": lambda c: c["submods"]["tpm"].pop("ear.status"),
    "a submodule without a vector": lambda c: c["submods"]["tpm"].pop("ear.trustworthiness-vector"),
    "an empty vector": lambda c: c["submods"]["tpm"].update({"ear.trustworthiness-vector": {}}),
    "a vector entry beyond a byte": lambda c: c["submods"]["tpm"]["ear.trustworthiness-vector"].update(hardware=258),
    "a vector entry that is no number": lambda c: c["submods"]["tpm"]["ear.trustworthiness-vector"].update(
        hardware="2"
    ),
    "a verdict better than a submodule's": lambda c: c["submods"]["boot"].update({"ear.status": "warning"}),
    "a verdict better than one that is missing": lambda c: c["submods"]["boot"].update({"ear.status": "none"}),
    "a sequence below zero": lambda c: c["nodewarden"].update(seq=-1),
    "a sequence that no database holds": lambda c: c["nodewarden"].update(seq=2**63),
    "a sequence that is no integer": lambda c: c["nodewarden"].update(seq=True),
    "an affirming submodule whose vector claims nothing": lambda c: c["submods"]["tpm"].update(
        {"ear.trustworthiness-vector": {"hardware": 0, "executables": 1, "configuration": -1}}
    ),
    "a submodule better than its vector": lambda c: c["submods"]["boot"]["ear.trustworthiness-vector"].update(
        executables=96
    ),
    "a sequence as text": lambda c: c["nodewarden"].update(seq="7"),
    "own claims missing": lambda c: c.pop("nodewarden"),
    "a node id missing": lambda c: c["nodewarden"].pop("node_id"),
    "a baseline without digest": lambda c: c["nodewarden"]["baseline"].pop("sha256"),
    "a key that is no object": lambda c: c.update(cnf={"jwk": "x"}),
    "a reason that is no object": lambda c: c["nodewarden"].update(reasons=[[["code", "x"]]]),
    "reasons that are no list": lambda c: c["nodewarden"].update(reasons=1),
}


@pytest.mark.parametrize("name", FAULTS)
def test_claims_with_one_fault_are_malformed(name: str) -> None:
    claims = _claims()
    FAULTS[name](claims)
    assert _refused(claims) is ReasonCode.RESULT_MALFORMED


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(sorted(_claims())), _JSON)
def test_any_value_in_any_claim_decodes_or_is_malformed(name: str, value: Any) -> None:
    claims = _claims()
    claims[name] = value
    try:
        result_from_claims(claims)
    except MalformedEvidence as error:
        assert error.code is ReasonCode.RESULT_MALFORMED


@given(st.integers(-128, 127))
def test_every_vector_value_has_the_tier_of_the_specification(value: int) -> None:
    size = abs(value)
    expected = Verdict.NONE if -1 <= value <= 1 else None
    if expected is None and value > 0:
        expected = Verdict.AFFIRMING if size < 32 else Verdict.WARNING if size < 96 else Verdict.CONTRAINDICATED
    if expected is None:
        expected = Verdict.AFFIRMING if size <= 32 else Verdict.WARNING if size <= 96 else Verdict.CONTRAINDICATED
    assert tier_of(value) is expected


@pytest.mark.parametrize("value", [-129, 128, 258])
def test_values_beyond_a_byte_have_no_tier(value: int) -> None:
    with pytest.raises(MalformedEvidence) as caught:
        tier_of(value)
    assert caught.value.code is ReasonCode.RESULT_MALFORMED


def test_the_worst_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="empty"):
        worst(())
    assert worst((Verdict.AFFIRMING, Verdict.NONE)) is Verdict.NONE
