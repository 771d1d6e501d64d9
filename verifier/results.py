"""From an appraisal, or the end of trust in a node, to the signed result that is stored and streamed."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic_core import to_json

from verifier.appraisal.appraise import Appraisal
from verifier.settings import MAX_RESULT_SECONDS, Settings
from verifier.steady_claims import SteadyClaims
from verifier.store.ports import NodeRecord, NonceState, SignedResult
from verifier.tokens import Signer
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure
from verifier.wire.result import RESULT_TYPE, AttestationResult, Submodule, Verdict, result_claims, worst

BUILD = "nodewarden 0.1.0"

_CONTRAINDICATED_IDENTITY = 96
"""AR4SI instance-identity: recognised and not trustworthy."""


@dataclass(frozen=True, slots=True)
class Signed:
    """A result with its signature, ready to be stored and answered."""

    stored: SignedResult
    reasons: tuple[dict[str, str | int | None], ...]


class ResultMaker:
    """Makes and signs results for one verifier."""

    def __init__(self, settings: Settings, signer: Signer) -> None:
        self._issuer = settings.issuer
        self._audience = settings.audience
        self._profile = settings.eat_profile
        self._signer = signer
        self._steady = SteadyClaims()

    def attested(
        self, node: NodeRecord, ak_public: str, appraisal: Appraisal, nonce: NonceState, uid: str | None, now_ms: int
    ) -> Signed:
        """The result of `appraisal`, which ends at nonce issue + min(the baseline's maximum age, ten minutes),
        and never after the baseline itself.

        A node that nobody admitted yet gets no better than `none`, whatever it proved.
        """
        verdict, submodules, failures = appraisal.verdict, appraisal.submodules, appraisal.failures
        if node.state != "admitted":
            verdict = worst((verdict, Verdict.NONE))
            failures = (*failures, Failure(ReasonCode.NODE_NOT_ADMITTED, "node.state", node.state, "admitted"))
        sequence = next_sequence(nonce.previous_sequence, now_ms)
        expires_at = nonce.issued_at + min(appraisal.max_age_seconds, MAX_RESULT_SECONDS)
        if appraisal.not_after is not None:
            expires_at = min(expires_at, appraisal.not_after)
        steady = None if failures else self._steady.find(node, ak_public, appraisal, uid)
        if steady is not None:
            payload = steady.payload(now_ms // 1000, expires_at, sequence, appraisal.evidence_sha256)
            token = self._signer.sign_payload(payload, RESULT_TYPE)
            stored = SignedResult(sequence, verdict.value, now_ms // 1000, expires_at, token, steady.explanation, uid)
            return Signed(stored, ())
        reasons = tuple(failure.as_json() for failure in failures)
        result = AttestationResult(
            issuer=self._issuer,
            audience=self._audience,
            issued_at=now_ms // 1000,
            expires_at=expires_at,
            sequence=sequence,
            verdict=verdict,
            submodules=submodules,
            node_id=node.node_id,
            node_name=node.node_name,
            kubernetes_node_uid=uid,
            boot_id=appraisal.boot_id,
            linux_boot_id=appraisal.linux_boot_id,
            cohort=node.cohort,
            tenant=node.tenant,
            baseline=appraisal.baseline,
            policy_stale=False,
            evidence_sha256=appraisal.evidence_sha256,
            binding_key=appraisal.binding_key_jwk,
            ak_public=ak_public,
            reasons=reasons,
        )
        why = explanation(appraisal)
        if not failures:
            claims = result_claims(result, self._profile, BUILD)
            self._steady.put(node, ak_public, appraisal, uid, claims, why)
        return Signed(self._sign(result, why), reasons)

    def void(self, node: NodeRecord, previous_sequence: int, code: ReasonCode, now_ms: int) -> SignedResult:
        """The result that ends trust in `node` for `code`.

        It lives as long as any result that it supersedes may: a relying party that drops expired results must not
        drop this one first.
        """
        revoked = code is ReasonCode.NODE_REVOKED
        verdict = Verdict.CONTRAINDICATED if revoked else Verdict.NONE
        identity = _CONTRAINDICATED_IDENTITY if revoked else 0
        result = AttestationResult(
            issuer=self._issuer,
            audience=self._audience,
            issued_at=now_ms // 1000,
            expires_at=now_ms // 1000 + MAX_RESULT_SECONDS,
            sequence=next_sequence(previous_sequence, now_ms),
            verdict=verdict,
            submodules={"tpm": Submodule(verdict, {"instance-identity": identity})},
            node_id=node.node_id,
            node_name=node.node_name,
            kubernetes_node_uid=node.kubernetes_node_uid,
            boot_id=None,
            linux_boot_id=None,
            cohort=node.cohort,
            tenant=node.tenant,
            baseline=None,
            policy_stale=False,
            evidence_sha256=None,
            binding_key=None,
            ak_public=None,
            reasons=(Failure(code, "node").as_json(),),
        )
        return self._sign(result, "[]")

    def _sign(self, result: AttestationResult, why: str) -> SignedResult:
        return SignedResult(
            sequence=result.sequence,
            verdict=result.verdict.value,
            issued_at=result.issued_at,
            expires_at=result.expires_at,
            token=self._signer.sign(result_claims(result, self._profile, BUILD), RESULT_TYPE),
            explanation=why,
            kubernetes_node_uid=result.kubernetes_node_uid,
        )


def next_sequence(previous: int, now_ms: int) -> int:
    """The next sequence number: a database restored from a backup never repeats one that was given out."""
    return max(previous + 1, now_ms)


def explanation(appraisal: Appraisal) -> str:
    """JSON of every baseline version that was tried and what it failed, for `nodes explain`."""
    return to_json(
        [
            {
                "baseline": candidate.baseline.name,
                "version": candidate.baseline.version,
                "sha256": candidate.baseline.sha256,
                "failures": [failure.as_json() for failure in candidate.failures],
            }
            for candidate in appraisal.candidates
        ]
    ).decode()
