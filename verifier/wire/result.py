"""The attestation result's claims: what a verifier signs and a relying party may believe.

An EAR (EAT Attestation Result) in its deployed dialect, or the working group's; both decode to `AttestationResult`.
Verdicts are AR4SI tiers. Signing is `verifier.tokens`; relying parties check the signature before they decode.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence


class Verdict(StrEnum):
    """AR4SI trust tiers. Only `affirming` admits unless a policy says otherwise."""

    NONE = "none"
    AFFIRMING = "affirming"
    WARNING = "warning"
    CONTRAINDICATED = "contraindicated"


TIER_VALUE: Mapping[Verdict, int] = {
    Verdict.NONE: 0,
    Verdict.AFFIRMING: 2,
    Verdict.WARNING: 32,
    Verdict.CONTRAINDICATED: 96,
}
"""AR4SI tier numbers, which the working group's dialect writes."""

RESULT_TYPE = "eat+jwt"
"""`typ` of a result's JWT header, so that no other token of the same key passes as one (RFC 8725, section 3.11)."""
PROFILE_DEPLOYED = "tag:github.com,2023:veraison/ear"
PROFILE_WORKING_GROUP = "tag:ietf.org,2026:rats/ear#03"


MAX_SEQUENCE = 2**63 - 1
"""What a relying party's database can hold; in milliseconds since 1970, 292 million years."""


def tier_of(value: int) -> Verdict:
    """The tier of one trustworthiness-vector entry (draft-ietf-rats-ar4si).

    Raises MalformedEvidence `result-malformed` outside -128..127: a number cut to fit turns 258 into 2.
    """
    if not -128 <= value <= 127:
        raise MalformedEvidence(ReasonCode.RESULT_MALFORMED, "trustworthiness-vector", str(value), "-128 to 127")
    if -1 <= value <= 1:
        return Verdict.NONE
    if 2 <= value <= 31 or -32 <= value <= -2:
        return Verdict.AFFIRMING
    if 32 <= value <= 95 or -96 <= value <= -33:
        return Verdict.WARNING
    return Verdict.CONTRAINDICATED


_SEVERITY = (Verdict.AFFIRMING, Verdict.NONE, Verdict.WARNING, Verdict.CONTRAINDICATED)


def worst(verdicts: tuple[Verdict, ...]) -> Verdict:
    """The worst of `verdicts`; a missing verdict (`none`) is worse than `affirming`. Raises ValueError when empty."""
    return max(verdicts, key=_SEVERITY.index)


@dataclass(frozen=True, slots=True)
class Submodule:
    """One appraised part (`tpm`, `boot`): its verdict, and its AR4SI trustworthiness vector by claim name."""

    verdict: Verdict
    vector: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class BaselineRef:
    """Which baseline judged: name, version and SHA-256 of its canonical JSON."""

    name: str
    version: str
    sha256: str


@dataclass(frozen=True, slots=True)
class AttestationResult:
    """All that a relying party may rely on. Times are seconds since 1970 by the verifier's clock.

    `binding_key` is the public JWK (`cnf`) to which secrets of this node and boot may be encrypted; `sequence` only
    rises for one node, revocations included, and a relying party never goes back in it. `reasons` are `Failure` JSON.
    """

    issuer: str
    audience: str
    issued_at: int
    expires_at: int
    sequence: int
    verdict: Verdict
    submodules: Mapping[str, Submodule]
    node_id: str
    node_name: str
    kubernetes_node_uid: str | None
    boot_id: str | None
    linux_boot_id: str | None
    cohort: str
    tenant: str
    baseline: BaselineRef | None
    policy_stale: bool
    evidence_sha256: str | None
    binding_key: Mapping[str, str] | None
    ak_public: str | None
    """Base64url TPM2B_PUBLIC of the AK, by which a broker checks requests that the node signs; null when revoked."""
    reasons: tuple[Mapping[str, Any], ...]


_OWN = "nodewarden"


def result_claims(result: AttestationResult, profile: str, build: str) -> dict[str, Any]:
    """The JWT claims of `result` in the EAR dialect `profile`; `build` names this verifier's software."""
    names = _NAMES[profile]
    status = _STATUS[profile]
    own = {
        "seq": result.sequence,
        "node_id": result.node_id,
        "node_name": result.node_name,
        "node_uid": result.kubernetes_node_uid,
        "boot_id": result.boot_id,
        "linux_boot_id": result.linux_boot_id,
        "cohort": result.cohort,
        "tenant": result.tenant,
        "baseline": None
        if result.baseline is None
        else {"name": result.baseline.name, "version": result.baseline.version, "sha256": result.baseline.sha256},
        "policy_stale": result.policy_stale,
        "evidence_sha256": result.evidence_sha256,
        "ak_public": result.ak_public,
        "reasons": [dict(reason) for reason in result.reasons],
    }
    claims: dict[str, Any] = {
        "eat_profile": profile,
        "iss": result.issuer,
        "aud": result.audience,
        "iat": result.issued_at,
        "exp": result.expires_at,
        names.verifier_id: {"developer": "https://nodewarden.dev", "build": build},
        names.status: status[result.verdict],
        "submods": {
            name: {names.status: status[part.verdict], names.vector: dict(part.vector)}
            for name, part in result.submodules.items()
        },
        _OWN: own,
    }
    if result.binding_key is not None:
        claims["cnf"] = {"jwk": dict(result.binding_key)}
    return claims


