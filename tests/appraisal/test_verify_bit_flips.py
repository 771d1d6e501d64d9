"""One bit changed anywhere in signed or quoted evidence: refused, with a code, and never with another error.

PCR values are flipped in test_verify.py (check 9), the binding key's certificate in test_verify_binding_key.py.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.forge import baselines
from tests.forge.evidence import NOW, VERIFIER_ID, ForgedEvidence, accepted, forged_node, vm_log
from tests.forge.keys import AkKind
from verifier.appraisal.appraise import appraise
from verifier.appraisal.authenticate import authenticate
from verifier.appraisal.boot import measure_boot
from verifier.appraisal.boot_facts import BootFacts
from verifier.appraisal.verify import verify
from verifier.evidence.parse import parse_bundle
from verifier.wire.bundle import EvidenceBundle, TpmQuote
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Refusal
from verifier.wire.result import Verdict


def _flipped(content: bytes, position: int, bit: int = 0) -> bytes:
    return content[:position] + bytes([content[position] ^ (1 << bit)]) + content[position + 1 :]


def _refused(bundle: EvidenceBundle, evidence: ForgedEvidence) -> ReasonCode:
    with pytest.raises(Refusal) as caught:
        authenticate(parse_bundle(bundle), evidence.node.enrolled, evidence.challenge, VERIFIER_ID, None)
    return caught.value.code


def _with_quote(bundle: EvidenceBundle, quote: TpmQuote) -> EvidenceBundle:
    return replace(bundle, items=(quote, *bundle.items[1:]))


@pytest.mark.parametrize("ak", ["p-256", "rsa-2048"])
@pytest.mark.parametrize("bit", [0, 7])
def test_every_byte_of_the_quote_and_its_signature_matters(ak: AkKind, bit: int) -> None:
    evidence = accepted(node=forged_node("rsa-2048", ak))
    bundle = evidence.bundle()
    quote = bundle.items[0]
    assert isinstance(quote, TpmQuote)
    for position in range(len(quote.attest)):
        changed = replace(quote, attest=_flipped(quote.attest, position, bit))
        assert _refused(_with_quote(bundle, changed), evidence) in {
            ReasonCode.QUOTE_NOT_TPM_GENERATED,
            ReasonCode.QUOTE_TYPE_WRONG,
            ReasonCode.ATTEST_MALFORMED,
            ReasonCode.QUOTE_SIGNATURE_INVALID,
        }, position
    for position in range(len(quote.signature)):
        changed = replace(quote, signature=_flipped(quote.signature, position, bit))
        assert _refused(_with_quote(bundle, changed), evidence) in {
            ReasonCode.SIGNATURE_MALFORMED,
            ReasonCode.QUOTE_SCHEME_MISMATCH,
            ReasonCode.QUOTE_SIGNATURE_INVALID,
        }, position


def test_every_byte_of_every_other_item_is_bound_by_the_quote() -> None:
    evidence = replace(accepted(), log=vm_log()[:400])
    bundle = evidence.bundle()
    for index, item in enumerate(bundle.items[1:], start=1):
        for field in ("log", "public", "certify", "certify_signature", "body"):
            body = getattr(item, field, None)
            if not isinstance(body, bytes):
                continue
            for position in range(len(body)):
                change: dict[str, bytes] = {field: _flipped(body, position)}
                altered = replace(item, **change)  # type: ignore[arg-type] # fields of bytes only
                changed = replace(bundle, items=(*bundle.items[:index], altered, *bundle.items[index + 1 :]))
                code = _refused(changed, evidence)
                assert code is ReasonCode.QUOTE_BINDING_MISMATCH or code in {
                    ReasonCode.PUBLIC_AREA_MALFORMED,
                    ReasonCode.ATTEST_MALFORMED,
                    ReasonCode.QUOTE_NOT_TPM_GENERATED,
                    ReasonCode.QUOTE_TYPE_WRONG,
                    ReasonCode.BINDING_KEY_CERTIFY_MISMATCH,
                    ReasonCode.SIGNATURE_MALFORMED,
                    ReasonCode.HOST_FACTS_MALFORMED,
                }, (field, position)


def _unvouched(facts: BootFacts) -> BootFacts:
    """The facts without what is only ever a hint: those no rule reads."""
    return replace(
        facts,
        firmware=replace(
            facts.firmware, blobs=tuple(replace(b, claimed_name=None, event_type="") for b in facts.firmware.blobs)
        ),
        images=tuple(replace(image, claimed_path=None, role="image") for image in facts.images),
        files=tuple(replace(file, claimed_name=None, claimed_role="other") for file in facts.files),
        mok=tuple(replace(measurement, claimed_name=None) for measurement in facts.mok),
    )


def test_a_boot_log_edited_before_the_quote_is_refused_or_changes_no_fact() -> None:
    """Root on the node edits the log and quotes over it: every byte of it, against the PCRs that were measured."""
    evidence = accepted()
    log = vm_log()
    genuine = measure_boot(log, "sha256")
    authentic = authenticate(
        parse_bundle(evidence.bundle()), evidence.node.enrolled, evidence.challenge, VERIFIER_ID, None
    )
    untouched = 0
    for position in range(len(log)):
        try:
            edited = measure_boot(_flipped(log, position, position % 8), "sha256")
            # The quote of an edited log differs in its binding only, which the flips above are about.
            relabelled = replace(edited, log_sha256=genuine.log_sha256, size=genuine.size)
            verified = verify(authentic, relabelled, None)
        except Refusal:
            continue
        appraisal = appraise(verified, (baselines.good(),), NOW)
        if appraisal.verdict is not Verdict.AFFIRMING:
            continue
        untouched += 1
        assert _unvouched(edited.facts) == _unvouched(genuine.facts), position
    # SHA-1 digests, paths and names are what no SHA-256 PCR vouches for: well under half of a log.
    assert untouched < len(log) // 2
