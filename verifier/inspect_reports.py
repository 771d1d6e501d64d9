"""What `nodewarden inspect` shows: JSON shapes of parsed evidence, with every oddity as a finding.

Inspection judges nothing by policy. A log of a genuine machine is shown however odd it is; what would make the verifier
disbelieve it stands in `findings`, under the same codes that a verdict would carry.
"""

from __future__ import annotations

import calendar
import hashlib
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from verifier.appraisal.boot import measure_parsed
from verifier.appraisal.boot_facts import MeasuredBoot
from verifier.appraisal.coverage import HASHES, JudgedEvent, judge
from verifier.appraisal.ek_certificate import EKU_EK_CERTIFICATE, tpm_identity
from verifier.appraisal.event_types import IMAGE_TYPES, EventType, type_name
from verifier.evidence.attest import QuoteAttest, parse_attest
from verifier.evidence.certificate import (
    OID_EXTENDED_KEY_USAGE,
    OID_SUBJECT_ALTERNATIVE_NAME,
    Certificate,
    extended_key_usage,
    name_text,
    parse_certificate,
)
from verifier.evidence.eventlog import NO_PCR, BootEvent, parse_event_log
from verifier.evidence.tpm import EccPublic, PublicArea, RsaPublic
from verifier.evidence.uefi import UefiMalformed, image_path, parse_variable
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure, MalformedEvidence, printable

_PREFERRED_BANKS = ("sha256", "sha384", "sha512", "sha1")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def eventlog_report(log: bytes) -> dict[str, Any]:
    """A boot log: events with their coverage, replayed PCRs of every bank, Secure Boot state, findings.

    Raises MalformedEvidence `boot-log-malformed`, `body-too-large`.
    """
    parsed = parse_event_log(log)
    digest = hashlib.sha256(log).digest()
    banks = [bank for bank in parsed.algorithms if bank in HASHES]
    measured = {bank: measure_parsed(parsed, digest, len(log), bank) for bank in banks}
    main = next((bank for bank in _PREFERRED_BANKS if bank in measured), None)
    findings = _boot_findings(measured.values())
    if main is None:
        findings.append(_finding("boot-log-bank-missing", "boot_log", f"no bank that we know: {parsed.algorithms}"))
        secure_boot = {"state": "unknown", "reason": "the log has no bank that we know"}
    else:
        facts = measured[main].facts
        secure_boot = {"state": facts.secure_boot.state, "reason": facts.secure_boot.reason}
        version = facts.firmware.crtm_version
        if version is not None and version.text is None:
            where = _where(version.origin.pcr, version.origin.event_index)
            findings.append(
                _finding("firmware-version-not-covered", where, "the version text is not what was measured")
            )
    return {
        "format": parsed.format,
        "algorithms": list(parsed.algorithms),
        "startup_locality": parsed.startup_locality,
        "events": [_event(event, main) for event in parsed.events],
        "pcrs": {
            bank: {str(pcr): value.hex() for pcr, value in sorted(boot.pcrs.items())} for bank, boot in measured.items()
        },
        "secure_boot": secure_boot,
        "findings": findings,
    }


def _boot_findings(measured: Iterable[MeasuredBoot]) -> list[dict[str, str]]:
    """One finding for each thing wrong, with the banks in which it is."""
    banks: dict[tuple[Failure, str], list[str]] = {}
    for boot in measured:
        for failure in boot.failures:
            banks.setdefault((failure, ""), []).append(boot.bank)
    return [
        _finding(failure.code.value, _where(failure.pcr, failure.event_index), f"{failure.line()} ({', '.join(names)})")
        for (failure, _), names in banks.items()
    ]


def _event(event: BootEvent, bank: str | None) -> dict[str, Any]:
    digest = None if bank is None else event.digests.get(bank)
    extends = digest is not None and event.pcr != NO_PCR and event.type != EventType.NO_ACTION
    judged = judge(event, digest, HASHES[bank]) if extends and bank is not None and digest is not None else None
    return {
        "index": event.index,
        "pcr": event.pcr,
        "type": type_name(event.type),
        "digests": {name: value.hex() for name, value in event.digests.items()},
        # What extends no PCR is vouched for by nothing.
        "coverage": "hint" if judged is None else judged.coverage,
        "detail": _detail(event, judged),
    }


