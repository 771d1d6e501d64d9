from __future__ import annotations

import hashlib
from collections.abc import Sequence

import pytest

from tests.evidence.logs import (
    APPLICATION,
    AUTHORITY,
    EFI_ACTION,
    GLOBAL,
    SECURITY,
    SEPARATOR,
    VARIABLE,
    X509,
    Draft,
    changed,
    event,
    inserted,
    log_of,
    position_of,
    signature_list,
    variable,
    vm_drafts,
    vm_log,
)
from verifier.appraisal.boot import measure_boot
from verifier.appraisal.boot_facts import MeasuredBoot
from verifier.wire.codes import ReasonCode

DRAFTS = vm_drafts()
FIRST, PK, KEK, DB, DBX, SEPARATED = (
    position_of(DRAFTS, 7, VARIABLE, b"", which) if which < 5 else position_of(DRAFTS, 7, SEPARATOR)
    for which in range(6)
)
SHIM = bytes.fromhex("50ab5d6046e00043abb63dd810dd8b23")
CERTIFICATE = b"\x30\x82\x00\x10" + b"c" * 16


def _measured(log: bytes) -> MeasuredBoot:
    return measure_boot(log, "sha256")


def _with(index: int, content: bytes, drafts: Sequence[Draft] = DRAFTS) -> MeasuredBoot:
    """The log with one variable honestly measured with other content."""
    return _measured(changed(drafts, index, event(7, drafts[index].type, content)))


def _codes(boot: MeasuredBoot) -> set[ReasonCode]:
    return {failure.code for failure in boot.failures}


@pytest.mark.parametrize("case", ["sb-on-good", "sb-on-efistub", "sb-on-cmdline", "uki-sb-on"])
def test_secure_boot_is_on_where_the_firmware_says_so(case: str) -> None:
    facts = _measured(vm_log(case)).facts.secure_boot
    assert (facts.state, facts.setup_mode) == ("on", False)
    assert all(origin.coverage == "covered" for origin in (a.origin for a in facts.authorities))


@pytest.mark.parametrize("case", ["sb-off", "fw-other-build"])
def test_secure_boot_is_off_and_in_setup_mode_where_the_firmware_has_no_keys(case: str) -> None:
    facts = _measured(vm_log(case)).facts.secure_boot
    assert (facts.state, facts.setup_mode) == ("off", True)
    assert facts.pk is not None
    assert facts.pk.entries == frozenset()


def test_an_empty_secure_boot_variable_is_off_and_no_contradiction() -> None:
    boot = _with(FIRST, variable("SecureBoot", b""))
    assert (boot.facts.secure_boot.state, boot.failures) == ("off", ())


@pytest.mark.parametrize("value", [b"\2", b"\1\0", b"\0\1", b"\xff"])
def test_a_secure_boot_variable_of_another_value_is_unknown_and_a_contradiction(value: bytes) -> None:
    boot = _with(FIRST, variable("SecureBoot", value))
    assert boot.facts.secure_boot.state == "unknown"
    assert _codes(boot) == {ReasonCode.SECURE_BOOT_LOG_INCONSISTENT}


def test_a_log_without_the_variable_is_unknown() -> None:
    assert _measured(changed(DRAFTS, FIRST, None)).facts.secure_boot.state == "unknown"


def test_a_flipped_variable_under_the_old_digest_is_unknown_and_not_off() -> None:
    draft = DRAFTS[FIRST]
    boot = _measured(changed(DRAFTS, FIRST, draft.with_content(variable("SecureBoot", b"\0"))))
    assert boot.facts.secure_boot.state == "unknown"
    assert ReasonCode.EVENT_DIGEST_MISMATCH in _codes(boot)


def test_a_log_with_secure_boot_off_cannot_be_edited_to_say_on() -> None:
    drafts = vm_drafts("sb-off")
    boot = _measured(changed(drafts, FIRST, drafts[FIRST].with_content(variable("SecureBoot", b"\1"))))
    assert boot.facts.secure_boot.state == "unknown"
    assert ReasonCode.EVENT_DIGEST_MISMATCH in _codes(boot)


@pytest.mark.parametrize(("index", "name", "guid"), [(PK, "PK", GLOBAL), (KEK, "KEK", GLOBAL), (DB, "db", SECURITY)])
def test_secure_boot_on_without_keys_is_a_contradiction(index: int, name: str, guid: bytes) -> None:
    for boot in (_with(index, variable(name, b"", guid)), _measured(changed(DRAFTS, index, None))):
        assert boot.facts.secure_boot.state == "unknown"
        assert ReasonCode.SECURE_BOOT_LOG_INCONSISTENT in _codes(boot)


def test_an_empty_dbx_is_no_contradiction() -> None:
    boot = _with(DBX, variable("dbx", b"", SECURITY))
    assert (boot.facts.secure_boot.state, boot.failures) == ("on", ())


def test_secure_boot_on_without_an_authority_is_a_contradiction() -> None:
    without = [draft for draft in DRAFTS if draft.type != AUTHORITY]
    boot = _measured(log_of(without))
    assert boot.facts.secure_boot.state == "unknown"
    assert _codes(boot) == {ReasonCode.SECURE_BOOT_LOG_INCONSISTENT}


