"""Every EK with every AK, on a real TPM, against the verifier's own cryptography."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from attester.binding_key import agree, boot_key
from attester.keys import AttestationKey, activate_credential, read_endorsement_key, sign_request
from attester.templates import AkType, EkType, counter_policy
from attester.tpm import open_tpm
from nodewarden_demo.software_tpm import LocalCa, SoftwareTpm
from tests.attester.machine import boot, new_nonce
from verifier.appraisal.attestation_key import check_ak
from verifier.appraisal.credential import make_credential
from verifier.appraisal.endorsement_key import check_ek_template, node_id_of, public_key_of
from verifier.evidence.tpm import parse_public
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Rejection
from verifier.wire.request_signature import load_request_key, verify_signed_request
from verifier.wire.signed_request import RequestLabel

pytestmark = pytest.mark.swtpm
every_pair = pytest.mark.parametrize(("ek", "ak"), list(product(EkType, AkType)), ids=lambda kind: kind.value)


@every_pair
def test_a_credential_for_this_ek_and_ak_activates(tpm: SoftwareTpm, tmp_path: Path, ek: EkType, ak: AkType) -> None:
    with open_tpm(tpm.tcti) as connection:
        machine = boot(tpm, connection, tmp_path, ek, ak)
        secret = os.urandom(32)
        credential = make_credential(parse_public(machine.ek_public), machine.ak.blob.name, secret, os.urandom)
        assert activate_credential(connection, machine.ak, credential.blob, credential.encrypted_secret) == secret
        assert connection.loaded_handles() == 0


@every_pair
def test_evidence_verifies_with_quote_binding_key_and_genuine_boot(
    tpm: SoftwareTpm, tmp_path: Path, ek: EkType, ak: AkType
) -> None:
    with open_tpm(tpm.tcti) as connection:
        machine = boot(tpm, connection, tmp_path, ek, ak)
        check_ek_template(parse_public(machine.ek_public))
        check_ak(parse_public(machine.ak.blob.public))
        assert node_id_of(parse_public(machine.ek_public)) == machine.node_id
        nonce = new_nonce()
        verified = machine.verified(machine.collect(nonce), nonce)
        assert frozenset(range(8)) <= verified.replayed
        assert verified.binding_key is not None
        clock = connection.read_clock()
        counters = (verified.binding_key.reset_count, verified.binding_key.restart_count)
        assert counters == (clock.reset_count, clock.restart_count)
        assert connection.loaded_handles() == 0


@every_pair
def test_a_signed_request_verifies_for_its_label_only(tpm: SoftwareTpm, tmp_path: Path, ek: EkType, ak: AkType) -> None:
    with open_tpm(tpm.tcti) as connection:
        machine = boot(tpm, connection, tmp_path, ek, ak)
        with machine.ak.loaded(connection) as handle:
            signed = sign_request(connection, handle, RequestLabel.CHALLENGE, b'{"jti":"x"}')
        key = load_request_key(machine.ak.blob.public)
        assert verify_signed_request(key, RequestLabel.CHALLENGE, signed) == b'{"jti":"x"}'
        with pytest.raises(Rejection) as refusal:
            verify_signed_request(key, RequestLabel.SECRET_RELEASE, signed)
        assert refusal.value.code is ReasonCode.REQUEST_SIGNATURE_INVALID


@pytest.mark.parametrize("kind", list(EkType), ids=lambda kind: kind.value)
def test_the_ek_certificate_in_nv_is_of_the_ek_that_the_template_derives(
    tpm: SoftwareTpm, tpm_ca: LocalCa, kind: EkType
) -> None:
    with open_tpm(tpm.tcti) as connection:
        ek = read_endorsement_key(connection, kind)
    assert len(ek.certificates) == 1
    certificate = x509.load_der_x509_certificate(ek.certificates[0])
    issuer = x509.load_pem_x509_certificate(tpm_ca.issuer_pem)
    certificate.verify_directly_issued_by(issuer)
    issuer.verify_directly_issued_by(x509.load_pem_x509_certificate(tpm_ca.root_pem))
    spki = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    assert hashlib.sha256(spki).hexdigest() == ek.node_id == node_id_of(parse_public(ek.public))


def test_a_credential_for_another_ak_is_refused_as_credential_mismatch(tpm: SoftwareTpm, tmp_path: Path) -> None:
    with open_tpm(tpm.tcti) as connection:
        machine = boot(tpm, connection, tmp_path, EkType.RSA_2048, AkType.P_256)
        other = boot(tpm, connection, tmp_path, EkType.RSA_2048, AkType.P_256)
        credential = make_credential(parse_public(machine.ek_public), other.ak.blob.name, bytes(32), os.urandom)
        with pytest.raises(Rejection) as refusal:
            activate_credential(connection, machine.ak, credential.blob, credential.encrypted_secret)
        assert refusal.value.code is ReasonCode.CREDENTIAL_MISMATCH
        assert connection.loaded_handles() == 0


@pytest.mark.parametrize("size", [0, 1, 3, 64, 5000])
def test_a_credential_of_any_shape_is_refused_as_credential_mismatch(
    tpm: SoftwareTpm, tmp_path: Path, size: int
) -> None:
    with open_tpm(tpm.tcti) as connection:
        machine = boot(tpm, connection, tmp_path, EkType.RSA_2048, AkType.P_256)
        with pytest.raises(Rejection) as refusal:
            activate_credential(connection, machine.ak, b"\1" * size, b"\1" * size)
        assert refusal.value.code is ReasonCode.CREDENTIAL_MISMATCH
        assert connection.loaded_handles() == 0


def test_a_damaged_ak_blob_is_refused_as_not_loadable(tpm: SoftwareTpm, tmp_path: Path) -> None:
    with open_tpm(tpm.tcti) as connection:
        blob = boot(tpm, connection, tmp_path, EkType.RSA_2048, AkType.P_256).ak.blob
        flipped = bytes([*blob.private[:20], blob.private[20] ^ 1, *blob.private[21:]])
        for private in (blob.private[:-1], flipped):
            with pytest.raises(Rejection) as refusal, AttestationKey(replace(blob, private=private)).loaded(connection):
                pass
            assert refusal.value.code is ReasonCode.AK_NOT_LOADABLE
        assert connection.loaded_handles() == 0


def test_an_ak_of_another_tpm_does_not_load(tpm: SoftwareTpm, other_tpm: SoftwareTpm, tmp_path: Path) -> None:
    with open_tpm(tpm.tcti) as connection:
        machine = boot(tpm, connection, tmp_path, EkType.RSA_2048, AkType.P_256)
    with open_tpm(other_tpm.tcti) as connection:
        with pytest.raises(Rejection) as refusal, machine.ak.loaded(connection):
            pass
        assert refusal.value.code is ReasonCode.AK_NOT_LOADABLE
        assert connection.loaded_handles() == 0


def test_the_binding_key_stays_the_same_for_the_whole_boot(tpm: SoftwareTpm, tmp_path: Path) -> None:
    with open_tpm(tpm.tcti) as connection:
        machine = boot(tpm, connection, tmp_path, EkType.P_256, AkType.P_256)
        first = boot_key(connection, machine.ak, machine.node_id, machine.runtime)
    with open_tpm(tpm.tcti) as connection:
        again = boot_key(connection, machine.ak, machine.node_id, machine.runtime)
    assert again == first
    assert parse_public(first.public).auth_policy == counter_policy(first.reset_count, first.restart_count)


def test_a_new_ak_gets_a_new_binding_key(tpm: SoftwareTpm, tmp_path: Path) -> None:
    with open_tpm(tpm.tcti) as connection:
        machine = boot(tpm, connection, tmp_path, EkType.P_256, AkType.P_256)
        first = boot_key(connection, machine.ak, machine.node_id, machine.runtime)
        other = boot(tpm, connection, tmp_path, EkType.P_256, AkType.P_256)
        second = boot_key(connection, other.ak, other.node_id, machine.runtime)
    assert first.public != second.public


def test_the_secret_of_the_binding_key_is_in_no_repr_and_in_a_file_of_mode_0600(
    tpm: SoftwareTpm, tmp_path: Path
) -> None:
    with open_tpm(tpm.tcti) as connection:
        machine = boot(tpm, connection, tmp_path, EkType.P_256, AkType.P_256)
        key = boot_key(connection, machine.ak, machine.node_id, machine.runtime)
    assert repr(key.unique) not in repr(key)
    assert key.unique.hex() not in repr(replace(key))
    file = machine.runtime / "binding-key.json"
    assert file.stat().st_mode & 0o7777 == 0o600
    assert machine.runtime.stat().st_mode & 0o7777 == 0o700
    # What the evidence shows is the public point, not the bytes that derive it.
    assert key.unique not in key.public


def test_a_shared_value_that_starts_with_zero_keeps_all_its_bytes(tpm: SoftwareTpm, tmp_path: Path) -> None:
    # About one in 256 does; a TPM may leave the zero out, and then a key derived from 31 bytes opens nothing.
    with open_tpm(tpm.tcti) as connection:
        machine = boot(tpm, connection, tmp_path, EkType.P_256, AkType.P_256)
        key = boot_key(connection, machine.ak, machine.node_id, machine.runtime)
        public = public_key_of(parse_public(key.public), ReasonCode.BINDING_KEY_UNSUITABLE)
        assert isinstance(public, ec.EllipticCurvePublicKey)
        candidates = (ec.derive_private_key(number, ec.SECP256R1()) for number in range(1, 20_000))
        ephemeral = next(one for one in candidates if one.exchange(ec.ECDH(), public)[0] == 0)
        numbers = ephemeral.public_key().public_numbers()
        shared = agree(connection, key, numbers.x.to_bytes(32), numbers.y.to_bytes(32))
    assert bytes(shared) == ephemeral.exchange(ec.ECDH(), public)
