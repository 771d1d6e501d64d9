from __future__ import annotations

import struct
from dataclasses import replace
from hashlib import sha256

import pytest

from tests.evidence.logs import (
    APPLICATION,
    BOOT_VARIABLE,
    IPL,
    TAG,
    Draft,
    changed,
    event,
    inserted,
    log_of,
    position_of,
    variable,
    vm_drafts,
    vm_log,
)
from verifier.appraisal.boot import measure_boot
from verifier.appraisal.boot_facts import BootFacts
from verifier.wire.codes import ReasonCode

ARGUMENTS = "console=ttyS0 loglevel=4 rootfstype=ramfs panic=1 ima_policy=tcb ima_template=ima-ng"
LOAD_OPTIONS = bytes.fromhex("ed223b8f1a000000") + b"LOADED_IMAGE::LoadOptions\0"
DRAFTS = vm_drafts()


def _facts(log: bytes) -> BootFacts:
    return measure_boot(log, "sha256").facts


def _load_options(measured: bytes) -> Draft:
    return event(9, TAG, LOAD_OPTIONS, measured)


def test_images_are_the_authenticode_digests_of_pcr_4_in_order() -> None:
    images = _facts(vm_log()).images
    assert [image.digest for image in images] == [d.digests["sha256"].hex() for d in DRAFTS if d.type == APPLICATION]
    assert [image.role for image in images] == ["loader", "loader", "kernel", "kernel"]
    assert images[0].claimed_path == "\\EFI\\BOOT\\BOOTX64.EFI"
    assert {image.origin.coverage for image in images} == {"digest-only"}


def test_another_kernel_changes_one_image() -> None:
    good, other = (
        [image.digest for image in _facts(vm_log(case)).images] for case in ("sb-on-good", "sb-on-kernel-backports")
    )
    assert good[:2] == other[:2]
    assert set(good[2:]).isdisjoint(other[2:])


def test_a_unified_kernel_image_is_a_kernel_with_its_sections() -> None:
    facts = _facts(vm_log("uki-sb-on"))
    assert [image.role for image in facts.images] == ["kernel"]
    assert [section.name for section in facts.stub_sections] == [".linux", ".osrel", ".cmdline", ".initrd"]
    assert [(line.source, line.text) for line in facts.command_lines] == [("systemd-stub", None), ("efi-stub", None)]
    assert {line.origin.coverage for line in facts.command_lines} == {"digest-only"}


@pytest.mark.parametrize("case", ["sb-on-good", "sb-on-kernel-backports", "sb-on-initrd-tampered"])
def test_the_command_line_of_grub_is_covered_text(case: str) -> None:
    (line,) = _facts(vm_log(case)).command_lines
    assert line.text == f"/vmlinuz {ARGUMENTS}"
    assert line.arguments == ARGUMENTS
    assert (line.source, line.origin.pcr, line.origin.coverage) == ("grub", 8, "covered")


def test_another_command_line_is_seen() -> None:
    (line,) = _facts(vm_log("sb-on-cmdline")).command_lines
    assert line.arguments is not None
    assert line.arguments != ARGUMENTS


def test_an_edited_command_line_is_not_believed() -> None:
    for start in (b"kernel_cmdline: ", b"grub_cmd: linux"):
        index = position_of(DRAFTS, 8, IPL, start)
        edited = DRAFTS[index].with_content(DRAFTS[index].content.replace(b"panic=1", b"panic=0"))
        boot = measure_boot(changed(DRAFTS, index, edited), "sha256")
        assert [line.arguments for line in boot.facts.command_lines] == [ARGUMENTS]
        assert [failure.code for failure in boot.failures] == [ReasonCode.EVENT_DIGEST_MISMATCH]


@pytest.mark.parametrize("prefix", [b"grub_cmd: ", b"grub_cmd ", b"kernel_cmdline: "])
@pytest.mark.parametrize(
    "text",
    [
        b"/vmlinuz init=/bin/sh",
        b'"/boot/my kernel" init=/bin/sh',
        b"(http,10.0.0.1)/vmlinuz init=/bin/sh",
        b"'/boot/vmlinuz' init=/bin/sh",
        b"\\/vmlinuz init=/bin/sh",
        b"vmlinuz-6.1/bzImage init=/bin/sh",
        b"vmlinuz\tinit=/bin/sh",
        b"x=\xa0init=/bin/sh",
        b"x=y\ninit=/bin/sh",
    ],
)
def test_a_command_line_relabelled_as_a_command_stays_a_command_line(prefix: bytes, text: bytes) -> None:
    content = prefix + text
    later = event(8, IPL, content, text)
    boot = measure_boot(log_of([*DRAFTS, later]), "sha256")
    assert boot.failures == ()
    assert boot.facts.command_lines[-1].text == text.decode("utf-8", "backslashreplace")


