"""This boot's binding key: made once a boot, certified by the AK, derived again for each use, useless after the boot.

The TPM keeps nothing of it. What derives it, 64 secret random bytes, lies in the runtime directory (a tmpfs); those
bytes alone open nothing, because use needs this TPM with this boot's counters.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpm2_pytss import TSS2_Exception
from tpm2_pytss.constants import ESYS_TR, TPM2_ALG, TPM2_EO
from tpm2_pytss.types import TPM2B_ECC_POINT, TPM2B_SENSITIVE_CREATE, TPMS_ECC_POINT, TPMT_SIG_SCHEME

from attester.keys import AttestationKey
from attester.templates import BINDING_UNIQUE_BYTES, COUNTER_OFFSET, binding_key_template, counter_operand
from attester.tpm import Clock, Tpm, tpm_errors, tpm_failure
from edges.private_files import read_own, replace_private, require_private_directory
from verifier.wire.binding import binding_key_qualifying_data
from verifier.wire.bundle import BindingKey, NodeId
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Rejection

FIELD_BYTES = 32
_FILE = "binding-key.json"
_MAX_FILE_BYTES = 32 * 1024
_TCTI_LAYERS = 0x00FF0000


@dataclass(frozen=True, slots=True)
class BootKey:
    """A binding key and what it belongs to. `unique` is secret: it is in no message and no repr that is logged."""

    unique: bytes
    reset_count: int
    restart_count: int
    ak_name: bytes
    public: bytes
    certify: bytes
    certify_signature: bytes

    def __repr__(self) -> str:
        return f"BootKey(reset_count={self.reset_count}, restart_count={self.restart_count})"

    def item(self) -> BindingKey:
        """The evidence item that shows it."""
        return BindingKey(0, self.public, self.certify, self.certify_signature)

    def is_of(self, clock: Clock, ak_name: bytes) -> bool:
        """Whether it was made in the boot that `clock` names, and certified by this AK."""
        counters = (self.reset_count, self.restart_count)
        return counters == (clock.reset_count, clock.restart_count) and self.ak_name == ak_name


def make_boot_key(tpm: Tpm, ak: AttestationKey, node_id: NodeId) -> BootKey:
    """A new binding key of this boot with TPM2_Certify by the AK; kept nowhere.

    Raises Rejection `tpm-command-missing`, Unavailable `tpm-failed`.
    """
    tpm.require_counter_policy()
    clock = tpm.read_clock()
    unique = os.urandom(BINDING_UNIQUE_BYTES)
    with tpm_errors("binding key"):
        template = binding_key_template(unique, clock.reset_count, clock.restart_count)
        handle, public, *_ = tpm.esapi.create_primary(TPM2B_SENSITIVE_CREATE(), template, ESYS_TR.NULL)
        with tpm.transient(handle), ak.loaded(tpm) as ak_handle:
            scheme = TPMT_SIG_SCHEME(scheme=TPM2_ALG.NULL)
            attest, signature = tpm.esapi.certify(handle, ak_handle, binding_key_qualifying_data(node_id), scheme)
        return BootKey(
            unique,
            clock.reset_count,
            clock.restart_count,
            ak.blob.name,
            bytes(public.marshal()),
            bytes(attest),
            bytes(signature.marshal()),
        )


def boot_key(tpm: Tpm, ak: AttestationKey, node_id: NodeId, runtime_directory: Path) -> BootKey:
    """This boot's binding key, the same for the whole boot: read from `runtime_directory`, or made and kept there.

    Raises as `make_boot_key`; `file-mode-unsafe`, `file-unreadable`.
    """
    require_private_directory(runtime_directory)
    kept = _read(runtime_directory)
    if kept is not None and kept.is_of(tpm.read_clock(), ak.blob.name):
        return kept
    made = make_boot_key(tpm, ak, node_id)
    replace_private(runtime_directory / _FILE, _encode(made))
    return made


def kept_boot_key(tpm: Tpm, ak: AttestationKey, runtime_directory: Path) -> BootKey:
    """The binding key that was made in this boot. Raises Rejection `secret-does-not-open` when there is none."""
    kept = _read(runtime_directory)
    if kept is None or not kept.is_of(tpm.read_clock(), ak.blob.name):
        raise Rejection(ReasonCode.SECRET_DOES_NOT_OPEN, "binding key", "no binding key of this boot")
    return kept


def agree(tpm: Tpm, key: BootKey, x: bytes, y: bytes) -> bytearray:
    """The x-coordinate (32 bytes) that TPM2_ECDH_ZGen gives for the point (x, y); the caller overwrites it after use.

    Raises Rejection `secret-does-not-open` when the TPM refuses: another boot, or a point that is not on the curve.
    """
    with _derived(tpm, key) as handle, tpm_errors("policy session"), tpm.policy_session() as session:
        operand = counter_operand(key.reset_count, key.restart_count)
        try:
            tpm.esapi.policy_counter_timer(session, operand, TPM2_EO.EQ, COUNTER_OFFSET)
            point = TPM2B_ECC_POINT(TPMS_ECC_POINT(x=x, y=y))
            shared = tpm.esapi.ecdh_zgen(handle, point, session1=session)
        except TSS2_Exception as error:
            if int(error.rc) & _TCTI_LAYERS:
                raise tpm_failure(error, "TPM2_ECDH_ZGen") from error
            observed = f"response code 0x{int(error.rc):x}"
            raise Rejection(ReasonCode.SECRET_DOES_NOT_OPEN, "TPM2_ECDH_ZGen", observed) from error
        # A TPM may leave out leading zeros; the key derivation takes the whole field element.
        return bytearray(bytes(shared.point.x).rjust(FIELD_BYTES, b"\0"))


@contextmanager
def _derived(tpm: Tpm, key: BootKey) -> Iterator[ESYS_TR]:
    with tpm_errors("binding key"):
        template = binding_key_template(key.unique, key.reset_count, key.restart_count)
        handle, public, *_ = tpm.esapi.create_primary(TPM2B_SENSITIVE_CREATE(), template, ESYS_TR.NULL)
    with tpm.transient(handle):
        if bytes(public.marshal()) != key.public:
            # The null seed is a new one: a TPM Reset happened since.
            raise Rejection(ReasonCode.SECRET_DOES_NOT_OPEN, "binding key", "derives to another key")
        yield handle


def _encode(key: BootKey) -> bytes:
    fields: dict[str, Any] = {"version": 1, "reset_count": key.reset_count, "restart_count": key.restart_count}
    for name in ("unique", "ak_name", "public", "certify", "certify_signature"):
        fields[name] = getattr(key, name).hex()
    return json.dumps(fields).encode()


def _read(runtime_directory: Path) -> BootKey | None:
    content = read_own(runtime_directory / _FILE, _MAX_FILE_BYTES)
    if content is None:
        return None
    try:
        fields = json.loads(content)
        if fields["version"] != 1:
            return None
        return BootKey(
            bytes.fromhex(fields["unique"]),
            int(fields["reset_count"]),
            int(fields["restart_count"]),
            *(bytes.fromhex(fields[name]) for name in ("ak_name", "public", "certify", "certify_signature")),
        )
    except (ValueError, KeyError, TypeError):
        # Our own file, damaged: a new key is made, and what was encrypted to the old one is asked for again.
        return None
