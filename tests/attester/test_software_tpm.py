"""The software TPM itself: what demo, tests and benchmarks stand on."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from tpm2_pytss.constants import ESYS_TR, TPM2_ALG
from tpm2_pytss.types import TPM2B_AUTH, TPM2B_NV_PUBLIC, TPM2B_SENSITIVE_CREATE, TPMS_NV_PUBLIC

from attester.keys import read_certificates, read_endorsement_key
from attester.templates import EK_CERTIFICATE_INDEX, INTERMEDIATE_CERTIFICATE_INDICES, EkType, ek_template
from attester.tpm import open_tpm
from nodewarden_demo.measured_boot import extensions
from nodewarden_demo.software_tpm import LocalCa, SoftwareTpm
from tests.attester.machine import BOOT_LOG
from verifier.appraisal.boot import measure_boot
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Rejection

pytestmark = pytest.mark.swtpm
ALL_PCRS = tuple(range(24))
# PCRs 0, 4 and 7 of the machine that wrote BOOT_LOG, as tpm2_pcrread showed them there.
RECORDED = {
    0: "90040fdebcaef6fed8beec816d2a56ff8d77f91516bd053e493374c25562f11c",
    4: "629b9741144ba88e02b9a875a8e7803aa1cd9023d96a1249a8ef909bc0845375",
    7: "75677db6f14082d3bfec4d14bdd75c8d72612ef6914ca99cd5a5997b7a21309d",
}


def test_a_played_boot_log_gives_the_pcrs_of_the_machine_that_wrote_it(tpm: SoftwareTpm) -> None:
    tpm.extend_boot_log(BOOT_LOG)
    with open_tpm(tpm.tcti) as connection:
        values = connection.read_pcrs("sha256", ALL_PCRS)
        sha1 = connection.read_pcrs("sha1", ALL_PCRS)
    assert {pcr: values[pcr].hex() for pcr in RECORDED} == RECORDED
    # The verifier's own replay, written apart, agrees; and the other bank moved too.
    assert all(values[pcr] == value for pcr, value in measure_boot(BOOT_LOG, "sha256").pcrs.items())
    assert any(sha1[0])


def test_a_running_tpm_is_power_cycled_by_another_process_than_the_one_that_stops_it(
    tpm: SoftwareTpm, tmp_path: Path
) -> None:
    def resets() -> int:
        with open_tpm(tpm.tcti) as connection:
            return connection.read_clock().reset_count

    before = resets()
    other = SoftwareTpm.attached(tmp_path, int(tpm.tcti.rpartition("=")[2]))
    other.reset()
    other.stop()
    assert (other.tcti, resets()) == (tpm.tcti, before + 1)


def test_each_power_cycle_moves_counters_and_pcrs_as_specified(tpm: SoftwareTpm) -> None:
    def state() -> tuple[int, int, bool]:
        with open_tpm(tpm.tcti) as connection:
            clock = connection.read_clock()
            return clock.reset_count, clock.restart_count, any(connection.read_pcrs("sha256", (0,))[0])

    tpm.extend_boot_log(BOOT_LOG)
    reset, restart, measured = state()
    assert measured
    tpm.resume()
    assert state() == (reset, restart + 1, True)
    tpm.restart()
    assert state() == (reset, restart + 2, False)
    tpm.reset()
    assert state() == (reset + 1, 0, False)
    tpm.clear()
    assert state()[:2] == (0, 0)


def test_a_clone_is_the_same_tpm_and_another_manufacture_is_not(
    tpm: SoftwareTpm, other_tpm: SoftwareTpm, manufactured_tpm: SoftwareTpm, tmp_path: Path
) -> None:
    ids = []
    with manufactured_tpm.clone(tmp_path / "clone") as clone:
        for one in (tpm, clone, other_tpm):
            with open_tpm(one.tcti) as connection:
                ids.append([read_endorsement_key(connection, kind).node_id for kind in EkType])
    assert ids[0] == ids[1]
    assert len({*ids[0], *ids[2]}) == 6


def test_an_extension_of_an_inactive_bank_is_refused_instead_of_ignored(tpm: SoftwareTpm) -> None:
    with pytest.raises(KeyError):
        tpm.extend(0, {"sha384": bytes(48)})


def test_a_stopped_tpm_has_no_address_and_stopping_twice_is_harmless(tpm: SoftwareTpm) -> None:
    tpm.stop()
    tpm.stop()
    with pytest.raises(RuntimeError):
        _ = tpm.tcti
    tpm.start()
    with pytest.raises(RuntimeError):
        tpm.start()
    with open_tpm(tpm.tcti) as connection:
        connection.read_clock()


def test_what_is_no_crypto_agile_log_or_ends_early_is_not_played() -> None:
    whole = list(extensions(BOOT_LOG))
    assert len(whole) == 48
    for length in range(0, len(BOOT_LOG), 97):
        try:
            played = list(extensions(BOOT_LOG[:length]))
        except ValueError:
            continue
        # A cut between two events is a shorter log, not a broken one.
        assert played == whole[: len(played)]
    locality = b"StartupLocality\0\3"
    event = struct.pack("<IIIH", 0, 3, 1, 0x000B) + bytes(32) + struct.pack("<I", len(locality)) + locality
    with pytest.raises(ValueError, match="locality 3"):
        list(extensions(BOOT_LOG + event))


def _define(tpm: SoftwareTpm, index: int, content: bytes, size: int | None = None) -> None:
    area = TPMS_NV_PUBLIC(
        nvIndex=index, nameAlg=TPM2_ALG.SHA256, attributes=0x42072001, dataSize=len(content) if size is None else size
    )
    with open_tpm(tpm.tcti) as connection:
        handle = connection.esapi.nv_define_space(
            TPM2B_AUTH(), TPM2B_NV_PUBLIC(nvPublic=area), auth_handle=ESYS_TR.PLATFORM
        )
        for offset in range(0, len(content), 512):
            chunk = content[offset : offset + 512]
            connection.esapi.nv_write(handle, chunk, offset, auth_handle=ESYS_TR.PLATFORM)


def test_intermediates_that_the_manufacturer_stored_come_after_the_certificate(
    tpm: SoftwareTpm, tpm_ca: LocalCa
) -> None:
    _define(tpm, INTERMEDIATE_CERTIFICATE_INDICES.start, tpm_ca.issuer_der)
    with open_tpm(tpm.tcti) as connection:
        for kind in EkType:
            certificates = read_certificates(connection, kind)
            assert len(certificates) == 2
            # Longer than one NV read, and complete.
            assert certificates[1] == tpm_ca.issuer_der


def test_an_index_beyond_the_limit_is_not_read(tpm: SoftwareTpm) -> None:
    with open_tpm(tpm.tcti) as connection:
        index = EK_CERTIFICATE_INDEX[EkType.P_256]
        handle = connection.esapi.tr_from_tpmpublic(index)
        connection.esapi.nv_undefine_space(handle, auth_handle=ESYS_TR.PLATFORM)
        assert read_certificates(connection, EkType.P_256) == ()
    _define(tpm, index, b"", 2048)
    with pytest.MonkeyPatch.context() as patch, open_tpm(tpm.tcti) as connection:
        patch.setattr("attester.keys.MAX_CERTIFICATE_BYTES", 2047)
        with pytest.raises(Rejection) as refusal:
            read_certificates(connection, EkType.P_256)
    assert refusal.value.code is ReasonCode.CERTIFICATE_MALFORMED


def test_a_foreign_key_at_the_eks_persistent_handle_is_not_taken_for_the_ek(tpm: SoftwareTpm) -> None:
    with open_tpm(tpm.tcti) as connection:
        derived = read_endorsement_key(connection, EkType.P_256)
        template = ek_template(EkType.P_256)
        template.publicArea.objectAttributes = 0x300F2
        for foreign in (ek_template(EkType.P_384), template):
            handle, *_ = connection.esapi.create_primary(TPM2B_SENSITIVE_CREATE(), foreign, ESYS_TR.ENDORSEMENT)
            with connection.transient(handle):
                persistent = connection.esapi.evict_control(ESYS_TR.OWNER, handle, 0x8101000A)
            assert read_endorsement_key(connection, EkType.P_256) == derived
            connection.esapi.evict_control(ESYS_TR.OWNER, persistent, 0x8101000A)
        own, *_ = connection.esapi.create_primary(
            TPM2B_SENSITIVE_CREATE(), ek_template(EkType.P_256), ESYS_TR.ENDORSEMENT
        )
        with connection.transient(own):
            connection.esapi.evict_control(ESYS_TR.OWNER, own, 0x8101000A)
        assert read_endorsement_key(connection, EkType.P_256) == derived
        assert connection.loaded_handles() == 0
