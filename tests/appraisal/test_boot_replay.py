from __future__ import annotations

import hashlib
import re
from dataclasses import replace

import pytest

from tests.evidence.logs import (
    ACTION,
    APPLICATION,
    AUTHORITY,
    BLOB,
    EFI_ACTION,
    IPL,
    SEPARATOR,
    VARIABLE,
    VM,
    Draft,
    changed,
    event,
    inserted,
    log_of,
    no_action,
    position_of,
    vm_drafts,
    vm_log,
)
from verifier.appraisal.boot import measure_boot
from verifier.appraisal.replay import MAX_FAILURES
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence

CASES = sorted(path.name for path in VM.iterdir() if path.is_dir())
DRAFTS = vm_drafts()


def _codes(log: bytes) -> set[ReasonCode]:
    return {failure.code for failure in measure_boot(log, "sha256").failures}


def _tpm_pcrs(case: str) -> dict[int, bytes]:
    """The TPM's own values, as tpm2_pcrread printed them."""
    text = (VM / case / "pcrs.yaml").read_text().split("sha256")[-1]
    return {int(pcr): bytes.fromhex(value) for pcr, value in re.findall(r"(\d+)\s*: 0x([0-9A-Fa-f]{64})", text)}


@pytest.mark.parametrize("case", CASES)
def test_a_real_log_replays_to_what_the_tpm_holds_and_contradicts_nothing(case: str) -> None:
    log = vm_log(case)
    boot = measure_boot(log, "sha256")
    tpm = _tpm_pcrs(case)
    assert boot.failures == ()
    assert boot.pcrs == {pcr: tpm[pcr] for pcr in boot.pcrs}
    assert {0, 1, 2, 3, 4, 5, 6, 7} <= set(boot.pcrs)
    assert (boot.log_sha256, boot.size, boot.bank) == (hashlib.sha256(log).digest(), len(log), "sha256")


def test_a_bank_that_the_log_lacks_gives_no_pcrs_and_a_failure() -> None:
    for bank in ("sha384", "sm3_256", "nonsense"):
        boot = measure_boot(vm_log(), bank)
        assert boot.pcrs == {}
        assert [failure.code for failure in boot.failures] == [ReasonCode.BOOT_LOG_BANK_MISSING]
        assert boot.facts.secure_boot.state == "unknown"


def test_an_event_without_a_digest_in_the_bank_is_a_failure() -> None:
    one_bank = Draft(1, 1, {"sha1": bytes(20)}, b"x")
    assert _codes(inserted(DRAFTS, 0, one_bank)) == {ReasonCode.BOOT_LOG_BANK_MISSING}


def test_a_padded_log_is_no_log_of_a_tpm() -> None:
    with pytest.raises(MalformedEvidence) as refusal:
        measure_boot(vm_log() + bytes(16), "sha256")
    assert refusal.value.code is ReasonCode.BOOT_LOG_MALFORMED


def test_pcrs_begin_at_zero_ones_or_the_locality() -> None:
    logged = log_of([no_action(b"StartupLocality\0\3"), event(0, 1, b"a"), event(16, 1, b"a"), event(17, 1, b"a")])
    digest = hashlib.sha256(b"a").digest()
    boot = measure_boot(logged, "sha256")
    assert boot.pcrs == {
        0: hashlib.sha256(bytes(31) + b"\3" + digest).digest(),
        16: hashlib.sha256(bytes(32) + digest).digest(),
        17: hashlib.sha256(b"\xff" * 32 + digest).digest(),
    }


def test_a_locality_before_the_first_measurement_is_allowed_once() -> None:
    locality = no_action(b"StartupLocality\0\3")
    assert _codes(inserted(DRAFTS, 0, locality)) == set()
    assert _codes(inserted(DRAFTS, 0, locality, locality)) == {ReasonCode.EVENT_NOT_ALLOWED}


@pytest.mark.parametrize("content", [b"StartupLocality\0\1", b"StartupLocality\0\xff"])
def test_an_unknown_locality_is_a_failure(content: bytes) -> None:
    assert _codes(inserted(DRAFTS, 0, no_action(content))) == {ReasonCode.EVENT_NOT_ALLOWED}


def test_a_locality_after_a_measurement_of_pcr_0_is_a_failure() -> None:
    assert _codes(inserted(DRAFTS, 1, no_action(b"StartupLocality\0\3"))) == {ReasonCode.EVENT_NOT_ALLOWED}


