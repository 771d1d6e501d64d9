"""Real evidence of others, read in place from NODEWARDEN_CORPUS: what genuine machines measure must pass."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from verifier.appraisal.boot import measure_boot, measure_parsed
from verifier.appraisal.coverage import HASHES
from verifier.appraisal.endorsements import ders_in, endorsements_from_files, parse_endorsements
from verifier.appraisal.signatures import verify_signature
from verifier.appraisal.x509 import build_path
from verifier.evidence.attest import CertifyAttest, QuoteAttest, parse_attest, parse_signature
from verifier.evidence.certificate import parse_certificate
from verifier.evidence.eventlog import parse_event_log
from verifier.evidence.tpm import parse_public
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence, Rejection

CONTRADICTING = {
    "immune-binary_bios_measurements_15.bin": ReasonCode.EVENT_NOT_ALLOWED,
    "immune-binary_bios_measurements_27.bin": ReasonCode.EVENT_NOT_ALLOWED,
    "immune-elitebook.bin": ReasonCode.SECURE_BOOT_LOG_INCONSISTENT,
    "immune-test-HP-EliteBook-830-G6-add-mokx.bin": ReasonCode.SECURE_BOOT_LOG_INCONSISTENT,
    "immune-test-HP-EliteBook-830-G6-baseline.bin": ReasonCode.SECURE_BOOT_LOG_INCONSISTENT,
    "immune-test-HP-EliteBook-830-G6-del-mokx.bin": ReasonCode.SECURE_BOOT_LOG_INCONSISTENT,
    "immune-test-before.bin": ReasonCode.SECURE_BOOT_LOG_INCONSISTENT,
    "tpm2tools-event-uefiaction.bin": ReasonCode.SECURE_BOOT_LOG_INCONSISTENT,
    "tpm2tools-event-uefiservices.bin": ReasonCode.SECURE_BOOT_LOG_INCONSISTENT,
    "goattest-windows_gcp_shielded_vm.bin": ReasonCode.EVENT_NOT_ALLOWED,
}
"""Logs that cannot pass, first reason: BIOS boots without Secure Boot (15, 27: error separators), HP firmware that
measures a lowered security level, and fragments made to test other tools, or cut to some PCRs."""
FRAGMENTS = ("tpm2tools-event.bin", "tpm2tools-event-uefivar.bin")
MALFORMED = ("tpm2tools-specid-vendordata.bin",)


@pytest.fixture(scope="module")
def boot() -> Path:
    folder = os.environ.get("NODEWARDEN_CORPUS")
    if folder is None:
        if os.environ.get("CI") == "true":
            pytest.fail("NODEWARDEN_CORPUS is not set")
        pytest.skip("NODEWARDEN_CORPUS is not set: real evidence of others was not looked at")
    return Path(folder) / "boot"


def _json(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(path.read_text())
    return loaded


def test_every_real_log_replays_as_computed_elsewhere_and_only_known_ones_contradict_themselves(boot: Path) -> None:
    expected = _json(boot / "EXPECTED-REPLAY.json")
    contradicting: dict[str, ReasonCode] = {}
    states: set[str] = set()
    logs = [path for path in sorted((boot / "eventlog").glob("*.bin")) if path.name not in MALFORMED]
    for path in logs:
        log = parse_event_log(path.read_bytes())
        values = expected.get(f"eventlog/{path.name}", {}).get("replayed")
        for bank in set(log.algorithms) & set(HASHES):
            measured = measure_parsed(log, b"", 0, bank)
            if values is not None:
                assert {str(p): v.hex() for p, v in measured.pcrs.items()} == values.get(bank, {}), (path.name, bank)
        if log.format != "ccel" and path.name not in FRAGMENTS:
            main = measure_parsed(log, b"", 0, "sha256" if "sha256" in log.algorithms else "sha1")
            states.add(main.facts.secure_boot.state)
            if main.failures:
                contradicting[path.name] = main.failures[0].code
    assert len(logs) >= 80
    assert contradicting == CONTRADICTING
    assert states == {"on", "off", "unknown"}


def test_every_synthetic_negative_is_refused_or_contradicts_itself_or_replays_otherwise(boot: Path) -> None:
    genuine = measure_boot((boot / "eventlog/keylime-mb-secureboot.bin").read_bytes(), "sha256")
    assert (genuine.facts.secure_boot.state, genuine.failures) == ("on", ())
    for case in json.loads((boot / "negative/SYNTHETIC.json").read_text()):
        if not case["expect"].startswith("must"):
            continue
        try:
            measured = measure_boot((boot / case["file"]).read_bytes(), "sha256")
        except MalformedEvidence:
            continue
        if case["expect"].startswith("must fail replay"):
            assert measured.pcrs[0] != genuine.pcrs[0]
        elif "sha1" not in case["file"]:
            assert measured.failures, case["file"]


def test_an_injected_hash_is_not_in_the_database(boot: Path) -> None:
    log = (boot / "negative/syn-db-siglist-headersize48.bin").read_bytes()
    db = measure_boot(log, "sha256").facts.secure_boot.db
    assert db is not None
    assert db.hashes == {"11" * 32}


def test_real_quotes_parse_and_those_whose_key_is_known_verify(boot: Path) -> None:
    parsed = 0
    for path in sorted((boot / "quote").glob("*.json")):
        quote = _json(path).get("quote")
        if isinstance(quote, str):
            attest = parse_attest(bytes.fromhex(quote))
            assert isinstance(attest, QuoteAttest)
            parsed += 1
    assert parsed > 15
    made = _json(boot / "quote/swtpm-quotes.json")
    for case in made["quotes"]:
        public = parse_public(bytes.fromhex(case["ak_tpm2b_public"]))
        assert public.name.hex() == case["ak_name"]
        message, signature = bytes.fromhex(case["quote"]), parse_signature(bytes.fromhex(case["signature"]))
        verify_signature(public, message, signature, ReasonCode.QUOTE_SIGNATURE_INVALID, "quote")
        with pytest.raises(Rejection):
            verify_signature(public, message + b"\0", signature, ReasonCode.QUOTE_SIGNATURE_INVALID, "quote")


def test_other_structures_of_a_real_tpm_are_told_from_quotes(boot: Path) -> None:
    cases = _json(boot / "negative/swtpm-quotes-negative.json")
    with pytest.raises(MalformedEvidence) as refusal:
        parse_attest(bytes.fromhex(cases["gettime"]["msg"]))
    assert refusal.value.code is ReasonCode.QUOTE_TYPE_WRONG
    assert isinstance(parse_attest(bytes.fromhex(cases["certify"]["msg"])), CertifyAttest)
    only_16 = parse_attest(bytes.fromhex(cases["only16"]["msg"]))
    assert isinstance(only_16, QuoteAttest)
    assert [selection.pcrs for selection in only_16.selections] == [(16,)]


def test_every_real_certificate_parses_and_real_eks_lead_to_their_makers_roots(boot: Path) -> None:
    folder = boot / "ekcert"
    for path in (boot / name for name in _json(boot / "EXPECTED-EK.json")):
        parse_certificate(ders_in(path.read_bytes(), "certificate", path.name)[0])
    files = {
        "roots/all.pem": (folder / "tpm-roots-bundle.pem").read_bytes(),
        "intermediates/all.pem": (folder / "tpm-intermediates-bundle.pem").read_bytes(),
    }
    endorsements = parse_endorsements(endorsements_from_files(files))
    lengths = {}
    for name in ("ek-54dea27fb2.der", "ek-ce0e731694.der", "ek-e54a9d6e5f.der", "ek-eaac802655.der"):
        leaf = parse_certificate((folder / name).read_bytes())
        lengths[name] = len(build_path(leaf, (), endorsements, 1_700_000_000))
    assert set(lengths.values()) <= {2, 3}