def test_pcr_7_without_a_separator_is_a_contradiction() -> None:
    boot = _measured(changed(DRAFTS, SEPARATED, None))
    assert boot.facts.secure_boot.state == "unknown"
    assert ReasonCode.SECURE_BOOT_LOG_INCONSISTENT in _codes(boot)


def test_a_second_secure_boot_variable_is_a_contradiction() -> None:
    second = event(7, VARIABLE, variable("SecureBoot", b"\1"))
    boot = _measured(inserted(DRAFTS, SEPARATED, second))
    assert _codes(boot) == {ReasonCode.SECURE_BOOT_LOG_INCONSISTENT}


def test_a_secure_boot_variable_of_another_vendor_is_a_contradiction() -> None:
    boot = _with(FIRST, variable("SecureBoot", b"\1", SECURITY))
    assert boot.facts.secure_boot.state == "unknown"
    assert ReasonCode.SECURE_BOOT_LOG_INCONSISTENT in _codes(boot)


@pytest.mark.parametrize("kind", [VARIABLE, AUTHORITY])
@pytest.mark.parametrize("name", ["SecureBoot", "PK", "KEK", "dbr", "dbt"])
def test_a_variable_of_the_firmware_after_the_separator_is_a_contradiction(name: str, kind: int) -> None:
    late = event(7, kind, variable(name, b"\1"))
    assert _codes(_measured(inserted(DRAFTS, SEPARATED + 1, late))) == {ReasonCode.SECURE_BOOT_LOG_INCONSISTENT}


@pytest.mark.parametrize("kind", [VARIABLE, AUTHORITY])
@pytest.mark.parametrize("name", ["MokList", "MokListX", "MokDBState", "vendor_db", "Shim", "SomethingNew"])
@pytest.mark.parametrize("value", [CERTIFICATE, b"\1", b"\x11" * 32, b"\x30\x83\0\0\x10" + b"c" * 16])
def test_what_is_measured_after_the_separator_is_an_authority_whatever_its_type(
    name: str, kind: int, value: bytes
) -> None:
    """Old shim measures its lists as driver configuration; and the type is covered by nothing."""
    boot = _measured(inserted(DRAFTS, SEPARATED + 1, event(7, kind, variable(name, value, SHIM))))
    assert boot.failures == ()
    authority = boot.facts.secure_boot.authorities[0]
    assert (authority.variable, authority.kind) == (name, "certificate" if value is CERTIFICATE else "hash")
    assert authority.sha256 == hashlib.sha256(value).hexdigest()


@pytest.mark.parametrize(("name", "guid"), [("MokListTrusted", SECURITY), ("SbatLevel", GLOBAL), ("MokList", SHIM)])
def test_only_settings_of_shim_itself_are_settings(name: str, guid: bytes) -> None:
    boot = _measured(log_of([*DRAFTS, event(7, AUTHORITY, variable(name, b"\1", guid))]))
    assert boot.facts.secure_boot.authorities[-1].kind == "hash"


@pytest.mark.parametrize("kind", [VARIABLE, AUTHORITY])
@pytest.mark.parametrize(("value", "off"), [(b"\0", False), (b"\1", True), (b"", True), (b"\0\0", True)])
def test_shim_without_validation_is_seen_under_either_type(kind: int, value: bytes, off: bool) -> None:
    for index in (SEPARATED, SEPARATED + 1, len(DRAFTS)):
        boot = _measured(inserted(DRAFTS, index, event(7, kind, variable("MokSBState", value, SHIM))))
        assert boot.failures == ()
        assert (boot.facts.secure_boot.shim_validation_off is not None) == off
    assert _measured(vm_log()).facts.secure_boot.shim_validation_off is None


def test_an_authority_before_the_separator_called_a_variable_stays_an_authority() -> None:
    early = event(7, VARIABLE, variable("vendor_db", CERTIFICATE, SECURITY))
    authorities = _measured(inserted(DRAFTS, SEPARATED, early)).facts.secure_boot.authorities
    assert authorities[0].sha256 == hashlib.sha256(CERTIFICATE).hexdigest()


@pytest.mark.parametrize("name", ["dbt", "AuditMode", "DeployedMode", "SomethingNew"])
def test_further_variables_before_the_separator_are_no_contradiction(name: str) -> None:
    boot = _measured(inserted(DRAFTS, SEPARATED, event(7, VARIABLE, variable(name, b"\0"))))
    assert (boot.facts.secure_boot.state, boot.failures) == ("on", ())


def test_disabled_dma_protection_is_recorded_and_no_contradiction() -> None:
    for index in (SEPARATED, SEPARATED + 1):
        boot = _measured(inserted(DRAFTS, index, event(7, EFI_ACTION, b"DMA Protection Disabled")))
        assert boot.facts.secure_boot.dma_protection_disabled
        assert boot.failures == ()
    assert not _measured(vm_log()).facts.secure_boot.dma_protection_disabled


