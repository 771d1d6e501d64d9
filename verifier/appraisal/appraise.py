"""From verified evidence to a verdict: every applicable baseline version judges the whole, and one must be satisfied.

No union of versions: two versions that each list half of a combination accept none of it. Verdicts follow AR4SI tiers.
Where no baseline applies the verdict is `none`, which admits nothing: nobody has said what this node should look like,
so there is nothing to affirm and nothing to contradict.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from weakref import ref

from policies.compiler import CompiledBaseline, manufacturer_text
from verifier.appraisal.authenticate import AuthenticBundle
from verifier.appraisal.boot_checks import MAX_FAILURES, judge_boot
from verifier.appraisal.boot_facts import MeasuredBoot
from verifier.appraisal.context import EkEndorsement, LastSeen
from verifier.appraisal.vectors import submodules_of
from verifier.appraisal.verify import VerifiedBundle
from verifier.wire.binding import boot_id
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure
from verifier.wire.result import BaselineRef, Submodule, Verdict, worst

DEFAULT_MAX_AGE_SECONDS = 300
"""How long a verdict lasts that no baseline made; a baseline sets its own, at most ten minutes."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One baseline version that was evaluated whole, and everything that it found wrong."""

    baseline: BaselineRef
    failures: tuple[Failure, ...]


@dataclass(frozen=True, slots=True)
class Appraisal:
    """The verdict on one piece of authentic evidence, and all that the result and the store need of it.

    `baseline` is the one that was satisfied, else None, and `not_after` its own end; `failures` are those of the first
    of `candidates`, which come closest first. `seen` is what this quote showed; the store keeps the later of it and
    what it has. `evidence_sha256` is of the quote's TPMS_ATTEST, which covers all other evidence.
    """

    verdict: Verdict
    submodules: Mapping[str, Submodule]
    failures: tuple[Failure, ...]
    baseline: BaselineRef | None
    candidates: tuple[Candidate, ...]
    max_age_seconds: int
    not_after: int | None
    boot_id: str
    seen: LastSeen
    linux_boot_id: str | None
    binding_key_jwk: Mapping[str, str] | None
    evidence_sha256: str


def appraise(verified: VerifiedBundle, baselines: tuple[CompiledBaseline, ...], now: int) -> Appraisal:
    """The verdict on `verified` by those of `baselines` that apply to the node's tenant and cohort, at time `now`.

    `affirming` if one version is satisfied as a whole (the newest such is named); `contraindicated` if none is; `none`
    with `baseline-none` if none applies. Rules of one version, all evaluated: validity, bank and PCRs, TPM, boot log.
    """
    node = verified.authentic.node
    judged = [
        (_judge(verified, baseline, now), baseline)
        for baseline in baselines
        if baseline.applies_to(node.tenant, node.cohort)
    ]
    if not judged:
        seen = f"tenant {node.tenant}, cohort {node.cohort}"
        return _appraisal(verified, (Failure(ReasonCode.BASELINE_NONE, "baseline", seen),), None, ())
    if len(judged) > 1:
        # Closest first: fewest failures, then newest.
        judged.sort(key=lambda entry: (-len(entry[0]), _release(entry[1])), reverse=True)
    candidates = tuple(Candidate(_reference(baseline), failures) for failures, baseline in judged)
    failures, closest = judged[0]
    return _appraisal(verified, failures, closest, candidates)


def rejected(authentic: AuthenticBundle, failure: Failure) -> Appraisal:
    """The verdict on evidence that the node signed and that does not hold together: `contraindicated` for `failure`.

    It names no binding key: nothing may be released on the strength of such evidence.
    """
    return _assemble(authentic, (failure,), None, None, (), None)


def _judge(verified: VerifiedBundle, baseline: CompiledBaseline, now: int) -> tuple[Failure, ...]:
    failures: list[Failure] = []
    if now < baseline.not_before:
        failures.append(
            Failure(ReasonCode.BASELINE_NOT_YET_VALID, "baseline.notBefore", None, str(baseline.not_before))
        )
    if now >= baseline.expires:
        failures.append(Failure(ReasonCode.BASELINE_EXPIRED, "baseline.expires", str(now), str(baseline.expires)))
    failures += _coverage(verified, baseline)
    failures += _tpm(verified.authentic.node.endorsement, baseline)
    # A fact counts only if the baseline requires its PCR: what is not required, the log may leave out unnoticed.
    usable = verified.replayed & baseline.required_pcrs
    return (*failures, *_boot_failures(verified.boot, usable, baseline))[:MAX_FAILURES]


