from __future__ import annotations

import pytest

from tests.evidence.logs import BLOB, VERSION, changed, event, inserted, position_of, vm_drafts, vm_log
from verifier.appraisal.boot import measure_boot
from verifier.appraisal.firmware import version_text
from verifier.wire.codes import ReasonCode

DRAFTS = vm_drafts()
INDEX = position_of(DRAFTS, 0, VERSION)


def test_version_and_blobs_are_those_of_the_log() -> None:
    firmware = measure_boot(vm_log(), "sha256").facts.firmware
    blobs = [draft for draft in DRAFTS if draft.type == BLOB]
    assert firmware.crtm_version is not None
    assert firmware.crtm_version.text == ""
    assert firmware.crtm_version.origin.coverage == "covered"
    assert [blob.digest for blob in firmware.blobs] == [draft.digests["sha256"].hex() for draft in blobs]
    assert {blob.origin.coverage for blob in firmware.blobs} == {"digest-only"}


def test_another_firmware_build_has_another_blob() -> None:
    good, other = (measure_boot(vm_log(case), "sha256").facts.firmware.blobs for case in ("sb-off", "fw-other-build"))
    assert {blob.digest for blob in good} != {blob.digest for blob in other}


def test_a_version_that_is_not_what_was_measured_has_no_text_and_is_no_failure() -> None:
    shown = event(0, VERSION, "2.3.5\0".encode("utf-16-le"), b"something else")
    boot = measure_boot(changed(DRAFTS, INDEX, shown), "sha256")
    version = boot.facts.firmware.crtm_version
    assert boot.failures == ()
    assert version is not None
    assert (version.text, version.origin.coverage) == (None, "digest-only")
    assert version.digest == shown.digests["sha256"].hex()


def test_a_second_version_is_a_failure_and_not_the_version() -> None:
    second = event(0, VERSION, "9.9\0".encode("utf-16-le"))
    boot = measure_boot(inserted(DRAFTS, INDEX + 1, second), "sha256")
    assert [failure.code for failure in boot.failures] == [ReasonCode.EVENT_NOT_ALLOWED]
    assert boot.facts.firmware.crtm_version is not None
    assert boot.facts.firmware.crtm_version.text == ""


@pytest.mark.parametrize("kind", [0x01, 0x07, 0x0C, 0x40E, 0x8000000A, 0x99])
def test_whatever_its_type_says_a_measurement_of_pcr_0_is_a_blob(kind: int) -> None:
    extra = event(0, kind, b"code", b"measured")
    blobs = measure_boot(inserted(DRAFTS, INDEX + 1, extra), "sha256").facts.firmware.blobs
    assert extra.digests["sha256"].hex() in {blob.digest for blob in blobs}


def test_an_option_rom_is_a_blob_of_pcr_2() -> None:
    rom = event(2, 0x80000004, bytes(40), b"rom")
    blob = measure_boot(inserted(DRAFTS, INDEX + 1, rom), "sha256").facts.firmware.blobs[0]
    assert (blob.digest, blob.origin.pcr) == (rom.digests["sha256"].hex(), 2)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"\0\0", ""),
        ("N22ET50W \0".encode("utf-16-le"), "N22ET50W "),
        (b"1.2.3\0", "1.2.3"),
        (bytes.fromhex("1efb6b540c1d5540a4ad4ef4bf17b83a"), "hex:1efb6b540c1d5540a4ad4ef4bf17b83a"),
        ("v1\n".encode("utf-16-le"), "hex:760031000a00"),
        ("\u0661\0".encode("utf-16-le"), "hex:61060000"),
    ],
)
def test_a_version_is_text_only_where_it_is_plain_text(content: bytes, text: str) -> None:
    assert version_text(content) == text
