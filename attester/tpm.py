"""A connection to the TPM: errors in our terms, nothing left loaded behind, clock and PCRs.

There may be no resource manager (a software TPM, or /dev/tpm0): three transient slots and a few sessions are all there
is, so every handle lives in a context manager that flushes it, also on the way out of an error. keylime leaked a
session a quote until the TPM refused (its issue 656).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from tpm2_pytss import ESAPI, TSS2_Exception
from tpm2_pytss.constants import ESYS_TR, TPM2_ALG, TPM2_CAP, TPM2_CC, TPM2_SE, TPMA_SESSION
from tpm2_pytss.types import TPML_PCR_SELECTION, TPMT_SYM_DEF

from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Rejection, Unavailable

# The library writes each error to standard error as well; ours carry the response code, once.
os.environ.setdefault("TSS2_LOG", "all+none")

REQUIRED_COMMAND = int(TPM2_CC.PolicyCounterTimer)
"""0x16D. Few TPMs were ever asked whether they have it, so it is probed."""
_TCTI_LAYER = 0x000A0000
_LAYER_MASK = 0x00FF0000


@dataclass(frozen=True, slots=True)
class Clock:
    """TPMS_CLOCK_INFO: milliseconds of powered time, and the counters that name this boot."""

    clock_ms: int
    reset_count: int
    restart_count: int
    safe: bool


@contextmanager
def tpm_errors(what: str) -> Iterator[None]:
    """Errors of the TPM library inside become Unavailable: `tpm-unavailable` (no contact) or `tpm-failed`."""
    try:
        yield
    except TSS2_Exception as error:
        raise tpm_failure(error, what) from error


def tpm_failure(error: TSS2_Exception, what: str) -> Unavailable:
    """The Unavailable that stands for `error`: `tpm-unavailable` when the TPM was not reached, else `tpm-failed`."""
    rc = int(error.rc)
    reached = rc & _LAYER_MASK != _TCTI_LAYER
    code = ReasonCode.TPM_FAILED if reached else ReasonCode.TPM_UNAVAILABLE
    return Unavailable(code, what, f"response code 0x{rc:08x}")


class Tpm:
    """An open connection. Made by `open_tpm`."""

    def __init__(self, esapi: ESAPI) -> None:
        self.esapi = esapi

    @contextmanager
    def transient(self, handle: ESYS_TR) -> Iterator[ESYS_TR]:
        """`handle` inside the block; flushed after it, whatever happened."""
        try:
            yield handle
        finally:
            # A flush that fails (the TPM is gone, or was reset and forgot the handle) must not hide the first error.
            with suppress(TSS2_Exception):
                self.esapi.flush_context(handle)

    @contextmanager
    def policy_session(self) -> Iterator[ESYS_TR]:
        """A fresh SHA-256 policy session; it outlives its use until it is flushed here."""
        symmetric = TPMT_SYM_DEF(algorithm=TPM2_ALG.NULL)
        session = self.esapi.start_auth_session(ESYS_TR.NONE, ESYS_TR.NONE, TPM2_SE.POLICY, symmetric, TPM2_ALG.SHA256)
        with self.transient(session):
            self.esapi.trsess_set_attributes(session, TPMA_SESSION.CONTINUESESSION)
            yield session

    def read_clock(self) -> Clock:
        """The TPM's clock and counters now. The null-hierarchy view: not obfuscated, and not signed."""
        with tpm_errors("TPM2_ReadClock"):
            time_info = self.esapi.read_clock()
            clock = time_info.clockInfo
            return Clock(int(clock.clock), int(clock.resetCount), int(clock.restartCount), bool(clock.safe))

    def read_pcrs(self, bank: str, pcrs: tuple[int, ...]) -> dict[int, bytes]:
        """The values of `pcrs` in `bank`, ascending. A TPM gives at most eight a call, so they may be of two moments.

        Raises Rejection `pcr-bank-inactive`, Unavailable `tpm-failed`.
        """
        values: dict[int, bytes] = {}
        missing = sorted(set(pcrs))
        with tpm_errors("TPM2_PCR_Read"):
            while missing:
                _, selection, digests = self.esapi.pcr_read(pcr_selection(bank, tuple(missing)))
                mask = bytes(selection[0].pcrSelect) if len(selection) else b""
                got = [pcr for pcr in missing if pcr // 8 < len(mask) and mask[pcr // 8] >> (pcr % 8) & 1]
                if not got:
                    # An inactive bank is no error to a TPM: it answers with an empty selection.
                    raise Rejection(ReasonCode.PCR_BANK_INACTIVE, "tpm.pcrs", bank)
                values.update({pcr: bytes(digest) for pcr, digest in zip(got, digests, strict=True)})
                missing = [pcr for pcr in missing if pcr not in values]
        return dict(sorted(values.items()))

    def require_counter_policy(self) -> None:
        """The TPM implements TPM2_PolicyCounterTimer, without which no key can die with the boot.

        Raises Rejection `tpm-command-missing`.
        """
        with tpm_errors("TPM2_GetCapability"):
            _, capability = self.esapi.get_capability(TPM2_CAP.COMMANDS, REQUIRED_COMMAND, 1)
            commands = capability.data.command
            # TPMA_CC: the low 16 bits are the command's index. The TPM answers with the first at or after the asked.
            found = [int(attributes) & 0xFFFF for attributes in commands]
        if found[:1] != [REQUIRED_COMMAND]:
            raise Rejection(ReasonCode.TPM_COMMAND_MISSING, "tpm.commands", None, "TPM2_PolicyCounterTimer (0x16d)")

    def loaded_handles(self) -> int:
        """How many transient objects and sessions are loaded: what a leak would show in."""
        count = 0
        with tpm_errors("TPM2_GetCapability"):
            for first in (0x80000000, 0x02000000, 0x03000000):
                _, capability = self.esapi.get_capability(TPM2_CAP.HANDLES, first, 64)
                handles = capability.data.handles
                count += len(handles)
        return count


@contextmanager
def open_tpm(tcti: str) -> Iterator[Tpm]:
    """A connection to the TPM at `tcti` inside the block. Raises Unavailable `tpm-unavailable`."""
    with tpm_errors(f"tpm {tcti}"):
        try:
            esapi = ESAPI(tcti)
        except (RuntimeError, ValueError) as error:
            if isinstance(error, TSS2_Exception):
                raise
            raise Unavailable(ReasonCode.TPM_UNAVAILABLE, f"tpm {tcti}", str(error)) from error
    try:
        yield Tpm(esapi)
    finally:
        esapi.close()


def pcr_selection(bank: str, pcrs: tuple[int, ...]) -> TPML_PCR_SELECTION:
    """The TPML_PCR_SELECTION of `pcrs` in one `bank`."""
    return TPML_PCR_SELECTION.parse(f"{bank}:{','.join(str(pcr) for pcr in pcrs)}")