def _coverage(verified: VerifiedBundle, baseline: CompiledBaseline) -> list[Failure]:
    """The quote covers the baseline's PCRs in its bank, and the log accounts for them."""
    if verified.boot.bank != baseline.pcr_bank or not baseline.required_pcrs <= verified.authentic.pcrs.keys():
        seen = f"{verified.boot.bank} {sorted(verified.authentic.pcrs)}"
        wanted = f"{baseline.pcr_bank} {sorted(baseline.required_pcrs)}"
        return [Failure(ReasonCode.PCR_SELECTION_MISMATCH, "quote.selection", seen, wanted)]
    return [failure for pcr, failure in verified.unreplayed.items() if pcr in baseline.required_pcrs]


def _tpm(endorsement: EkEndorsement, baseline: CompiledBaseline) -> list[Failure]:
    if baseline.ek_chain_required and endorsement.chain != "verified":
        return [Failure(ReasonCode.TPM_UNENDORSED, "tpm.ek_chain", endorsement.chain, "verified")]
    if baseline.manufacturers is None:
        return []
    named = endorsement.manufacturer
    # As compiled rules spell it; an older row of the store may not.
    if named is not None and (named in baseline.manufacturers or manufacturer_text(named) in baseline.manufacturers):
        return []
    wanted = ", ".join(sorted(baseline.manufacturers))
    return [Failure(ReasonCode.TPM_MANUFACTURER_NOT_ALLOWED, "tpm.manufacturer", named, wanted)]


_JudgementKey = tuple[int, int, frozenset[int]]
_Judgement = tuple["ref[MeasuredBoot]", "ref[CompiledBaseline]", tuple[Failure, ...]]


class _BootJudgements:
    """Results of `judge_boot`, which is pure, for the very objects that it was asked about.

    A node's boot does not change between reboots, so the steady state judges the same facts by the same baseline again
    and again. Keyed by identity, and an entry goes with its objects: it keeps no boot that nothing else keeps.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: dict[_JudgementKey, _Judgement] = {}

    def __call__(self, boot: MeasuredBoot, usable: frozenset[int], baseline: CompiledBaseline) -> tuple[Failure, ...]:
        key = (id(boot), id(baseline), usable)
        known = self._known.get(key)
        if known is not None and known[0]() is boot and known[1]() is baseline:
            return known[2]
        failures = judge_boot(boot.facts, usable, baseline)
        if len(self._known) >= self._limit:
            self._known.clear()

        def forget(_: object) -> None:
            self._known.pop(key, None)

        self._known[key] = (ref(boot, forget), ref(baseline, forget), failures)
        return failures


_boot_failures = _BootJudgements(limit=4096)


def _release(baseline: CompiledBaseline) -> tuple[tuple[int, ...], str]:
    return tuple(int(part) for part in baseline.version.split(".")), baseline.name


@lru_cache(maxsize=4096)
def _reference(baseline: CompiledBaseline) -> BaselineRef:
    return BaselineRef(baseline.name, baseline.version, baseline.sha256)


def _appraisal(
    verified: VerifiedBundle,
    failures: tuple[Failure, ...],
    baseline: CompiledBaseline | None,
    candidates: tuple[Candidate, ...],
) -> Appraisal:
    key = verified.binding_key
    return _assemble(
        verified.authentic, failures, None if key is None else key.jwk, baseline, candidates, verified.boot
    )


def _assemble(
    authentic: AuthenticBundle,
    failures: tuple[Failure, ...],
    jwk: Mapping[str, str] | None,
    baseline: CompiledBaseline | None,
    candidates: tuple[Candidate, ...],
    boot: MeasuredBoot | None,
) -> Appraisal:
    clock = authentic.quote.clock
    facts = authentic.parsed.host_facts
    parts = submodules_of(failures, authentic.node.endorsement, judged=baseline is not None or boot is None)
    return Appraisal(
        verdict=worst(tuple(part.verdict for part in parts.values())),
        submodules=parts,
        failures=failures,
        baseline=None if baseline is None or failures else _reference(baseline),
        candidates=candidates,
        max_age_seconds=DEFAULT_MAX_AGE_SECONDS if baseline is None else baseline.max_age_seconds,
        not_after=None if baseline is None or failures else baseline.expires,
        boot_id=boot_id(authentic.names.ak_name, clock.reset_count, clock.restart_count),
        seen=LastSeen(clock.reset_count, clock.restart_count, clock.clock_ms),
        linux_boot_id=None if facts is None else facts.claimed_linux_boot_id,
        binding_key_jwk=jwk,
        evidence_sha256=hashlib.sha256(authentic.quote.raw).hexdigest(),
    )