@pytest.mark.parametrize("command", ["linux", "linuxefi", "linux16"])
def test_the_arguments_of_a_command_that_starts_linux_are_a_command_line(command: str) -> None:
    """Where the path is a bare word (net boot), the line by itself could pass for a command; this text cannot."""
    text = f"{command} vmlinuz init=/bin/sh".encode()
    relabelled = b"vmlinuz init=/bin/sh"
    drafts = [
        *DRAFTS,
        event(8, IPL, b"grub_cmd: " + text + b"\0", text),
        event(8, IPL, b"grub_cmd: " + relabelled + b"\0", relabelled),
    ]
    boot = measure_boot(log_of(drafts), "sha256")
    assert boot.failures == ()
    assert boot.facts.command_lines[-1].text == "vmlinuz init=/bin/sh"


def test_a_menu_entry_is_a_definition_and_no_command_line() -> None:
    text = b"menuentry rescue {\n  linux /vmlinuz init=/bin/sh\n}"
    boot = measure_boot(log_of([*DRAFTS, event(8, IPL, b"grub_cmd: " + text + b"\0", text)]), "sha256")
    assert boot.facts.loader_commands[-1].text == text.decode()
    assert [line.arguments for line in boot.facts.command_lines] == [ARGUMENTS]


def test_a_command_line_appended_later_does_not_hide_the_first() -> None:
    later = event(8, IPL, b"kernel_cmdline: /vmlinuz quiet\0", b"/vmlinuz quiet")
    lines = _facts(log_of([*DRAFTS, later])).command_lines
    assert [line.arguments for line in lines] == [ARGUMENTS, "quiet"]


def test_text_in_pcr_8_that_no_digest_covers_is_a_failure() -> None:
    unknown = event(8, IPL, b"something: else\0", b"hidden")
    assert ReasonCode.EVENT_DIGEST_MISMATCH in {
        failure.code for failure in measure_boot(log_of([*DRAFTS, unknown]), "sha256").failures
    }


@pytest.mark.parametrize(
    ("content", "covered"),
    [
        (b"grub_cmd: set timeout=0\0", b"set timeout=0"),
        (b"grub_cmd set timeout=0\0", b"set timeout=0\0"),
    ],
)
def test_commands_of_both_forms_of_grub_are_covered_text(content: bytes, covered: bytes) -> None:
    boot = measure_boot(log_of([*DRAFTS, event(8, IPL, content, covered)]), "sha256")
    assert boot.failures == ()
    assert boot.facts.loader_commands[-1].text == "set timeout=0"


def test_the_old_form_of_a_grub_command_line_is_covered_text() -> None:
    old = event(8, IPL, b"grub_kernel_cmdline /vmlinuz quiet\0", b"/vmlinuz quiet")
    assert _facts(log_of([*DRAFTS, old])).command_lines[-1].arguments == "quiet"


def test_the_options_of_systemd_boot_are_covered_text() -> None:
    wide = "initrd=\\i.img quiet\0".encode("utf-16-le")
    boot = measure_boot(log_of([*DRAFTS, event(8, IPL, wide[:-1], wide)]), "sha256")
    assert boot.failures == ()
    assert boot.facts.command_lines[-1].text == "initrd=\\i.img quiet"
    assert boot.facts.command_lines[-1].source == "systemd-boot"


def test_the_options_of_systemd_stub_in_pcr_12_are_covered_text() -> None:
    wide = " console=ttyS0".encode("utf-16-le")
    line = _facts(log_of([*DRAFTS, event(12, IPL, wide)])).command_lines[-1]
    assert (line.text, line.source, line.origin.pcr) == (" console=ttyS0", "systemd-stub", 12)


@pytest.mark.parametrize(
    "draft",
    [
        event(12, IPL, b"x", "init=/bin/sh".encode("utf-16-le")),
        event(12, TAG, b"\0\0\0\0", "init=/bin/sh".encode("utf-16-le")),
        event(12, IPL, b"credentials: x.cred", b"an archive"),
        event(12, IPL, b"odd"),
    ],
)
def test_what_systemd_stub_measures_in_pcr_12_is_a_command_line_without_text_if_not_covered(draft: Draft) -> None:
    boot = measure_boot(log_of([*DRAFTS, draft]), "sha256")
    line = boot.facts.command_lines[-1]
    assert boot.failures == ()
    assert (line.text, line.source, line.digest) == (None, "systemd-stub", draft.digests["sha256"].hex())


