"""Recorded evidence: read from a directory, judged by the same code, taught from; the commands' answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import nodewarden
from policies.loader import load_baseline
from tests.forge.baselines import document
from tests.forge.evidence import NOW, VERIFIER_ID, VM, accepted
from tests.forge.vm_recordings import vm_recording, write_endorsements, write_recording
from verifier.recording import authenticate_recording, read_recording, recorded_node
from verifier.wire.codes import ReasonCode
from verifier.wire.encoding import encode_base64url
from verifier.wire.failures import MalformedEvidence, Refusal, Unavailable
from verifier.wire.recording import (
    RecordedChallenge,
    RecordedEnrolment,
    Recording,
    recording_files,
    recording_from_files,
)

GOOD = VM / "sb-on-good"


def _forged(tenant: str = "ml", cohort: str = "prod-a") -> Recording:
    """A recording in the bound form, as an attester of ours makes it."""
    evidence = accepted()
    node = evidence.node
    return Recording(
        evidence.bundle(),
        RecordedChallenge(
            nonce=encode_base64url(evidence.challenge.nonce),
            issued_at=NOW,
            pcr_bank="sha256",
            pcrs=list(evidence.challenge.pcrs),
            form="bound",
            verifier_id=VERIFIER_ID,
        ),
        RecordedEnrolment(
            node_id=node.enrolled.node_id,
            node_name="node-a",
            tenant=tenant,
            cohort=cohort,
            ek_public=encode_base64url(node.ek.tpm2b),
            ak_public=encode_base64url(node.ak.tpm2b),
            ek_certificates=[],
        ),
    )


def _inventory_baseline(tmp_path: Path, change: Callable[[dict[str, Any]], object] = lambda _: None) -> Path:
    changed = document()
    changed["tpm"] = {"ekChain": "inventory"}
    change(changed)
    path = tmp_path / "baseline.yaml"
    path.write_text(json.dumps(changed))
    return path


def _run(*arguments: str | Path) -> tuple[int, str, str]:
    """The command line's exit code and output, refusals included."""
    runner = CliRunner()
    words = [str(argument) for argument in arguments]
    result = runner.invoke(nodewarden.command_line(words), words)
    if isinstance(result.exception, Refusal):
        return nodewarden._exit_code(result.exception), result.stdout, result.exception.code.value
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def test_a_recording_comes_back_from_its_files() -> None:
    for recording in (_forged(), vm_recording(GOOD)):
        assert recording_from_files(recording_files(recording)) == recording


def test_a_recording_comes_back_from_its_directory_whatever_else_lies_there(tmp_path: Path) -> None:
    recording = _forged()
    directory = write_recording(recording, tmp_path / "r")
    (directory / "README").write_text("notes")
    (directory / "ima.bin").write_bytes(b"\0" * 10)
    (directory / "sub").mkdir()
    assert read_recording(directory) == recording


@pytest.mark.parametrize("name", sorted(recording_files(_forged())))
def test_a_recording_with_a_file_missing_is_incomplete(name: str) -> None:
    files = recording_files(_forged())
    del files[name]
    with pytest.raises(MalformedEvidence) as caught:
        recording_from_files(files)
    assert caught.value.code is ReasonCode.RECORDING_INCOMPLETE


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/b", ".hidden", "A", ""])
def test_a_recording_that_names_a_file_elsewhere_is_refused(name: str) -> None:
    files = recording_files(_forged())
    bundle = json.loads(files["bundle.json"])
    bundle["items"][0]["attest"] = {"file": name}
    files["bundle.json"] = json.dumps(bundle).encode()
    files[name] = b"x"
    with pytest.raises(MalformedEvidence) as caught:
        recording_from_files(files)
    assert caught.value.code is ReasonCode.RECORDING_INCOMPLETE


@pytest.mark.parametrize("reference", ["inline", {"file": 1}, {"file": "a", "x": 1}, {}, None, [1]])
def test_a_body_that_is_no_file_is_refused(reference: object) -> None:
    files = recording_files(_forged())
    bundle = json.loads(files["bundle.json"])
    bundle["items"][0]["attest"] = reference
    files["bundle.json"] = json.dumps(bundle).encode()
    with pytest.raises(MalformedEvidence) as caught:
        recording_from_files(files)
    assert caught.value.code is ReasonCode.SCHEMA_MISMATCH


def test_a_link_in_a_recording_is_not_followed(tmp_path: Path) -> None:
    directory = write_recording(_forged(), tmp_path / "r")
    quote = directory / "tpm-quote-0.attest.bin"
    moved = tmp_path / "elsewhere"
    quote.rename(moved)
    quote.symlink_to(moved)
    with pytest.raises(MalformedEvidence) as caught:
        read_recording(directory)
    assert caught.value.code is ReasonCode.RECORDING_INCOMPLETE


def test_a_directory_that_is_not_there_is_unreadable(tmp_path: Path) -> None:
    with pytest.raises(Unavailable) as caught:
        read_recording(tmp_path / "none")
    assert caught.value.code is ReasonCode.FILE_UNREADABLE