_STATUS: Mapping[str, Mapping[Verdict, Any]] = {
    PROFILE_DEPLOYED: {verdict: verdict.value for verdict in Verdict},
    PROFILE_WORKING_GROUP: TIER_VALUE,
}


@dataclass(frozen=True, slots=True)
class _Names:
    status: str
    vector: str
    verifier_id: str


_NAMES: Mapping[str, _Names] = {
    PROFILE_DEPLOYED: _Names("ear.status", "ear.trustworthiness-vector", "ear.verifier-id"),
    PROFILE_WORKING_GROUP: _Names("ear_status", "ear_trustworthiness_vector", "ear_verifier_id"),
}


def result_from_claims(claims: Mapping[str, Any]) -> AttestationResult:
    """The result whose JWT claims are `claims`, in either dialect, checked for form and inner consistency.

    The top verdict may be no better than the worst submodule's, and each submodule's no better than its worst vector
    entry. Raises MalformedEvidence `result-malformed`. Does not check signature, audience, times or sequence.
    """
    try:
        names = _NAMES[claims["eat_profile"]]
        own = claims[_OWN]
        submodules = {name: _submodule(part, names) for name, part in claims["submods"].items()}
        baseline = own["baseline"]
        cnf = claims.get("cnf")
        result = AttestationResult(
            issuer=_typed(claims, "iss", str),
            audience=_typed(claims, "aud", str),
            issued_at=_typed(claims, "iat", int),
            expires_at=_typed(claims, "exp", int),
            sequence=_sequence(own),
            verdict=_verdict(claims[names.status]),
            submodules=submodules,
            node_id=_typed(own, "node_id", str),
            node_name=_typed(own, "node_name", str),
            kubernetes_node_uid=_optional(own, "node_uid"),
            boot_id=_optional(own, "boot_id"),
            linux_boot_id=_optional(own, "linux_boot_id"),
            cohort=_typed(own, "cohort", str),
            tenant=_typed(own, "tenant", str),
            baseline=None
            if baseline is None
            else BaselineRef(
                _typed(baseline, "name", str), _typed(baseline, "version", str), _typed(baseline, "sha256", str)
            ),
            policy_stale=_typed(own, "policy_stale", bool),
            evidence_sha256=_optional(own, "evidence_sha256"),
            binding_key=None if cnf is None else {str(k): str(v) for k, v in cnf["jwk"].items()},
            ak_public=_optional(own, "ak_public"),
            reasons=tuple(_object(reason) for reason in own["reasons"]),
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise MalformedEvidence(ReasonCode.RESULT_MALFORMED, "result", type(error).__name__) from error
    _require_consistent(result)
    return result


def _object(value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise TypeError("no object")
    return value


def _sequence(own: Mapping[str, Any]) -> int:
    sequence: int = _typed(own, "seq", int)
    if not 0 <= sequence <= MAX_SEQUENCE:
        raise ValueError("seq")
    return sequence


def _require_consistent(result: AttestationResult) -> None:
    if not result.submodules:
        raise MalformedEvidence(ReasonCode.RESULT_MALFORMED, "submods", "empty", "at least one submodule")
    parts = tuple(part.verdict for part in result.submodules.values())
    # Attack: a verdict that its own parts do not support, where a reader looks only at the top.
    if worst((*parts, result.verdict)) != result.verdict:
        raise MalformedEvidence(ReasonCode.RESULT_MALFORMED, "status", result.verdict.value, "no better than its parts")


def _submodule(part: Mapping[str, Any], names: _Names) -> Submodule:
    vector = {str(claim): value for claim, value in part[names.vector].items()}
    if not vector or not all(type(value) is int for value in vector.values()):
        raise MalformedEvidence(ReasonCode.RESULT_MALFORMED, "trustworthiness-vector", None, "integers, at least one")
    verdict = _verdict(part[names.status])
    tiers = tuple(tier_of(value) for value in vector.values())
    claimed = tuple(tier for tier in tiers if tier is not Verdict.NONE)
    # Attack: a vector of which every entry says that nothing was claimed (0, 1, -1) supports no good verdict.
    if worst((*(claimed or (Verdict.NONE,)), verdict)) != verdict:
        raise MalformedEvidence(
            ReasonCode.RESULT_MALFORMED, "submods.status", verdict.value, "no better than its vector"
        )
    return Submodule(verdict, vector)


def _verdict(value: object) -> Verdict:
    if isinstance(value, str):
        return Verdict(value)
    for verdict, tier in TIER_VALUE.items():
        if type(value) is int and value == tier:
            return verdict
    raise ValueError("no tier")


def _typed(fields: Mapping[str, Any], name: str, kind: type) -> Any:
    value = fields[name]
    if type(value) is not kind:
        raise TypeError(name)
    return value


def _optional(fields: Mapping[str, Any], name: str) -> str | None:
    value = fields[name]
    if value is not None and type(value) is not str:
        raise TypeError(name)
    return value
