"""Logs whose digests are those that were measured, so that a genuine quote matches, and whose other bytes are forged.

Each starts from a boot that is affirmed. Either something more was measured, honestly logged or under another type or
content; or the log says something else of what was.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from policies.lint import lint
from policies.loader import load_baseline
from tests.evidence.logs import (
    ACTION,
    APPLICATION,
    AUTHORITY,
    EFI_ACTION,
    IPL,
    SECURITY,
    TAG,
    VARIABLE,
    Draft,
    event,
    log_of,
    position_of,
    variable,
    vm_drafts,
)
from tests.forge import baselines
from tests.forge.evidence import NOW, VERIFIER_ID, accepted, challenge_for, forged_node, measured, pcrs_of
from verifier.appraisal.appraise import Appraisal, appraise, rejected
from verifier.appraisal.authenticate import authenticate
from verifier.appraisal.verify import verify
from verifier.evidence.parse import parse_bundle
from verifier.wire.challenge import DEFAULT_PCRS
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Rejection
from verifier.wire.result import Verdict

SHIM = bytes.fromhex("50ab5d6046e00043abb63dd810dd8b23")
CERTIFICATE = b"\x30\x82\x02\xbc" + b"C" * 700
GOOD = vm_drafts()
UKI = vm_drafts("uki-sb-on")
LOAD_OPTIONS = bytes.fromhex("ed223b8f1a000000") + b"LOADED_IMAGE::LoadOptions\0"
INITRD = bytes.fromhex("ec223b8f0d000000") + b"Linux initrd\0"
EVIL_OPTIONS = "init=/bin/sh\0".encode("utf-16-le")


def _judge(
    drafts: Sequence[Draft], document: dict[str, Any] | None = None, quoted: Sequence[Draft] | None = None
) -> Appraisal:
    """The verdict on the log of `drafts`, quoted over what the TPM measured: the same, or `quoted`."""
    document = baselines.document() if document is None else document
    compiled = baselines.compiled(document)
    pcrs = tuple(sorted({*DEFAULT_PCRS, *compiled.required_pcrs}))
    evidence = accepted(challenge=challenge_for(forged_node(), pcrs=pcrs))
    log = log_of(drafts)
    evidence = replace(evidence, log=log, pcrs=pcrs_of(log if quoted is None else log_of(quoted), pcrs))
    authentic = authenticate(
        parse_bundle(evidence.bundle()), evidence.node.enrolled, evidence.challenge, VERIFIER_ID, None
    )
    try:
        verified = verify(authentic, measured(log), None)
    except Rejection as rejection:
        return rejected(authentic, rejection.failure)
    return appraise(verified, (compiled,), NOW)


def _codes(appraisal: Appraisal) -> set[ReasonCode]:
    return {failure.code for failure in appraisal.failures}


def _with(draft: Draft, at: int | None = None, drafts: Sequence[Draft] = GOOD) -> list[Draft]:
    index = len(drafts) if at is None else at
    return [*drafts[:index], draft, *drafts[index:]]


def test_the_genuine_boots_are_affirmed_by_baselines_without_a_fault() -> None:
    for drafts, document in ((GOOD, baselines.document()), (UKI, _uki()), (_stub_boot(), _stub())):
        assert lint(load_baseline(json.dumps(document), "b"), "b") == ()
        appraisal = _judge(drafts, document)
        assert (appraisal.failures, appraisal.verdict) == ((), Verdict.AFFIRMING)


@pytest.mark.parametrize("kind", [ACTION, EFI_ACTION, 0x12])
def test_an_image_called_an_action_with_its_file_as_content_is_no_action(kind: int) -> None:
    image = b"MZ" + b"signed, and not listed" * 5000
    first = position_of(GOOD, 4, APPLICATION)
    honest = event(4, APPLICATION, bytes(32), image)
    assert _codes(_judge(_with(honest, first))) == {ReasonCode.BOOT_IMAGE_NOT_ALLOWED}
    forged = Draft(4, kind, honest.digests, image)
    assert _codes(_judge(_with(forged, first))) == {ReasonCode.EVENT_NOT_ALLOWED}


@pytest.mark.parametrize("kind", [AUTHORITY, VARIABLE])
@pytest.mark.parametrize(
    ("name", "guid", "value"),
    [
        ("MokList", SHIM, CERTIFICATE),
        ("MokList", SHIM, bytes(16) + CERTIFICATE),
        ("MokList", SHIM, b"E" * 32),
        ("MokListRT", SHIM, b"E" * 32),
        ("db", SECURITY, b"E" * 32),
        ("MokList", SHIM, b"\x30\x83\x00\x02\xbc" + b"C" * 700),
        ("MokListTrusted", SECURITY, b"\1"),
        ("SomethingNew", SHIM, b"\1"),
    ],
)
def test_an_authority_that_is_not_listed_is_refused_under_every_type_and_form(
    name: str, guid: bytes, value: bytes, kind: int
) -> None:
    assert _codes(_judge(_with(event(7, kind, variable(name, value, guid))))) == {
        ReasonCode.SECURE_BOOT_AUTHORITY_UNTRUSTED
    }


@pytest.mark.parametrize("kind", [AUTHORITY, VARIABLE])
def test_shim_that_does_not_validate_is_refused_though_secure_boot_is_on(kind: int) -> None:
    state = event(7, kind, variable("MokSBState", b"\1", SHIM))
    assert _codes(_judge(_with(state))) == {ReasonCode.SECURE_BOOT_SHIM_VALIDATION_OFF}
    assert _judge(_with(event(7, kind, variable("MokSBState", b"\0", SHIM)))).verdict is Verdict.AFFIRMING


@pytest.mark.parametrize("kind", [IPL, TAG, ACTION, APPLICATION])
@pytest.mark.parametrize("name", [b"MokSBState\0", b"MokListTrusted\0", b"", b"\1"])
def test_a_state_of_shim_in_pcr_14_is_judged_whatever_the_log_calls_it(name: bytes, kind: int) -> None:
    """MokSBState and MokListTrusted may have one value, so one digest, and names are hints: one more is too many."""
    trusted = position_of(GOOD, 14, IPL, b"MokListTrusted")
    assert _codes(_judge(_with(event(14, kind, name, b"\1"), trusted))) == {ReasonCode.MOK_NOT_ALLOWED}


def test_another_key_in_moklist_is_refused() -> None:
    index = position_of(GOOD, 14, IPL, b"MokList\0")
    enrolled = [*GOOD[:index], event(14, IPL, b"MokList\0", b"more keys"), *GOOD[index + 1 :]]
    assert _codes(_judge(enrolled)) == {ReasonCode.MOK_NOT_ALLOWED}


GRUB_LINES = [
    b"/vmlinuz init=/bin/sh",
    b'"/boot/my kernel" init=/bin/sh',
    b"(tftp)/vmlinuz init=/bin/sh",
    b"linux vmlinuz init=/bin/sh",
    b"linux /boot/my kernel init=/bin/sh",
    b"linuxefi /vmlinuz init=/bin/sh",
    b"linux16 /vmlinuz init=/bin/sh",
    b"chainloader /vmlinuz init=/bin/sh",
    b"chainloader --force /vmlinuz init=/bin/sh",
]


@pytest.mark.parametrize("prefix", [b"grub_cmd: ", b"grub_cmd ", b"kernel_cmdline: ", b"grub_kernel_cmdline "])
@pytest.mark.parametrize("text", GRUB_LINES)
def test_a_command_line_of_grub_is_judged_under_every_prefix(text: bytes, prefix: bytes) -> None:
    line = event(8, IPL, prefix + text, text)
    assert ReasonCode.CMDLINE_ARGUMENT_FORBIDDEN in _codes(_judge(_with(line)))


def test_a_command_that_starts_nothing_is_none() -> None:
    text = b"set timeout=0"
    assert _judge(_with(event(8, IPL, b"grub_cmd: " + text, text))).verdict is Verdict.AFFIRMING


def _digest(pcr: int, kind: int, start: bytes = b"", which: int = 0) -> str:
    return UKI[position_of(UKI, pcr, kind, start, which)].digests["sha256"].hex()


def _uki() -> dict[str, Any]:
    """The baseline of the recorded boot of a unified kernel image."""
    document = baselines.document()
    facts = measured(log_of(UKI)).facts
    document["secureBoot"]["authorities"] = [authority.sha256 for authority in facts.secure_boot.authorities]
    document["firmware"]["allow"][0]["blobs"] = sorted({blob.digest for blob in facts.firmware.blobs})
    document["evidence"]["requirePcrReplay"] = [*DEFAULT_PCRS, 11, 12]
    boot_set = document["bootSets"][0]
    boot_set.pop("mok")
    boot_set["images"] = [{"role": "kernel", "authenticode": [_digest(4, APPLICATION)]}]
    boot_set["files"] = [_digest(9, TAG, LOAD_OPTIONS[:4]), _digest(9, TAG, INITRD[:4])]
    section = _digest(11, IPL, ".cmdline".encode("utf-16-le"), 1)
    boot_set["cmdline"] = {"digests": [section, _digest(9, TAG, LOAD_OPTIONS[:4])]}
    return document


@pytest.mark.parametrize(("kind", "content"), [(IPL, EVIL_OPTIONS), (IPL, b"x"), (TAG, EVIL_OPTIONS), (TAG, b"x")])
def test_what_systemd_stub_adds_to_a_command_line_cannot_be_hidden(kind: int, content: bytes) -> None:
    line = event(12, kind, content, EVIL_OPTIONS)
    covered = content == EVIL_OPTIONS
    assert _codes(_judge(_with(line, drafts=UKI), _uki())) == {
        ReasonCode.CMDLINE_ARGUMENT_NOT_ALLOWED if covered else ReasonCode.CMDLINE_UNKNOWN
    }
    # Left out of the log, it is missing from what PCR 12 holds, and PCR 12 is required.
    assert _codes(_judge(UKI, _uki(), quoted=_with(line, drafts=UKI))) == {ReasonCode.PCR_WITHOUT_EVENTS}


def test_a_baseline_that_does_not_require_pcr_12_does_not_use_its_lines_either() -> None:
    line = event(12, IPL, " console=ttyS0".encode("utf-16-le"))
    document = baselines.document()
    document["bootSets"][0]["cmdline"]["digests"] = [line.digests["sha256"].hex()]
    assert _codes(_judge(_with(line), document)) == {ReasonCode.CMDLINE_UNKNOWN}


def _stub_boot(options: bytes = b"good") -> list[Draft]:
    """A kernel that the firmware starts itself: its EFI stub measures load options and initrd."""
    images = [index for index, draft in enumerate(GOOD) if draft.type == APPLICATION]
    kept = [d for i, d in enumerate(GOOD) if d.pcr not in (8, 9, 14) and i not in images[:-1]]
    return [*kept, event(9, TAG, LOAD_OPTIONS, options), event(9, TAG, INITRD, b"initrd")]


def _stub() -> dict[str, Any]:
    document = baselines.document()
    document["evidence"]["requirePcrReplay"] = [*DEFAULT_PCRS, 11, 12]
    boot_set = document["bootSets"][0]
    boot_set.pop("mok")
    options, initrd = (draft.digests["sha256"].hex() for draft in _stub_boot()[-2:])
    boot_set["images"] = boot_set["images"][-1:]
    boot_set["files"] = [options, initrd]
    boot_set["cmdline"] = {"digests": [options]}
    return document


def test_load_options_called_a_file_are_a_file_that_is_not_listed() -> None:
    evil = event(9, TAG, LOAD_OPTIONS, EVIL_OPTIONS)
    expected = {ReasonCode.CMDLINE_UNKNOWN, ReasonCode.BOOT_FILE_NOT_ALLOWED}
    assert _codes(_judge(_with(evil, drafts=_stub_boot()), _stub())) == expected
    # The listed options, extended by hand afterwards, stand in for those that were renamed.
    for forged in (replace(evil, type=IPL, content=b"/some/file\0"), replace(evil, content=INITRD)):
        assert _codes(_judge(_with(forged, drafts=_stub_boot()), _stub())) == {ReasonCode.BOOT_FILE_NOT_ALLOWED}


@pytest.mark.parametrize("pcr", [4, 7, 8, 9, 14])
def test_nothing_that_was_measured_can_be_left_out(pcr: int) -> None:
    index = next(i for i, draft in reversed(list(enumerate(GOOD))) if draft.pcr == pcr)
    assert _codes(_judge([*GOOD[:index], *GOOD[index + 1 :]], quoted=GOOD)) >= {ReasonCode.PCR_REPLAY_MISMATCH}


def test_names_and_paths_decide_nothing() -> None:
    """A digest-only fact under any name is the same fact."""
    renamed = [
        replace(draft, content=struct.pack("<I", index)) if draft.pcr in (9, 14) and draft.type == IPL else draft
        for index, draft in enumerate(GOOD)
    ]
    assert _judge(renamed).verdict is Verdict.AFFIRMING


def test_a_file_that_is_not_listed_is_told_with_its_name_and_event() -> None:
    evil = event(9, IPL, b"(hd0,gpt1)/EFI/debian/grub.cfg\0", b"another configuration")
    (failure,) = _judge(_with(evil)).failures
    assert (failure.code, failure.pcr, failure.event_index) == (ReasonCode.BOOT_FILE_NOT_ALLOWED, 9, len(GOOD) + 1)
    assert failure.observed is not None
    assert failure.observed.endswith("(claims (hd0,gpt1)/EFI/debian/grub.cfg)")