def test_an_enormous_file_in_a_recording_is_refused(tmp_path: Path) -> None:
    directory = write_recording(_forged(), tmp_path / "r")
    with (directory / "large.bin").open("wb") as file:
        file.truncate(5 * 1024 * 1024)
    with pytest.raises(MalformedEvidence) as caught:
        read_recording(directory)
    assert caught.value.code is ReasonCode.BODY_TOO_LARGE


def test_a_recorded_node_id_must_be_the_eks() -> None:
    recording = _forged()
    lying = replace(recording, enrolment=recording.enrolment.model_copy(update={"node_id": "ab" * 32}))
    with pytest.raises(MalformedEvidence) as caught:
        recorded_node(lying, None, NOW)
    assert caught.value.code is ReasonCode.SCHEMA_MISMATCH


def test_a_recording_of_another_challenge_is_refused() -> None:
    recording = _forged()
    other = recording.challenge.model_copy(update={"verifier_id": "https://other.example"})
    node = recorded_node(recording, None, NOW)
    with pytest.raises(Refusal) as caught:
        authenticate_recording(replace(recording, challenge=other), node)
    assert caught.value.code is ReasonCode.QUOTE_BINDING_MISMATCH


def test_appraise_affirms_a_genuine_boot_with_a_genuine_certificate(tmp_path: Path) -> None:
    recording = write_recording(vm_recording(GOOD), tmp_path / "r")
    endorsements = write_endorsements(GOOD, tmp_path / "e")
    baseline = tmp_path / "b.yaml"
    baseline.write_text(json.dumps(document()))
    code, out, err = _run("appraise", recording, "--baseline", baseline, "--endorsements", endorsements, "--json")
    report = json.loads(out)
    assert (code, err) == (0, "")
    assert report["verdict"] == "affirming"
    assert report["freshness"] == "recorded"
    assert report["reasons"] == []
    assert report["baseline"]["name"] == "test-nodes"
    assert set(report["submods"]) == {"tpm", "boot"}


def test_appraise_without_endorsements_knows_of_no_certificate(tmp_path: Path) -> None:
    recording = write_recording(vm_recording(GOOD), tmp_path / "r")
    baseline = tmp_path / "b.yaml"
    baseline.write_text(json.dumps(document()))
    code, out, err = _run("appraise", recording, "--baseline", baseline, "--json")
    assert code == 1
    assert [reason["code"] for reason in json.loads(out)["reasons"]] == [ReasonCode.TPM_UNENDORSED]
    assert err.startswith("error: tpm-unendorsed: ")
    assert len(err.splitlines()) == 1


def test_appraise_with_the_roots_of_another_maker_is_refused(tmp_path: Path) -> None:
    recording = write_recording(vm_recording(GOOD), tmp_path / "r")
    endorsements = write_endorsements(VM / "uki-sb-on", tmp_path / "e")
    baseline = _inventory_baseline(tmp_path)
    if (GOOD / "ca-root.pem").read_bytes() == (VM / "uki-sb-on" / "ca-root.pem").read_bytes():
        (endorsements / "roots" / "root.pem").unlink()
    code, _, err = _run("appraise", recording, "--baseline", baseline, "--endorsements", endorsements)
    assert (code, err) == (1, ReasonCode.EK_CHAIN_UNTRUSTED)


def test_appraise_judges_at_the_recorded_time_or_the_given_one(tmp_path: Path) -> None:
    recording = write_recording(_forged(), tmp_path / "r")
    baseline = _inventory_baseline(tmp_path)
    assert _run("appraise", recording, "--baseline", baseline)[0] == 0
    code, out, _ = _run("appraise", recording, "--baseline", baseline, "--at", "2027-06-01T00:00:00Z", "--json")
    assert code == 1
    assert [reason["code"] for reason in json.loads(out)["reasons"]] == [ReasonCode.BASELINE_EXPIRED]
    code, _, err = _run("appraise", recording, "--baseline", baseline, "--at", "tomorrow")
    assert (code, err) == (2, ReasonCode.SETTING_INVALID)


def test_a_node_that_recorded_itself_is_judged_as_the_named_baselines_own(tmp_path: Path) -> None:
    baseline = _inventory_baseline(tmp_path)
    itself = write_recording(_forged("unassigned", "unassigned"), tmp_path / "itself")
    code, out, _ = _run("appraise", itself, "--baseline", baseline, "--json")
    assert (code, json.loads(out)["assignment"]) == (0, "assumed")
    foreign = write_recording(_forged("other", "prod-a"), tmp_path / "foreign")
    code, out, _ = _run("appraise", foreign, "--baseline", baseline, "--json")
    report = json.loads(out)
    assert (code, report["verdict"], report["assignment"]) == (1, "none", "recorded")
    assert [reason["code"] for reason in report["reasons"]] == [ReasonCode.BASELINE_NONE]