def test_options_in_pcr_12_under_another_type_keep_their_text() -> None:
    boot = measure_boot(log_of([*DRAFTS, event(12, TAG, "init=/bin/sh".encode("utf-16-le"))]), "sha256")
    assert boot.facts.command_lines[-1].text == "init=/bin/sh"


def test_load_options_that_a_grub_command_gives_too_are_covered_text() -> None:
    lines = _facts(vm_log("sb-on-efistub")).command_lines
    assert [(line.source, line.origin.coverage, line.arguments) for line in lines] == [
        ("grub", "covered", f"{ARGUMENTS} initrd=initrd.img"),
        ("efi-stub", "covered", f"{ARGUMENTS} initrd=initrd.img"),
    ]


@pytest.mark.parametrize("tail", [b"", b"\0\0"])
def test_load_options_as_grub_hands_them_on_are_covered_text(tail: bytes) -> None:
    text = f"BOOT_IMAGE=/vmlinuz {ARGUMENTS}"
    line = _facts(log_of([*DRAFTS, _load_options(text.encode("utf-16-le") + tail)])).command_lines[-1]
    assert (line.text, line.origin.coverage) == (text, "covered")


def test_load_options_that_nothing_in_the_log_explains_have_no_text() -> None:
    line = _facts(log_of([*DRAFTS, _load_options("init=/bin/sh\0".encode("utf-16-le"))])).command_lines[-1]
    assert (line.source, line.text, line.origin.coverage) == ("efi-stub", None, "digest-only")


def test_load_options_of_a_boot_variable_have_a_text_and_only_the_logs_word_that_they_are_a_command_line() -> None:
    wide = "quiet\0".encode("utf-16-le")
    option = struct.pack("<IH", 1, 4) + "Linux\0".encode("utf-16-le") + b"\x7f\xff\x04\x00" + wide
    for measured in (option, None):
        boot_variable = event(1, BOOT_VARIABLE, variable("Boot0009", option), measured)
        line = _facts(log_of([boot_variable, *DRAFTS, _load_options(wide)])).command_lines[-1]
        assert (line.text, line.origin.coverage) == ("quiet", "digest-only")


def test_every_event_of_pcr_9_is_a_file_whatever_it_is_called() -> None:
    files = _facts(vm_log()).files
    assert [(file.claimed_role, file.claimed_name) for file in files] == [
        ("config", "(hd0,gpt1)/EFI/debian/grub.cfg"),
        ("kernel", "/vmlinuz"),
        ("initrd", "/initrd.img"),
    ]
    index = position_of(DRAFTS, 9, IPL, b"/initrd")
    renamed = _facts(changed(DRAFTS, index, DRAFTS[index].with_content(b"/grub/grubenv\0"))).files
    assert [file.digest for file in renamed] == [file.digest for file in files]


def test_a_tampered_initrd_has_another_digest() -> None:
    good, tampered = (_facts(vm_log(case)).files[-1] for case in ("sb-on-good", "sb-on-initrd-tampered"))
    assert good.claimed_name == tampered.claimed_name
    assert good.digest != tampered.digest


def test_the_initrd_of_an_efi_stub_is_a_file() -> None:
    assert [file.claimed_role for file in _facts(vm_log("uki-sb-on")).files] == ["other", "initrd"]


def test_a_section_name_is_believed_by_its_digest_and_not_by_its_text() -> None:
    drafts = vm_drafts("uki-sb-on")
    index = position_of(drafts, 11, IPL)
    renamed = changed(drafts, index, drafts[index].with_content(b"grub\0"))
    assert _facts(renamed).stub_sections == _facts(vm_log("uki-sb-on")).stub_sections
    unnamed = changed(drafts, index, replace(drafts[index], digests={"sha1": bytes(20), "sha256": bytes(32)}))
    assert ".linux" not in {section.name for section in _facts(unnamed).stub_sections}


def test_chainloader_options_stand_before_the_path() -> None:
    text = b"chainloader --force /vmlinuz quiet"
    line = _facts(log_of([*DRAFTS, event(8, IPL, b"grub_cmd: " + text + b"\0", text)])).command_lines[-1]
    assert line.arguments == "quiet"


def test_bytes_that_are_no_text_are_shown_and_not_dropped() -> None:
    text = b"/vmlinuz \xff\xfe"
    boot = measure_boot(inserted(DRAFTS, len(DRAFTS), event(8, IPL, b"kernel_cmdline: " + text, text)), "sha256")
    assert boot.facts.command_lines[-1].arguments == "\\xff\\xfe"
    assert boot.facts.command_lines[-1].digest == sha256(text).hexdigest()
