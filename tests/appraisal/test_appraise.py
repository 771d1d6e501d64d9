"""Verdicts on genuine boots: what a baseline accepts, what it refuses and under which code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from policies.compiler import CompiledBaseline
from tests.forge import baselines
from tests.forge.evidence import NOW, VERIFIER_ID, ForgedEvidence, accepted, challenge_for, forged_node, measured
from verifier.appraisal.appraise import DEFAULT_MAX_AGE_SECONDS, Appraisal, appraise, rejected
from verifier.appraisal.authenticate import authenticate
from verifier.appraisal.boot_facts import BootImage, CommandLine, MeasuredBoot, Origin
from verifier.appraisal.context import EkEndorsement, LastSeen
from verifier.appraisal.verify import VerifiedBundle, verify
from verifier.evidence.parse import parse_bundle
from verifier.wire.challenge import DEFAULT_PCRS
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure
from verifier.wire.result import (
    PROFILE_DEPLOYED,
    PROFILE_WORKING_GROUP,
    AttestationResult,
    Verdict,
    result_claims,
    result_from_claims,
)

Change = Callable[[dict[str, Any]], object]


def _verified(evidence: ForgedEvidence, boot: MeasuredBoot | None = None) -> VerifiedBundle:
    parsed = parse_bundle(evidence.bundle())
    authentic = authenticate(parsed, evidence.node.enrolled, evidence.challenge, VERIFIER_ID, None)
    assert evidence.log is not None
    return verify(authentic, measured(evidence.log) if boot is None else boot, None)


def _appraise(
    evidence: ForgedEvidence, *changes: Change, now: int = NOW, boot: MeasuredBoot | None = None
) -> Appraisal:
    changed = baselines.document()
    for change in changes:
        change(changed)
    appraisal = appraise(_verified(evidence, boot), (baselines.compiled(changed),), now)
    _assert_consistent(appraisal)
    return appraisal


def _assert_consistent(appraisal: Appraisal) -> None:
    """A relying party decodes the result in both dialects: top, parts and vectors agree."""
    result = AttestationResult(
        "iss", "aud", 1, 2, 3, appraisal.verdict, appraisal.submodules, "a" * 64, "n", None, appraisal.boot_id,
        appraisal.linux_boot_id, "c", "t", appraisal.baseline, False, appraisal.evidence_sha256,
        appraisal.binding_key_jwk, None, tuple(failure.as_json() for failure in appraisal.failures),
    )  # fmt: skip
    for profile in (PROFILE_DEPLOYED, PROFILE_WORKING_GROUP):
        assert result_from_claims(result_claims(result, profile, "test")) == result


def _codes(appraisal: Appraisal) -> list[ReasonCode]:
    return [failure.code for failure in appraisal.failures]


def _boot_set(changed: dict[str, Any]) -> dict[str, Any]:
    boot_set: dict[str, Any] = changed["bootSets"][0]
    return boot_set


def _cmdline(**rules: list[str]) -> Change:
    return lambda changed: _boot_set(changed)["cmdline"].update(rules)


def test_a_boot_as_the_baseline_says_is_affirmed() -> None:
    appraisal = _appraise(accepted())
    assert appraisal.verdict is Verdict.AFFIRMING
    assert appraisal.failures == ()
    assert appraisal.baseline is not None
    assert appraisal.baseline.sha256 == baselines.good().sha256
    assert appraisal.max_age_seconds == 300
    assert appraisal.seen == LastSeen(3, 0, 10_000)
    assert dict(appraisal.submodules["tpm"].vector) == {"instance-identity": 2, "hardware": 2}
    assert dict(appraisal.submodules["boot"].vector) == {"executables": 3, "configuration": 2}
    assert appraisal.binding_key_jwk is not None


def test_without_a_baseline_for_the_node_the_verdict_is_none() -> None:
    for change in (
        lambda changed: changed["appliesTo"].update(tenants=["other"]),
        lambda changed: changed["appliesTo"].update(cohorts=["prod"]),
    ):
        appraisal = _appraise(accepted(), change)
        assert appraisal.verdict is Verdict.NONE
        assert _codes(appraisal) == [ReasonCode.BASELINE_NONE]
        assert appraisal.baseline is None
        assert appraisal.max_age_seconds == DEFAULT_MAX_AGE_SECONDS
    appraisal = appraise(_verified(accepted()), (), NOW)
    assert appraisal.verdict is Verdict.NONE
    _assert_consistent(appraisal)


def test_a_tpm_known_by_its_key_only_makes_no_claim_on_the_hardware() -> None:
    evidence = accepted()
    enrolled = replace(evidence.node.enrolled, endorsement=EkEndorsement("none", None, None, None))
    changed = replace(evidence, node=replace(evidence.node, enrolled=enrolled))
    appraisal = _appraise(changed, lambda document: document.update(tpm={"ekChain": "inventory"}))
    assert appraisal.verdict is Verdict.AFFIRMING
    assert appraisal.submodules["tpm"].vector["hardware"] == 0
    assert _codes(_appraise(changed)) == [ReasonCode.TPM_UNENDORSED]
    assert _appraise(changed).submodules["tpm"].verdict is Verdict.CONTRAINDICATED


REFUSALS: dict[str, tuple[Change, list[ReasonCode]]] = {
    "another manufacturer": (
        lambda d: d["tpm"].update(manufacturers=[{"id": "INTC"}]),
        [ReasonCode.TPM_MANUFACTURER_NOT_ALLOWED],
    ),
    "a baseline of tomorrow": (
        lambda d: d["metadata"].update(notBefore="2026-12-01T00:00:00Z"),
        [ReasonCode.BASELINE_NOT_YET_VALID],
    ),
    "a baseline of yesterday": (
        lambda d: d["metadata"].update(expires="2026-11-02T00:00:00Z"),
        [ReasonCode.BASELINE_EXPIRED],
    ),
    "a PCR that was not quoted": (
        lambda d: d["evidence"]["requirePcrReplay"].append(11),
        [ReasonCode.PCR_SELECTION_MISMATCH],
    ),
    "an authority that is not listed": (
        lambda d: d["secureBoot"].update(authorities=[baselines.MICROSOFT_CA]),
        [ReasonCode.SECURE_BOOT_AUTHORITY_UNTRUSTED],
    ),
    "a revocation that is missing": (
        lambda d: d["secureBoot"].update(dbxRequired=["ab" * 32]),
        [ReasonCode.SECURE_BOOT_DBX_OUTDATED],
    ),
    "another firmware version": (
        lambda d: d["firmware"]["allow"][0].update(version="1.2"),
        [ReasonCode.FIRMWARE_NOT_ALLOWED],
    ),
    "another firmware volume": (
        lambda d: d["firmware"]["allow"][0].update(blobs=[baselines.OVMF_BLOBS[0]]),
        [ReasonCode.FIRMWARE_NOT_ALLOWED],
    ),
    "another kernel": (
        lambda d: _boot_set(d)["images"][2].update(authenticode=["ab" * 32]),
        [ReasonCode.BOOT_IMAGE_NOT_ALLOWED],
    ),
    "loaders in another order": (
        lambda d: _boot_set(d)["images"].insert(0, _boot_set(d)["images"].pop(1)),
        [ReasonCode.BOOT_IMAGE_NOT_ALLOWED] * 2,
    ),
    "an image more than listed": (
        lambda d: _boot_set(d)["images"].pop(0),
        [ReasonCode.BOOT_IMAGE_NOT_ALLOWED] * 3,
    ),
    "an image less than listed": (
        lambda d: _boot_set(d)["images"].append({"role": "kernel", "authenticode": ["ab" * 32]}),
        [ReasonCode.BOOT_IMAGE_MISSING],
    ),
    "another initrd": (
        lambda d: _boot_set(d).update(files=[baselines.KERNEL_FILE, baselines.GRUB_CONFIG]),
        [ReasonCode.BOOT_FILE_NOT_ALLOWED],
    ),
    "another list of shim's": (
        lambda d: _boot_set(d)["mok"].__setitem__(0, "ab" * 32),
        [ReasonCode.MOK_NOT_ALLOWED],
    ),
    "a list of shim's more than listed": (lambda d: _boot_set(d)["mok"].pop(), [ReasonCode.MOK_NOT_ALLOWED]),
    "a list of shim's less than listed": (
        lambda d: _boot_set(d)["mok"].append(baselines.MOK_LIST_TRUSTED),
        [ReasonCode.MOK_NOT_ALLOWED],
    ),
    "shim's lists in another order": (
        lambda d: _boot_set(d)["mok"].insert(0, _boot_set(d)["mok"].pop(1)),
        [ReasonCode.MOK_NOT_ALLOWED] * 2,
    ),
    "shim where none is listed": (lambda d: _boot_set(d).pop("mok"), [ReasonCode.MOK_NOT_ALLOWED] * 3),
    "an argument that is not allowed": (
        lambda d: _boot_set(d)["cmdline"].update(allow=["console=ttyS0", "loglevel=4", "rootfstype=ramfs", "panic=1"]),
        [ReasonCode.CMDLINE_ARGUMENT_NOT_ALLOWED],
    ),
    "a required argument that is missing": (
        lambda d: _boot_set(d)["cmdline"]["require"].append("lockdown=integrity"),
        [ReasonCode.CMDLINE_ARGUMENT_MISSING],
    ),
    "an argument of an ignored key that nothing ignores": (
        lambda d: _boot_set(d)["cmdline"].update(ignoreKeys=["root"]),
        [ReasonCode.CMDLINE_ARGUMENT_NOT_ALLOWED],
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_boot_that_differs_in_one_thing_is_contraindicated_for_it(name: str) -> None:
    change, codes = REFUSALS[name]
    appraisal = _appraise(accepted(), change)
    assert appraisal.verdict is Verdict.CONTRAINDICATED
    assert _codes(appraisal) == codes
    assert appraisal.baseline is None
    assert [candidate.failures for candidate in appraisal.candidates] == [appraisal.failures]


OTHER_BOOTS: dict[str, set[ReasonCode]] = {
    "sb-on-cmdline": {
        ReasonCode.CMDLINE_ARGUMENT_FORBIDDEN,
        ReasonCode.CMDLINE_ARGUMENT_NOT_ALLOWED,
        ReasonCode.BOOT_FILE_NOT_ALLOWED,
    },
    "sb-on-initrd-tampered": {ReasonCode.BOOT_FILE_NOT_ALLOWED},
    "sb-on-kernel-backports": {ReasonCode.BOOT_IMAGE_NOT_ALLOWED, ReasonCode.BOOT_FILE_NOT_ALLOWED},
    "sb-off": {
        ReasonCode.SECURE_BOOT_OFF,
        ReasonCode.SECURE_BOOT_AUTHORITY_UNTRUSTED,
        ReasonCode.FIRMWARE_NOT_ALLOWED,
        ReasonCode.BOOT_FILE_NOT_ALLOWED,
        ReasonCode.CMDLINE_ARGUMENT_NOT_ALLOWED,
    },
}


@pytest.mark.parametrize("case", OTHER_BOOTS)
def test_a_genuine_boot_of_another_kind_is_contraindicated(case: str) -> None:
    appraisal = _appraise(accepted(case))
    assert appraisal.verdict is Verdict.CONTRAINDICATED
    assert set(_codes(appraisal)) == OTHER_BOOTS[case]


def _with_boot(change: Callable[[MeasuredBoot], MeasuredBoot]) -> Appraisal:
    evidence = accepted()
    assert evidence.log is not None
    return _appraise(evidence, boot=change(measured(evidence.log)))


def _with_secure_boot(changed: dict[str, Any]) -> Appraisal:
    return _with_boot(
        lambda boot: replace(boot, facts=replace(boot.facts, secure_boot=replace(boot.facts.secure_boot, **changed)))
    )


def _with_firmware(changed: dict[str, Any]) -> Appraisal:
    return _with_boot(
        lambda boot: replace(boot, facts=replace(boot.facts, firmware=replace(boot.facts.firmware, **changed)))
    )


def test_secure_boot_that_the_log_cannot_tell_is_unknown() -> None:
    for changed in ({"state": "unknown"}, {"setup_mode": None}):
        assert _codes(_with_secure_boot(changed)) == [ReasonCode.SECURE_BOOT_UNKNOWN]


def test_setup_mode_is_refused_even_with_secure_boot_on() -> None:
    assert _codes(_with_secure_boot({"setup_mode": True})) == [ReasonCode.SECURE_BOOT_SETUP_MODE]


@pytest.mark.parametrize(
    ("field", "code"),
    [
        ("images", ReasonCode.BOOT_IMAGE_MISSING),
        ("command_lines", ReasonCode.CMDLINE_UNKNOWN),
        ("files", ReasonCode.BOOT_FILE_NOT_ALLOWED),
    ],
)
def test_facts_that_the_log_does_not_show_fail(field: str, code: ReasonCode) -> None:
    none: dict[str, Any] = {field: ()}
    appraisal = _with_boot(lambda boot: replace(boot, facts=replace(boot.facts, **none)))
    assert set(_codes(appraisal)) == {code}


def test_firmware_that_measured_nothing_of_itself_fails() -> None:
    for changed in ({"crtm_version": None}, {"blobs": ()}):
        assert _codes(_with_firmware(changed)) == [ReasonCode.FIRMWARE_NOT_ALLOWED]


def test_a_firmware_version_that_its_digest_does_not_cover_counts_by_its_digest_only() -> None:
    evidence = accepted()
    assert evidence.log is not None
    boot = measured(evidence.log)
    version = boot.facts.firmware.crtm_version
    assert version is not None
    uncovered = replace(version, text=None, digest="cd" * 32)
    firmware = replace(boot.facts.firmware, crtm_version=uncovered)
    changed = replace(boot, facts=replace(boot.facts, firmware=firmware))
    assert _codes(_appraise(evidence, boot=changed)) == [ReasonCode.FIRMWARE_NOT_ALLOWED]
    by_digest = lambda d: d["firmware"]["allow"][0].update(versionDigest="cd" * 32)  # noqa: E731 - one change
    assert _appraise(evidence, by_digest, boot=changed).verdict is Verdict.AFFIRMING


def test_a_fact_that_nothing_vouches_for_is_not_used() -> None:
    hint = Origin(4, 99, "hint")

    def as_hint(image: BootImage) -> BootImage:
        return replace(image, origin=hint)

    appraisal = _with_boot(
        lambda boot: replace(
            boot, facts=replace(boot.facts, images=tuple(as_hint(image) for image in boot.facts.images))
        )
    )
    assert set(_codes(appraisal)) == {ReasonCode.BOOT_IMAGE_NOT_ALLOWED}


def test_facts_of_a_pcr_that_does_not_replay_are_not_used() -> None:
    evidence = accepted()
    changed = replace(evidence, pcrs={**evidence.pcrs, 8: b"\x55" * 32, 9: b"\x55" * 32})
    required = _appraise(changed)
    assert ReasonCode.PCR_REPLAY_MISMATCH in _codes(required)
    lenient = lambda d: d["evidence"].update(requirePcrReplay=[0, 1, 2, 3, 4, 5, 6, 7])  # noqa: E731 - one change
    unused = _appraise(changed, lenient)
    assert set(_codes(unused)) == {
        ReasonCode.CMDLINE_UNKNOWN,
        ReasonCode.BOOT_FILE_NOT_ALLOWED,
        ReasonCode.MOK_NOT_ALLOWED,
    }


@pytest.mark.parametrize(
    ("pcr", "code"),
    [
        (8, ReasonCode.CMDLINE_UNKNOWN),
        (9, ReasonCode.BOOT_FILE_NOT_ALLOWED),
        (14, ReasonCode.MOK_NOT_ALLOWED),
    ],
)
def test_a_fact_of_a_pcr_that_the_baseline_does_not_require_is_not_used(pcr: int, code: ReasonCode) -> None:
    """A log could leave events of it out, and nothing else would show them."""
    without = lambda d: d["evidence"]["requirePcrReplay"].remove(pcr)  # noqa: E731 - one change
    assert set(_codes(_appraise(accepted(), without))) == {code}


def test_a_higher_pcr_that_the_baseline_does_not_need_may_hold_later_measurements() -> None:
    evidence = accepted(challenge=challenge_for(forged_node(), pcrs=(*DEFAULT_PCRS, 15)))
    changed = replace(evidence, pcrs={**evidence.pcrs, 15: b"\x55" * 32})
    with_15 = lambda d: d["evidence"]["requirePcrReplay"].append(15)  # noqa: E731 - one change
    assert _codes(_appraise(changed, with_15)) == [ReasonCode.PCR_WITHOUT_EVENTS]
    assert _appraise(changed).verdict is Verdict.AFFIRMING


def _line(text: str | None, source: Any = "grub", coverage: Any = "covered", digest: str = "ef" * 32) -> CommandLine:
    return CommandLine(text, digest, source, Origin(8, 44, coverage))


def _with_line(line: CommandLine, *changes: Change) -> Appraisal:
    evidence = accepted()
    assert evidence.log is not None
    boot = measured(evidence.log)
    return _appraise(evidence, *changes, boot=replace(boot, facts=replace(boot.facts, command_lines=(line,))))


@pytest.mark.parametrize(
    "text",
    [
        "/vmlinuz ima_policy=tcb",
        "/vmlinuz  ima-policy=tcb\tconsole=ttyS0 ",
        "/vmlinuz ima_policy=tcb panic=1 panic=1",
        "/boot/other\nima_policy=tcb",
    ],
)
def test_a_command_line_is_read_as_the_kernel_reads_it(text: str) -> None:
    assert _with_line(_line(text)).verdict is Verdict.AFFIRMING


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("/vmlinuz", [ReasonCode.CMDLINE_ARGUMENT_MISSING]),
        ("/vmlinuz ima_policy=tcbx", [ReasonCode.CMDLINE_ARGUMENT_NOT_ALLOWED, ReasonCode.CMDLINE_ARGUMENT_MISSING]),
        ("/vmlinuz xima_policy=tcb", [ReasonCode.CMDLINE_ARGUMENT_NOT_ALLOWED, ReasonCode.CMDLINE_ARGUMENT_MISSING]),
        ("/vmlinuz ima_policy=tcb ima-appraise=off", [ReasonCode.CMDLINE_ARGUMENT_FORBIDDEN]),
        ("/vmlinuz ima_policy=tcb init=/bin/sh", [ReasonCode.CMDLINE_ARGUMENT_FORBIDDEN]),
        ("/vmlinuz ima_policy=tcb init", [ReasonCode.CMDLINE_ARGUMENT_FORBIDDEN]),
        ("/vmlinuz ima_policy=tcb -- rescue", [ReasonCode.CMDLINE_ARGUMENT_NOT_ALLOWED] * 2),
        ("/vmlinuz ima_policy=tcb quiet", [ReasonCode.CMDLINE_ARGUMENT_NOT_ALLOWED]),
        ("/vmlinuz\tinit=/bin/sh ima_policy=tcb", [ReasonCode.CMDLINE_ARGUMENT_FORBIDDEN]),
        ("/vmlinuz\xa0init=/bin/sh ima_policy=tcb", [ReasonCode.CMDLINE_ARGUMENT_FORBIDDEN]),
        ('"/vmlinuz init=/bin/sh" ima_policy=tcb', [ReasonCode.CMDLINE_ARGUMENT_NOT_ALLOWED]),
        ('/vmlinuz"x\ty" ima_policy=tcb', [ReasonCode.CMDLINE_ARGUMENT_NOT_ALLOWED]),
        ("/vmlinuz\x00x ima_policy=tcb", [ReasonCode.CMDLINE_ARGUMENT_NOT_ALLOWED]),
        ("/vmlinuz ima_policy=tcb BOOT_IMAGE=a\u2028b", [ReasonCode.CMDLINE_ARGUMENT_NOT_ALLOWED]),
        ("/vmlinuz " + "x" * 9000, [ReasonCode.CMDLINE_UNKNOWN]),
    ],
)
def test_a_command_line_outside_the_grammar_is_refused(text: str, codes: list[ReasonCode]) -> None:
    assert _codes(_with_line(_line(text))) == codes


def test_a_hostile_command_line_gives_a_bounded_number_of_reasons() -> None:
    assert len(_with_line(_line("/v " + "x " * 4000)).failures) <= 64


def test_a_command_line_known_by_digest_counts_only_if_its_digest_is_listed() -> None:
    for source in ("systemd-stub", "efi-stub"):
        line = _line(None, source, "digest-only")
        assert _codes(_with_line(line)) == [ReasonCode.CMDLINE_UNKNOWN]
        assert _with_line(line, _cmdline(digests=["ef" * 32])).verdict is Verdict.AFFIRMING
    assert _codes(_with_line(_line(None, coverage="hint"), _cmdline(digests=["ef" * 32]))) == [
        ReasonCode.CMDLINE_UNKNOWN
    ]


def test_every_measured_command_line_must_fit() -> None:
    evidence = accepted()
    assert evidence.log is not None
    boot = measured(evidence.log)
    lines = (*boot.facts.command_lines, _line("init=/bin/sh", "efi-stub"))
    appraisal = _appraise(evidence, boot=replace(boot, facts=replace(boot.facts, command_lines=lines)))
    assert ReasonCode.CMDLINE_ARGUMENT_FORBIDDEN in _codes(appraisal)


def _compiled(version: str, *changes: Change) -> CompiledBaseline:
    changed = baselines.document()
    changed["metadata"]["version"] = version
    for change in changes:
        change(changed)
    return baselines.compiled(changed)


def test_versions_are_not_united() -> None:
    """Two versions that each list half of what booted accept none of it."""
    half_a = _compiled("1.0.0", lambda d: d["firmware"]["allow"][0].update(version="x"))
    half_b = _compiled("1.1.0", lambda d: _boot_set(d)["images"][2].update(authenticode=["ab" * 32]))
    appraisal = appraise(_verified(accepted()), (half_a, half_b), NOW)
    assert appraisal.verdict is Verdict.CONTRAINDICATED
    assert [candidate.baseline.version for candidate in appraisal.candidates] == ["1.1.0", "1.0.0"]


def test_boot_sets_are_not_united() -> None:
    def split(document: dict[str, Any]) -> None:
        first = _boot_set(document)
        other = baselines.document()["bootSets"][0]
        first["images"][2]["authenticode"] = ["ab" * 32]
        other.update(id="other", files=["cd" * 32])
        document["bootSets"] = [first, other]

    assert _codes(_appraise(accepted(), split)) == [ReasonCode.BOOT_IMAGE_NOT_ALLOWED]


def test_the_newest_satisfied_version_is_named_and_a_failing_newer_one_does_not_deny() -> None:
    versions = (
        _compiled("1.9.0"),
        _compiled("1.10.0"),
        _compiled("2.0.0", lambda d: _boot_set(d)["images"][2].update(authenticode=["ab" * 32])),
    )
    appraisal = appraise(_verified(accepted()), versions, NOW)
    assert appraisal.verdict is Verdict.AFFIRMING
    assert appraisal.baseline is not None
    assert appraisal.baseline.version == "1.10.0"
    assert [c.baseline.version for c in appraisal.candidates] == ["1.10.0", "1.9.0", "2.0.0"]
    assert [bool(c.failures) for c in appraisal.candidates] == [False, False, True]


def test_the_closest_candidate_gives_the_reasons() -> None:
    far = _compiled("9.0.0", lambda d: d["firmware"]["allow"][0].update(version="x", blobs=["ab" * 32]))
    near = _compiled("1.0.0", lambda d: d["firmware"]["allow"][0].update(version="x"))
    appraisal = appraise(_verified(accepted()), (far, near), NOW)
    assert len(appraisal.failures) == 1
    assert appraisal.candidates[0].baseline.version == "1.0.0"


def test_an_appraisal_of_the_same_facts_is_the_same_and_does_not_leak_between_baselines() -> None:
    verified = _verified(accepted())
    bad = _compiled("1.0.1", lambda d: d["firmware"]["allow"][0].update(version="x"))
    for _ in range(3):
        assert appraise(verified, (baselines.good(),), NOW).verdict is Verdict.AFFIRMING
        assert appraise(verified, (bad,), NOW).verdict is Verdict.CONTRAINDICATED


def test_validity_is_judged_at_the_given_time_to_the_second() -> None:
    compiled = baselines.good()
    verified = _verified(accepted())
    verdicts = [
        appraise(verified, (compiled,), now).verdict
        for now in (compiled.not_before - 1, compiled.not_before, compiled.expires - 1, compiled.expires)
    ]
    good, bad = Verdict.AFFIRMING, Verdict.CONTRAINDICATED
    assert verdicts == [bad, good, good, bad]


REJECTED = {
    ReasonCode.COUNTER_REGRESSED: ("tpm", "instance-identity", 96),
    ReasonCode.BINDING_KEY_SIGNATURE_INVALID: ("tpm", "instance-identity", 99),
    ReasonCode.BINDING_KEY_UNSUITABLE: ("tpm", "instance-identity", 96),
    ReasonCode.BOOT_LOG_ABSENT: ("boot", "executables", 96),
    ReasonCode.PCR_REPLAY_MISMATCH: ("boot", "executables", 99),
    ReasonCode.EVENT_DIGEST_MISMATCH: ("boot", "executables", 99),
    ReasonCode.SECURE_BOOT_LOG_INCONSISTENT: ("boot", "configuration", 96),
}


@pytest.mark.parametrize("code", REJECTED)
def test_signed_evidence_that_does_not_hold_together_is_contraindicated_and_names_no_key(code: ReasonCode) -> None:
    evidence = accepted()
    parsed = parse_bundle(evidence.bundle())
    authentic = authenticate(parsed, evidence.node.enrolled, evidence.challenge, VERIFIER_ID, None)
    appraisal = rejected(authentic, Failure(code, "claim"))
    part, claim, value = REJECTED[code]
    assert appraisal.verdict is Verdict.CONTRAINDICATED
    assert appraisal.submodules[part].vector[claim] == value
    assert appraisal.binding_key_jwk is None
    assert appraisal.baseline is None
    assert appraisal.failures == (Failure(code, "claim"),)
    _assert_consistent(appraisal)


def test_the_evidence_digest_and_boot_id_follow_the_quote() -> None:
    first, second = _appraise(accepted()), _appraise(accepted(clock_ms=20_000))
    rebooted = _appraise(accepted(reset_count=4))
    assert first.evidence_sha256 != second.evidence_sha256
    assert first.boot_id == second.boot_id
    assert rebooted.boot_id != first.boot_id
    assert _appraise(accepted(node=forged_node(which=1))).boot_id != first.boot_id