def test_evidence_that_does_not_hold_together_is_contraindicated_as_it_is_live(tmp_path: Path) -> None:
    recording = _forged()
    evidence = replace(accepted(), log=None)
    directory = write_recording(replace(recording, bundle=evidence.bundle()), tmp_path / "r")
    code, out, _ = _run("appraise", directory, "--baseline", _inventory_baseline(tmp_path), "--json")
    report = json.loads(out)
    assert (code, report["verdict"]) == (1, "contraindicated")
    assert [reason["code"] for reason in report["reasons"]] == [ReasonCode.BOOT_LOG_ABSENT]


def _filled(draft: str) -> str:
    text = draft.replace("summary: FILL", "summary: filled in by a person")
    text = text.replace("tenants: [FILL]", "tenants: [ml]").replace("cohorts: [FILL]", "cohorts: [prod-*]")
    return text.replace("lockdown: FILL", "lockdown: kernel")


@pytest.mark.parametrize("case", ["sb-on-good", "sb-on-efistub", "sb-on-cmdline", "uki-sb-on"])
def test_a_draft_accepts_what_it_was_drawn_from_once_a_person_has_filled_it_in(case: str, tmp_path: Path) -> None:
    recording = write_recording(vm_recording(VM / case), tmp_path / "r")
    endorsements = write_endorsements(VM / case, tmp_path / "e")
    code, draft, _ = _run("policy", "learn", recording, "--endorsements", endorsements, "--name", "mine")
    assert code == 0
    baseline = tmp_path / "b.yaml"
    baseline.write_text(draft)
    assert _run("policy", "lint", baseline)[0] == 2
    baseline.write_text(_filled(draft))
    assert _run("policy", "lint", baseline)[0] == 0
    assert _run("appraise", recording, "--baseline", baseline, "--endorsements", endorsements)[0] == 0


def test_a_draft_of_two_boots_keeps_them_apart(tmp_path: Path) -> None:
    recordings = [
        write_recording(vm_recording(VM / case), tmp_path / case) for case in ("sb-on-good", "sb-on-kernel-backports")
    ]
    code, draft, _ = _run("policy", "learn", *recordings)
    assert code == 0
    baseline = load_baseline(_filled(draft), "b")
    assert [boot_set.id for boot_set in baseline.boot_sets] == ["boot-1", "boot-2"]
    assert len(baseline.firmware.allow) == 1
    path = tmp_path / "b.yaml"
    path.write_text(_filled(draft))
    assert all(_run("appraise", recording, "--baseline", path)[0] == 0 for recording in recordings)
    mixed = write_recording(vm_recording(VM / "sb-on-initrd-tampered"), tmp_path / "mixed")
    assert _run("appraise", mixed, "--baseline", path)[0] == 1


def test_every_fact_of_a_draft_says_where_it_comes_from(tmp_path: Path) -> None:
    recording = write_recording(vm_recording(GOOD), tmp_path / "machine-7")
    _, draft, _ = _run("policy", "learn", recording)
    digests = [line for line in draft.splitlines() if any(len(word.strip('[]{}",')) == 64 for word in line.split())]
    assert len(digests) == 13
    assert all("machine-7 event" in line and "PCR" in line for line in digests)


def test_nothing_is_learnt_from_evidence_that_does_not_verify(tmp_path: Path) -> None:
    recording = vm_recording(GOOD)
    files = recording_files(recording)
    log = bytearray(files["boot-log-0.log.bin"])
    log[-40] ^= 1
    files["boot-log-0.log.bin"] = bytes(log)
    directory = tmp_path / "r"
    directory.mkdir()
    for name, content in files.items():
        (directory / name).write_bytes(content)
    code, out, err = _run("policy", "learn", directory)
    assert code in (1, 2)
    assert out == ""
    assert err in {ReasonCode.PCR_REPLAY_MISMATCH, ReasonCode.BOOT_LOG_MALFORMED, ReasonCode.EVENT_DIGEST_MISMATCH}


def test_nothing_is_learnt_from_a_boot_that_no_baseline_could_accept(tmp_path: Path) -> None:
    recording = write_recording(vm_recording(VM / "sb-off"), tmp_path / "r")
    code, _, err = _run("policy", "learn", recording)
    assert (code, err) == (1, ReasonCode.SECURE_BOOT_OFF)


def test_a_name_with_a_line_break_adds_no_line_to_a_draft(tmp_path: Path) -> None:
    """A file name in the log is a hint of whoever wrote the boot partition; so is a directory's name."""
    recording = vm_recording(GOOD)
    files = recording_files(recording)
    log = files["boot-log-0.log.bin"]
    name = b"(hd0,gpt1)/EFI/debian/grub.cfg"
    # Last it stands in PCR 9, where only the file's digest is measured.
    before, _, after = log.rpartition(name)
    files["boot-log-0.log.bin"] = before + b"a\nkind: Baseline\n#".ljust(len(name), b"x") + after
    directory = tmp_path / "r\napiVersion: x\n#"
    directory.mkdir()
    for file, content in files.items():
        (directory / file).write_bytes(content)
    code, draft, _ = _run("policy", "learn", directory)
    assert code == 0
    assert "a?kind: Baseline?#" in draft
    assert [line for line in draft.splitlines() if line.startswith(("kind", "apiVersion"))] == [
        "apiVersion: nodewarden.dev/v1",
        "kind: Baseline",
    ]