def test_a_no_action_event_with_a_digest_is_a_failure_and_extends_nothing() -> None:
    hidden = event(4, 3, b"hidden")
    boot = measure_boot(inserted(DRAFTS, 0, hidden), "sha256")
    assert [failure.code for failure in boot.failures] == [ReasonCode.EVENT_NOT_ALLOWED]
    assert boot.pcrs == measure_boot(vm_log(), "sha256").pcrs


def test_a_windows_event_without_a_pcr_extends_nothing_and_is_no_failure() -> None:
    boot = measure_boot(inserted(DRAFTS, 3, event(0xFFFFFFFF, 3, b"WBCL")), "sha256")
    assert boot.failures == ()
    assert boot.pcrs == measure_boot(vm_log(), "sha256").pcrs


@pytest.mark.parametrize(
    ("pcr", "kind", "start"),
    [
        (7, VARIABLE, b""),
        (7, AUTHORITY, b""),
        (7, SEPARATOR, b""),
        (4, EFI_ACTION, b""),
        (5, EFI_ACTION, b""),
        (5, 0x80000006, b""),
        (1, 0x80000002, b""),
        (8, IPL, b"grub_cmd: "),
        (8, IPL, b"kernel_cmdline: "),
    ],
)
def test_content_that_is_not_what_was_measured_is_a_failure_where_content_is_measured(
    pcr: int, kind: int, start: bytes
) -> None:
    index = position_of(DRAFTS, pcr, kind, start)
    draft = DRAFTS[index]
    content = draft.content[:-2] + bytes((draft.content[-2] ^ 1,)) + draft.content[-1:]
    boot = measure_boot(changed(DRAFTS, index, draft.with_content(content)), "sha256")
    assert ReasonCode.EVENT_DIGEST_MISMATCH in {failure.code for failure in boot.failures}
    assert boot.pcrs == measure_boot(vm_log(), "sha256").pcrs
    assert next(f for f in boot.failures if f.code is ReasonCode.EVENT_DIGEST_MISMATCH).event_index == index + 1


@pytest.mark.parametrize(("pcr", "kind"), [(4, APPLICATION), (0, BLOB), (9, IPL), (14, IPL)])
def test_content_that_is_never_measured_may_say_anything(pcr: int, kind: int) -> None:
    index = position_of(DRAFTS, pcr, kind)
    assert _codes(changed(DRAFTS, index, DRAFTS[index].with_content(b"\0" * 40))) == set()


def test_the_name_of_a_boot_variable_is_not_covered_where_only_its_value_is_measured() -> None:
    index = position_of(DRAFTS, 1, 0x80000002)
    draft = DRAFTS[index]
    renamed = draft.content[:32] + "X".encode("utf-16-le") + draft.content[34:]
    assert _codes(changed(DRAFTS, index, draft.with_content(renamed))) == set()


@pytest.mark.parametrize("kind", [ACTION, IPL, BLOB, VARIABLE, APPLICATION, 0x99])
@pytest.mark.parametrize("pcr", [0, 4, 7])
def test_a_separator_under_another_type_is_forged(pcr: int, kind: int) -> None:
    index = position_of(DRAFTS, pcr, SEPARATOR)
    assert ReasonCode.EVENT_TYPE_FORGED in _codes(changed(DRAFTS, index, replace(DRAFTS[index], type=kind)))


def test_an_action_under_another_type_is_forged() -> None:
    index = position_of(DRAFTS, 4, EFI_ACTION)
    assert _codes(changed(DRAFTS, index, replace(DRAFTS[index], type=APPLICATION))) == {ReasonCode.EVENT_TYPE_FORGED}


def test_an_error_separator_under_another_type_is_forged_too() -> None:
    assert ReasonCode.EVENT_TYPE_FORGED in _codes(inserted(DRAFTS, 2, event(6, BLOB, b"x", b"\xff\xff\xff\xff")))


@pytest.mark.parametrize("content", [b"\xff\xff\xff\xff", b"\0", b"WBCL"])
def test_a_separator_that_reports_an_error_is_a_failure(content: bytes) -> None:
    index = position_of(DRAFTS, 6, SEPARATOR)
    assert _codes(changed(DRAFTS, index, event(6, SEPARATOR, content))) == {ReasonCode.EVENT_NOT_ALLOWED}


def test_the_separators_of_windows_are_allowed_in_its_own_pcrs() -> None:
    extra = [event(pcr, SEPARATOR, b"WBCL") for pcr in (12, 13, 14)]
    assert _codes(log_of([*DRAFTS, *extra])) == set()


@pytest.mark.parametrize("pcr", [0, 3, 7])
def test_a_second_separator_is_a_failure(pcr: int) -> None:
    assert ReasonCode.EVENT_NOT_ALLOWED in _codes(log_of([*DRAFTS, event(pcr, SEPARATOR, bytes(4))]))


