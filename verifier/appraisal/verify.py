"""From an authentic bundle to a verified one: the only maker of VerifiedBundle.

A failure here is the node's own: its AK signed evidence that does not hold together. So it changes the node's verdict
(`verifier.appraisal.appraise.rejected`) instead of being refused as a stranger's message.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from verifier.appraisal.authenticate import AuthenticBundle, authenticate
from verifier.appraisal.binding_key import VerifiedBindingKey, verify_binding_key
from verifier.appraisal.boot_facts import MeasuredBoot
from verifier.wire.bundle import PCR_BANK_BYTES, KnownBody
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure, Rejection

__all__ = ["AuthenticBundle", "VerifiedBindingKey", "VerifiedBundle", "authenticate", "verify"]

FIRMWARE_PCRS = frozenset(range(8))
"""PCRs 0 to 7 are the firmware's (TCG PC Client Platform Firmware Profile): its log must account for them."""
_PCRS_STARTING_AT_ONES = range(17, 23)
"""The dynamic root's PCRs hold ones until it starts (PC Client Platform TPM Profile, section 4.6.2)."""

_MAKER = object()


@dataclass(frozen=True, slots=True)
class VerifiedBundle:
    """Evidence that holds together. Only `verify` makes one.

    `boot.facts` are true of this boot as far as their coverage says, if their PCR is in `replayed`. `unreplayed` says
    of each other quoted PCR why the log does not account for it; PCRs 0 to 7 are never among those.
    """

    authentic: AuthenticBundle
    boot: MeasuredBoot
    binding_key: VerifiedBindingKey | None
    replayed: frozenset[int]
    unreplayed: Mapping[int, Failure]
    maker: object

    def __post_init__(self) -> None:
        if self.maker is not _MAKER:
            raise TypeError("a VerifiedBundle is made by verify() only")


def verify(
    authentic: AuthenticBundle, boot: MeasuredBoot | None, known_binding_key: VerifiedBindingKey | None
) -> VerifiedBundle:
    """`authentic` with everything in it proved by the quote; `boot` is the log that it sends or names, measured.

    Raises Rejection by check:
    12. counters do not go back: `counter-regressed`
    13. the binding key (`verify_binding_key`): `binding-key-...`
    14. there is a boot log, and `boot` is of it: `boot-log-absent`, `boot-log-unknown-digest`, `boot-log-bank-missing`
    15. the log does not contradict itself: the first of `boot.failures`
    16. each of the PCRs 0 to 7 that is quoted replays: `pcr-replay-mismatch`, `pcr-without-events`
    Higher PCRs may hold what the operating system measured later; those that the log does not account for are told in
    `unreplayed`, and no fact of theirs may be used.
    """
    _check_counters(authentic)  # 12
    binding_key = verify_binding_key(authentic, known_binding_key)  # 13
    measured = _require_log(authentic, boot)  # 14
    if measured.failures:  # 15
        raise rejection_of(measured.failures[0])
    replayed, unreplayed = _replay(authentic.pcrs, measured)
    for pcr, failure in unreplayed.items():  # 16
        if pcr in FIRMWARE_PCRS:
            raise rejection_of(failure)
    return VerifiedBundle(authentic, measured, binding_key, replayed, unreplayed, _MAKER)


def rejection_of(failure: Failure) -> Rejection:
    """The exception that carries `failure`."""
    return Rejection(
        failure.code,
        failure.claim,
        failure.observed,
        failure.expected,
        pcr=failure.pcr,
        event_index=failure.event_index,
    )


def _check_counters(authentic: AuthenticBundle) -> None:
    """Attack: the state of a TPM put back to before a revocation, or an old quote of an earlier boot."""
    last = authentic.last_seen
    if last is None:
        return
    clock = authentic.quote.clock
    seen, before = (clock.reset_count, clock.restart_count), (last.reset_count, last.restart_count)
    if seen < before:
        raise Rejection(ReasonCode.COUNTER_REGRESSED, "quote.counters", str(seen), f"at least {before}")


def _require_log(authentic: AuthenticBundle, boot: MeasuredBoot | None) -> MeasuredBoot:
    sent = authentic.parsed.boot_log
    if sent is None:
        raise Rejection(ReasonCode.BOOT_LOG_ABSENT, "boot-log[0]", "absent", "the firmware's event log")
    digest, size = (
        (sent.claimed_sha256, sent.claimed_size)
        if isinstance(sent, KnownBody)
        else (hashlib.sha256(sent).digest(), len(sent))
    )
    if boot is None or boot.log_sha256 != digest or boot.size != size:
        raise Rejection(ReasonCode.BOOT_LOG_UNKNOWN_DIGEST, "boot-log[0].log", digest.hex())
    if boot.bank != authentic.challenge.pcr_bank:
        raise Rejection(ReasonCode.BOOT_LOG_BANK_MISSING, "boot-log[0].bank", boot.bank, authentic.challenge.pcr_bank)
    return boot


def _replay(pcrs: Mapping[int, bytes], boot: MeasuredBoot) -> tuple[frozenset[int], Mapping[int, Failure]]:
    if pcrs.items() <= boot.pcrs.items():
        return frozenset(pcrs), {}
    unreplayed: dict[int, Failure] = {}
    for pcr, value in pcrs.items():
        expected = boot.pcrs.get(pcr)
        if expected is None:
            # Attack: a bank or PCR that the log leaves out "replays" trivially (CVE-2021-42299).
            if value != _initial(pcr, boot.bank):
                unreplayed[pcr] = Failure(
                    ReasonCode.PCR_WITHOUT_EVENTS, "boot.pcr", value.hex(), "its initial value", pcr=pcr
                )
        elif value != expected:
            unreplayed[pcr] = Failure(
                ReasonCode.PCR_REPLAY_MISMATCH, "boot.pcr", value.hex(), f"{expected.hex()} by the log", pcr=pcr
            )
    return frozenset(pcrs.keys() - unreplayed.keys()), unreplayed


def _initial(pcr: int, bank: str) -> bytes:
    return (b"\xff" if pcr in _PCRS_STARTING_AT_ONES else b"\0") * PCR_BANK_BYTES[bank]