def _detail(event: BootEvent, judged: JudgedEvent | None) -> str:
    """The event's content as text, as far as it is text; believed only as far as `coverage` says."""
    content = event.content
    if event.type in IMAGE_TYPES:
        return printable(image_path(content) or "")
    if event.type in (
        EventType.EFI_VARIABLE_DRIVER_CONFIG,
        EventType.EFI_VARIABLE_BOOT,
        EventType.EFI_VARIABLE_BOOT2,
        EventType.EFI_VARIABLE_AUTHORITY,
    ):
        try:
            variable = parse_variable(content, max_zeros_behind=len(content))
        except UefiMalformed:
            return printable(content[:64].hex())
        value = "" if len(variable.value) > 1 else f" = {variable.value.hex()}"
        return printable(f"{variable.name}{value} ({len(variable.value)} bytes)")
    text = (
        judged.covered
        if judged is not None and judged.part in ("command", "command-line") and judged.covered
        else content
    )
    text = text.rstrip(b"\0")
    if text[1::2].strip(b"\0") == b"" and len(text) > 2:
        return printable(text[: len(text) & ~1].decode("utf-16-le", "replace"))
    if event.type == EventType.EVENT_TAG:
        return printable(f"tag {content[3::-1].hex()} {text[8:].decode('ascii', 'replace')}")
    return printable(text.decode("ascii") if text.isascii() else text[:64].hex())


def quote_report(attest: bytes) -> tuple[QuoteAttest, dict[str, Any]]:
    """A quote, and its JSON without signature and key. Raises MalformedEvidence as `parse_attest` does."""
    quote = parse_attest(attest)
    if not isinstance(quote, QuoteAttest):
        raise MalformedEvidence(ReasonCode.QUOTE_TYPE_WRONG, "attest.type", "TPM2_Certify", "TPM2_Quote")
    findings = []
    if not any(selection.pcrs for selection in quote.selections):
        findings.append(_finding(ReasonCode.PCR_BANK_INACTIVE.value, "attest.pcrSelect", "no PCR is quoted"))
    return quote, {
        "extra_data": quote.extra_data.hex(),
        "pcr_selection": {selection.bank: list(selection.pcrs) for selection in quote.selections},
        "pcr_digest": quote.pcr_digest.hex(),
        "qualified_signer": quote.qualified_signer.hex(),
        "clock": quote.clock.clock_ms,
        "reset_count": quote.clock.reset_count,
        "restart_count": quote.clock.restart_count,
        "safe": quote.clock.safe,
        "firmware_version": quote.firmware_version,
        "findings": findings,
    }


def key_report(public: PublicArea) -> dict[str, str]:
    """A TPM key's kind and Name."""
    match public.key:
        case RsaPublic(bits=bits):
            return {"type": f"RSA-{bits}", "name": public.name.hex()}
        case EccPublic(curve=curve):
            return {"type": curve, "name": public.name.hex()}


def certificate_report(blob: bytes) -> dict[str, Any]:
    """An EK or CA certificate. Raises MalformedEvidence `certificate-malformed`; verifies nothing."""
    certificate = parse_certificate(blob)
    identity = tpm_identity(certificate)
    return {
        "kind": "ca" if certificate.is_ca else "ek",
        "subject": printable(name_text(certificate.subject)),
        "issuer": printable(name_text(certificate.issuer)),
        "serial": f"{certificate.serial:x}",
        "not_before": time_text(certificate.not_before),
        "not_after": time_text(certificate.not_after),
        "sha256": hashlib.sha256(certificate.der).hexdigest(),
        "public_key_sha256": hashlib.sha256(certificate.spki).hexdigest(),
        "manufacturer": _text(identity.manufacturer),
        "model": _text(identity.model),
        "version": _text(identity.version),
        "findings": _certificate_findings(certificate, blob),
    }


def _certificate_findings(certificate: Certificate, blob: bytes) -> list[dict[str, str]]:
    findings = []
    if certificate.der != blob:
        findings.append(
            _finding("certificate-padded", "certificate", f"{len(blob) - len(certificate.der)} bytes around it")
        )
    if certificate.key is None:
        findings.append(_finding("certificate-key-unsupported", "certificate.key", "neither RSA nor a NIST curve"))
    if not certificate.is_ca:
        if OID_SUBJECT_ALTERNATIVE_NAME not in certificate.extensions:
            findings.append(_finding("certificate-names-no-tpm", "certificate.subjectAltName", "absent"))
        purposes = certificate.extensions.get(OID_EXTENDED_KEY_USAGE)
        if purposes is None or EKU_EK_CERTIFICATE not in extended_key_usage(purposes.value):
            findings.append(_finding("certificate-purpose-unstated", "certificate.extKeyUsage", "not an EK's"))
    return findings


def time_text(seconds: int) -> str:
    """`YYYY-MM-DDTHH:MM:SSZ` of seconds since 1970, up to the year 9999."""
    moment = _EPOCH + timedelta(seconds=seconds)
    if calendar.timegm(moment.timetuple()) != seconds:
        raise ValueError(seconds)
    return f"{moment.year:04d}-{moment:%m-%dT%H:%M:%S}Z"


def _text(value: str | None) -> str | None:
    return None if value is None else printable(value)


def _where(pcr: int | None, index: int | None) -> str:
    parts = [f"PCR {pcr}" if pcr is not None else "", f"event {index}" if index is not None else ""]
    return " ".join(part for part in parts if part) or "boot_log"


def _finding(code: str, where: str, message: str) -> dict[str, str]:
    return {"code": code, "where": where, "message": printable(message)}