def test_pcr_0_without_a_separator_is_a_failure() -> None:
    index = position_of(DRAFTS, 0, SEPARATOR)
    assert _codes(changed(DRAFTS, index, None)) == {ReasonCode.EVENT_NOT_ALLOWED}


def test_a_measurement_of_pcr_0_after_its_separator_is_a_failure() -> None:
    later = event(0, 0x08, "1.2.3\0".encode("utf-16-le"))
    assert ReasonCode.EVENT_NOT_ALLOWED in _codes(log_of([*DRAFTS, later]))


@pytest.mark.parametrize(
    ("pcr", "kind"),
    [
        (4, IPL),
        (4, 0x0C),
        (4, BLOB),
        (7, IPL),
        (7, 0x99),
        (8, ACTION),
        (9, 0x0C),
        (9, EFI_ACTION),
        (11, ACTION),
        (12, EFI_ACTION),
    ],
)
def test_a_type_that_does_not_belong_into_a_pcr_of_facts_is_a_failure(pcr: int, kind: int) -> None:
    assert ReasonCode.EVENT_NOT_ALLOWED in _codes(log_of([*DRAFTS, event(pcr, kind, b"anything")]))


def test_an_image_relabelled_as_an_action_is_a_failure() -> None:
    index = position_of(DRAFTS, 4, APPLICATION)
    for kind in (ACTION, EFI_ACTION):
        forged = replace(DRAFTS[index], type=kind, content=b"Calling EFI Application from Boot Option")
        assert ReasonCode.EVENT_DIGEST_MISMATCH in _codes(changed(DRAFTS, index, forged))


@pytest.mark.parametrize("kind", [ACTION, EFI_ACTION, 0x12])
@pytest.mark.parametrize("content", [b"MZ" + b"what Authenticode hashes" * 999, b"", b"Calling INT 19h\0", b"Hello"])
def test_a_covered_text_between_images_that_is_not_a_known_one_is_a_failure(kind: int, content: bytes) -> None:
    """An image's digest covers a file: called an action with that file as content, the image would be gone."""
    index = position_of(DRAFTS, 4, APPLICATION)
    assert _codes(inserted(DRAFTS, index, event(4, kind, content))) == {ReasonCode.EVENT_NOT_ALLOWED}


@pytest.mark.parametrize("kind", [ACTION, EFI_ACTION, 0x12])
def test_the_known_texts_between_images_are_no_failure(kind: int) -> None:
    for content in (b"Calling INT 19h", b"Returned INT 19h", b"Return via INT 18h", b"BOOT ATTEMPTS OMITTED"):
        assert _codes(log_of([*DRAFTS, event(4, kind, content)])) == set()


@pytest.mark.parametrize(
    ("pcr", "limit", "kind", "prefix"),
    [
        (0, 512, BLOB, b""),
        (4, 512, APPLICATION, b""),
        (8, 2048, IPL, b"grub_cmd: "),
        (9, 512, IPL, b""),
        (12, 64, IPL, b""),
        (14, 64, IPL, b""),
    ],
)
def test_more_events_in_one_pcr_than_any_boot_measures_are_a_failure(
    pcr: int, limit: int, kind: int, prefix: bytes
) -> None:
    texts = [b"%d" % number for number in range(limit + 2)]
    drafts = [event(pcr, kind, prefix + text, text) for text in texts]
    excess = {
        count: [f for f in measure_boot(log_of(drafts[:count]), "sha256").failures if f.event_index == limit + 1]
        for count in (limit, limit + 1, limit + 2)
    }
    codes = {count: [failure.code for failure in failures] for count, failures in excess.items()}
    assert codes == {limit: [], limit + 1: [ReasonCode.EVENT_NOT_ALLOWED], limit + 2: [ReasonCode.EVENT_NOT_ALLOWED]}
    value = bytes(32)
    for text in texts:
        value = hashlib.sha256(value + hashlib.sha256(text).digest()).digest()
    assert measure_boot(log_of(drafts), "sha256").pcrs[pcr] == value


def test_a_log_that_is_wrong_throughout_keeps_a_bounded_number_of_failures() -> None:
    for draft in (event(4, IPL, b"x"), event(7, EFI_ACTION, b"x"), event(0, 0x08, b"x")):
        assert len(measure_boot(log_of([*DRAFTS, *[draft] * 500]), "sha256").failures) == MAX_FAILURES


def test_measuring_is_a_function_of_log_and_bank_alone() -> None:
    assert measure_boot(vm_log(), "sha256") == measure_boot(bytes(bytearray(vm_log())), "sha256")
