"""Secure Boot from PCR 7: which state, by whose keys, and whether the measurements agree with each other.

Source: TCG PC Client Platform Firmware Profile 1.06, section 3.3.4.8 (PCR 7). The firmware measures its Secure Boot
variables, then the separator; what authorised each image follows. Three answers: on, off, unknown, each with a reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from verifier.appraisal.boot_facts import Authority, KeyDatabase, Origin, SecureBootFacts, SecureBootState
from verifier.appraisal.coverage import HASHES, JudgedEvent
from verifier.appraisal.event_types import EventType
from verifier.appraisal.shim import SBAT_LEVEL, is_setting, turns_validation_off
from verifier.evidence.uefi import (
    GLOBAL_VARIABLE,
    IMAGE_SECURITY_DATABASE,
    UefiMalformed,
    UefiVariable,
    certificate_in,
    parse_signature_lists,
    parse_variable,
)
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure

PCR = 7
_VARIABLES = {
    "SecureBoot": GLOBAL_VARIABLE,
    "PK": GLOBAL_VARIABLE,
    "KEK": GLOBAL_VARIABLE,
    "db": IMAGE_SECURITY_DATABASE,
    "dbx": IMAGE_SECURITY_DATABASE,
}
_DATABASES = ("PK", "KEK", "db", "dbx")
_BEFORE_SEPARATOR_ONLY = frozenset({"SecureBoot", "PK", "KEK", "dbr", "dbt"})
"""What names no authority: these say how the firmware was configured, and count only before the separator."""
_DMA_ACTION = b"DMA Protection Disabled"
_OLD_SHIM_ZEROS = 5
_HASH_ENTRY_BYTES = 48
"""EFI_SIGNATURE_DATA with a SHA-256 image hash: an image that db lists itself."""


@dataclass(slots=True)
class _Seen:
    """What PCR 7 has shown so far."""

    values: dict[str, tuple[UefiVariable, Origin]]
    authorities: list[Authority]
    sbat_level: str | None
    dma_protection_disabled: bool
    separated: bool
    shim_validation_off: Origin | None


def secure_boot_facts(events: Sequence[JudgedEvent]) -> tuple[SecureBootFacts, tuple[Failure, ...]]:
    """The Secure Boot facts of a log's events, and each contradiction as `secure-boot-log-inconsistent`.

    Only covered content is read. The state is `on` only if nothing here contradicts it.
    """
    seen = _Seen({}, [], None, dma_protection_disabled=False, separated=False, shim_validation_off=None)
    failures: list[Failure] = []
    for judged in events:
        if judged.event.pcr == PCR and judged.covered is not None:
            _take(judged, judged.covered, seen, failures)
    databases = {name: _database(name, seen, failures) for name in _DATABASES}
    if not seen.separated:
        failures.append(_inconsistent("no separator in PCR 7", "one after the variables", None))
    state, reason = _state(seen, databases, failures)
    setup_mode = _setup_mode(seen)
    facts = SecureBootFacts(
        state,
        reason,
        setup_mode,
        databases["PK"],
        databases["KEK"],
        databases["db"],
        databases["dbx"],
        tuple(seen.authorities),
        seen.sbat_level,
        seen.dma_protection_disabled,
        seen.shim_validation_off,
    )
    return facts, tuple(failures)


def _take(judged: JudgedEvent, content: bytes, seen: _Seen, failures: list[Failure]) -> None:
    match judged.event.type:
        case EventType.SEPARATOR:
            seen.separated = True
        case EventType.EFI_ACTION:
            if content == _DMA_ACTION:
                seen.dma_protection_disabled = True
            else:
                failures.append(_inconsistent(f"action {content[:60]!r}", "no action that weakens the boot", judged))
        case EventType.EFI_VARIABLE_DRIVER_CONFIG if not seen.separated:
            _take_variable(judged, content, seen, failures)
        case EventType.EFI_VARIABLE_DRIVER_CONFIG | EventType.EFI_VARIABLE_AUTHORITY:
            # Attack: the type is not covered, so an authority could be called a variable. After the separator both are
            # authorities, as old shim's lists are, which it measures as driver configuration.
            _take_authority(judged, content, seen, failures)
        case _:
            pass  # A type that may not stand in PCR 7, which replay.py has refused.


def _take_variable(judged: JudgedEvent, content: bytes, seen: _Seen, failures: list[Failure]) -> None:
    try:
        variable = parse_variable(content)
    except UefiMalformed as error:
        failures.append(_inconsistent(str(error), "UEFI_VARIABLE_DATA", judged))
        return
    guid = _VARIABLES.get(variable.name)
    if guid is None:
        if turns_validation_off(variable) or certificate_in(variable.value) is not None:
            _take_authority(judged, content, seen, failures)
        return
    # Attack: a second SecureBoot, or one of another vendor, for a reader that takes the last or looks at names only.
    if guid != variable.guid or variable.name in seen.values:
        failures.append(_inconsistent(f"{variable.name} again or of another vendor", "the variable once", judged))
        return
    seen.values[variable.name] = (variable, _origin(judged))


def _take_authority(judged: JudgedEvent, content: bytes, seen: _Seen, failures: list[Failure]) -> None:
    try:
        variable = parse_variable(content, _OLD_SHIM_ZEROS)
    except UefiMalformed as error:
        failures.append(_inconsistent(str(error), "UEFI_VARIABLE_DATA", judged))
        return
    if variable.name in _BEFORE_SEPARATOR_ONLY and seen.separated:
        failures.append(_inconsistent(f"{variable.name} after the separator", "variables before it", judged))
        return
    if turns_validation_off(variable):
        seen.shim_validation_off = _origin(judged)
    if variable.name == SBAT_LEVEL:
        seen.sbat_level = variable.value.decode("ascii", "replace")
    seen.authorities.append(_authority(variable, _origin(judged)))


def _authority(variable: UefiVariable, origin: Origin) -> Authority:
    certificate = certificate_in(variable.value)
    if certificate is not None:
        return Authority(variable.name, "certificate", _sha256(certificate), origin)
    if variable.guid == IMAGE_SECURITY_DATABASE and len(variable.value) == _HASH_ENTRY_BYTES:
        return Authority(variable.name, "hash", variable.value[16:].hex(), origin)
    # Attack: a value that is no certificate as we read them (shim's own list of hashes, an odd length in DER) taken
    # for something that needs no leave.
    kind: Literal["setting", "hash"] = "setting" if is_setting(variable) else "hash"
    return Authority(variable.name, kind, _sha256(variable.value), origin)


def _database(name: str, seen: _Seen, failures: list[Failure]) -> KeyDatabase | None:
    measured = seen.values.get(name)
    if measured is None:
        return None
    variable, origin = measured
    try:
        lists = parse_signature_lists(variable.value)
    except UefiMalformed as error:
        failures.append(
            Failure(
                ReasonCode.SECURE_BOOT_LOG_INCONSISTENT,
                f"boot.secure_boot.{name}",
                str(error),
                "signature lists",
                PCR,
                origin.event_index,
            )
        )
        return None
    return KeyDatabase(lists.certificates, lists.hashes, origin)


def _state(
    seen: _Seen, databases: dict[str, KeyDatabase | None], failures: list[Failure]
) -> tuple[SecureBootState, str]:
    measured = seen.values.get("SecureBoot")
    if measured is None:
        return "unknown", "the log has no SecureBoot variable whose digest covers it"
    value = measured[0].value
    if value == b"":
        return "off", "the SecureBoot variable is empty: the firmware has it off or was never set up"
    if value == b"\0":
        return "off", "the SecureBoot variable is 0"
    if value != b"\1":
        failures.append(_inconsistent(f"SecureBoot is {value[:8].hex()}", "00 or 01", None))
        return "unknown", "the SecureBoot variable is neither 0 nor 1"
    for name in ("PK", "KEK", "db"):
        database = databases[name]
        if database is None or not database.entries:
            failures.append(_inconsistent(f"Secure Boot on with {name} empty or absent", "keys", None))
    if not seen.authorities:
        failures.append(_inconsistent("Secure Boot on and no authority measured", "at least one", None))
    if failures:
        return "unknown", "the SecureBoot variable is 1, and other measurements contradict it"
    return "on", "the SecureBoot variable is 1"


def _setup_mode(seen: _Seen) -> bool | None:
    measured = seen.values.get("PK")
    return None if measured is None else not measured[0].value


def _sha256(content: bytes) -> str:
    return HASHES["sha256"](content).hex()


def _origin(judged: JudgedEvent) -> Origin:
    return Origin(PCR, judged.event.index, "covered")


def _inconsistent(observed: str, expected: str, judged: JudgedEvent | None) -> Failure:
    index = None if judged is None else judged.event.index
    return Failure(ReasonCode.SECURE_BOOT_LOG_INCONSISTENT, "boot.secure_boot", observed, expected, PCR, index)
