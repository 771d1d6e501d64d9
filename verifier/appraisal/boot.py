"""A boot log measured: parsed, replayed in one bank, its facts drawn and its contradictions listed."""

from __future__ import annotations

import hashlib

from verifier.appraisal.boot_facts import BootFacts, MeasuredBoot
from verifier.appraisal.coverage import HASHES
from verifier.appraisal.firmware import firmware_facts
from verifier.appraisal.loaders import loader_facts
from verifier.appraisal.replay import MAX_FAILURES, replay
from verifier.appraisal.secure_boot import secure_boot_facts
from verifier.appraisal.shim import mok_measurements
from verifier.evidence.eventlog import EventLog, parse_event_log
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure, MalformedEvidence


def measure_boot(log: bytes, bank: str) -> MeasuredBoot:
    """What `log` says in `bank`, a pure function of both.

    The facts hold only where `failures` is empty and a verified quote covers `pcrs`. Raises MalformedEvidence
    `boot-log-malformed` or `body-too-large` for a log whose container does not hold together, or a padded one (CCEL).
    """
    parsed = parse_event_log(log)
    if parsed.format == "ccel":
        raise MalformedEvidence(ReasonCode.BOOT_LOG_MALFORMED, "boot_log", "a CCEL log", "a TPM's log")
    return measure_parsed(parsed, hashlib.sha256(log).digest(), len(log), bank)


def measure_parsed(log: EventLog, log_sha256: bytes, size: int, bank: str) -> MeasuredBoot:
    """As `measure_boot`, of a parsed log. An unknown bank, or one that the log lacks, gives no PCRs and a failure."""
    hash_of = HASHES.get(bank)
    if hash_of is None or bank not in log.algorithms:
        missing = Failure(ReasonCode.BOOT_LOG_BANK_MISSING, "boot.bank", ", ".join(log.algorithms), bank)
        return MeasuredBoot(log_sha256, size, bank, {}, _no_facts(), (missing,))
    replayed = replay(log, bank, hash_of)
    secure_boot, secure_boot_failures = secure_boot_facts(replayed.events)
    firmware, firmware_failures = firmware_facts(replayed.events)
    loaders, loader_failures = loader_facts(replayed.events, hash_of)
    facts = BootFacts(
        secure_boot,
        firmware,
        loaders.images,
        loaders.command_lines,
        loaders.files,
        loaders.stub_sections,
        loaders.commands,
        mok_measurements(replayed.events),
    )
    failures = (*replayed.failures, *secure_boot_failures, *firmware_failures, *loader_failures)[:MAX_FAILURES]
    return MeasuredBoot(log_sha256, size, bank, replayed.pcrs, facts, failures)


def _no_facts() -> BootFacts:
    secure_boot, _ = secure_boot_facts(())
    firmware, _ = firmware_facts(())
    return BootFacts(secure_boot, firmware, (), (), (), (), (), ())