@pytest.mark.parametrize("text", [b"UEFI Debug Mode", b"Security Level is Downgraded to 0", b"Something"])
def test_an_action_that_weakens_the_boot_is_a_contradiction(text: bytes) -> None:
    boot = _measured(inserted(DRAFTS, SEPARATED, event(7, EFI_ACTION, text)))
    assert boot.facts.secure_boot.state == "unknown"
    assert _codes(boot) == {ReasonCode.SECURE_BOOT_LOG_INCONSISTENT}


def test_a_database_holds_its_certificates_and_hashes_and_skips_the_header() -> None:
    lists = signature_list((b"\x11" * 32,), vendor_header=bytes(16) + b"\xee" * 32) + signature_list(
        (CERTIFICATE,), X509
    )
    facts = _with(DB, variable("db", lists, SECURITY)).facts.secure_boot
    assert facts.db is not None
    assert facts.db.hashes == {"11" * 32}
    assert facts.db.certificates == {hashlib.sha256(CERTIFICATE).hexdigest()}


@pytest.mark.parametrize("value", [signature_list((b"\x11" * 32,))[:-1], b"\0" * 27, b"\0" * 28])
def test_a_broken_database_is_a_contradiction_and_no_database(value: bytes) -> None:
    boot = _with(DBX, variable("dbx", value, SECURITY))
    assert boot.facts.secure_boot.dbx is None
    assert boot.facts.secure_boot.state == "unknown"
    assert _codes(boot) == {ReasonCode.SECURE_BOOT_LOG_INCONSISTENT}


def test_a_measured_variable_that_does_not_parse_is_a_contradiction() -> None:
    boot = _with(DB, variable("db", b"value")[:-1])
    assert ReasonCode.SECURE_BOOT_LOG_INCONSISTENT in _codes(boot)
    broken = event(7, AUTHORITY, b"\0" * 31)
    assert _codes(_measured(inserted(DRAFTS, SEPARATED + 1, broken))) == {ReasonCode.SECURE_BOOT_LOG_INCONSISTENT}


def test_authorities_are_named_by_their_certificates_with_and_without_an_owner() -> None:
    for value in (bytes(16) + CERTIFICATE, CERTIFICATE):
        extra = event(7, AUTHORITY, variable("db", value, SECURITY))
        authority = _measured(log_of([*DRAFTS, extra])).facts.secure_boot.authorities[-1]
        assert (authority.variable, authority.kind) == ("db", "certificate")
        assert authority.sha256 == hashlib.sha256(CERTIFICATE).hexdigest()


def test_an_authority_may_be_a_hash_in_db_or_a_setting_of_shim() -> None:
    listed = event(7, AUTHORITY, variable("db", bytes(16) + b"\x11" * 32, SECURITY))
    trusted = event(7, AUTHORITY, variable("MokListTrusted", b"\1", SHIM))
    authorities = _measured(log_of([*DRAFTS, listed, trusted])).facts.secure_boot.authorities[-2:]
    assert [(a.kind, a.sha256) for a in authorities] == [
        ("hash", "11" * 32),
        ("setting", hashlib.sha256(b"\1").hexdigest()),
    ]


def test_an_authority_before_the_separator_counts() -> None:
    moved = [draft for draft in DRAFTS if draft.type != AUTHORITY]
    early = event(7, AUTHORITY, variable("db", CERTIFICATE, SECURITY))
    boot = _measured(inserted(moved, SEPARATED, early))
    assert (boot.facts.secure_boot.state, boot.failures) == ("on", ())


def test_an_authority_of_old_shim_measured_without_its_last_byte_is_believed() -> None:
    content = variable("Shim", CERTIFICATE, b"\x50" * 16) + bytes(5)
    boot = _measured(log_of([*DRAFTS, event(7, AUTHORITY, content + b"\xaf", content)]))
    assert boot.failures == ()
    assert boot.facts.secure_boot.authorities[-1].sha256 == hashlib.sha256(CERTIFICATE).hexdigest()


def test_authorities_relabelled_as_variables_stay_what_they_are() -> None:
    indices = [index for index, draft in enumerate(DRAFTS) if draft.type == AUTHORITY]
    assert len(indices) == 3
    for index in indices:
        forged = Draft(7, VARIABLE, DRAFTS[index].digests, DRAFTS[index].content)
        assert _measured(changed(DRAFTS, index, forged)).facts == _measured(vm_log()).facts


def test_the_minimum_generations_of_shim_are_read() -> None:
    assert _measured(vm_log()).facts.secure_boot.sbat_level == "sbat,1,2025021800\nshim,4\ngrub,5\n"
    assert _measured(vm_log("uki-sb-on")).facts.secure_boot.sbat_level is None


def test_a_start_of_an_application_without_the_calling_action_is_no_contradiction() -> None:
    index = position_of(DRAFTS, 4, EFI_ACTION)
    boot = _measured(changed(DRAFTS, index, None))
    assert boot.failures == ()
    assert len(boot.facts.images) == len([d for d in DRAFTS if d.type == APPLICATION])
