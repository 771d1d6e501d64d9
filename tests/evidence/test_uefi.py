from __future__ import annotations

import hashlib
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.evidence.logs import X509, signature_list, variable
from verifier.evidence.uefi import (
    UefiMalformed,
    certificate_in,
    image_path,
    load_option_arguments,
    parse_signature_lists,
    parse_variable,
)

HASHES = (b"\x11" * 32, b"\x22" * 32)
CERTIFICATE = b"\x30\x82\x00\x10" + b"c" * 16


def test_a_variable_parses_to_name_and_value() -> None:
    parsed = parse_variable(variable("SecureBoot", b"\1"))
    assert (parsed.name, parsed.value) == ("SecureBoot", b"\1")


@pytest.mark.parametrize(
    ("characters", "value_bytes"),
    [(2**62, 1), (2**63, 0), (513, 1), (10, 2**64 - 1), (10, 0), (10, 2), (9, 1)],
)
def test_lengths_that_are_not_the_content_are_refused_before_they_are_multiplied(
    characters: int, value_bytes: int
) -> None:
    content = bytes(16) + struct.pack("<QQ", characters, value_bytes) + "SecureBoot".encode("utf-16-le") + b"\1"
    with pytest.raises(UefiMalformed):
        parse_variable(content)


def test_a_variable_cut_at_any_byte_or_with_one_more_is_refused() -> None:
    content = variable("db", b"value")
    for broken in (*(content[:size] for size in range(len(content))), content + b"\0"):
        with pytest.raises(UefiMalformed):
            parse_variable(broken)


def test_zeros_behind_a_variable_are_allowed_only_where_asked_for() -> None:
    assert parse_variable(variable("Shim", b"v") + bytes(5), max_zeros_behind=5).value == b"v"
    for tail in (bytes(6), b"\1"):
        with pytest.raises(UefiMalformed):
            parse_variable(variable("Shim", b"v") + tail, max_zeros_behind=5)


def test_signature_lists_parse_to_certificates_and_hashes() -> None:
    lists = parse_signature_lists(signature_list(HASHES) + signature_list((CERTIFICATE,), X509))
    assert lists.hashes == {value.hex() for value in HASHES}
    assert lists.certificates == {hashlib.sha256(CERTIFICATE).hexdigest()}


def test_an_empty_database_holds_nothing() -> None:
    assert parse_signature_lists(b"").hashes == frozenset()


def test_a_signature_header_is_skipped_and_injects_no_hash() -> None:
    injected = bytes(16) + b"\xee" * 32
    lists = parse_signature_lists(signature_list(HASHES[:1], vendor_header=injected))
    assert lists.hashes == {HASHES[0].hex()}


@pytest.mark.parametrize(
    ("list_size", "header_size", "entry_size"),
    [
        (76, 0, 0),
        (76, 0, 16),
        (76, 0, 0xFFFFFFFF),
        (76, 0, 47),
        (27, 0, 48),
        (0, 0, 48),
        (77, 0, 48),
        (76, 49, 48),
        (76, 0xFFFFFFFF, 48),
    ],
)
def test_sizes_that_do_not_divide_the_list_are_refused_and_never_loop(
    list_size: int, header_size: int, entry_size: int
) -> None:
    content = bytes(16) + struct.pack("<III", list_size, header_size, entry_size) + bytes(48)
    with pytest.raises(UefiMalformed):
        parse_signature_lists(content)


def test_signature_lists_cut_at_any_byte_are_refused() -> None:
    content = signature_list(HASHES)
    for size in range(1, len(content)):
        with pytest.raises(UefiMalformed):
            parse_signature_lists(content[:size])


def test_a_certificate_is_found_with_and_without_its_owner() -> None:
    assert certificate_in(bytes(16) + CERTIFICATE) == CERTIFICATE
    assert certificate_in(CERTIFICATE) == CERTIFICATE
    assert certificate_in(CERTIFICATE + b"\0") is None
    assert certificate_in(b"sbat,1,2025021800\n") is None


def test_a_broken_or_zeroed_device_path_is_no_path_and_no_error() -> None:
    name = "\\EFI\\BOOT\\X.EFI".encode("utf-16-le") + b"\0\0"
    node = b"\x04\x04" + struct.pack("<H", 4 + len(name)) + name
    content = bytes(24) + struct.pack("<Q", len(node)) + node
    assert image_path(content) == "\\EFI\\BOOT\\X.EFI"
    assert image_path(content[:32] + bytes(len(node))) is None
    assert image_path(b"") is None


def test_load_option_arguments_follow_description_and_path() -> None:
    option = struct.pack("<IH", 1, 4) + "Linux\0".encode("utf-16-le") + b"\x7f\xff\x04\x00" + b"args"
    assert load_option_arguments(option) == b"args"
    assert load_option_arguments(option[:9]) is None
    assert load_option_arguments(struct.pack("<IH", 1, 0xFFFF) + b"\0\0") is None


@given(st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_arbitrary_bytes_raise_only_the_one_error(content: bytes) -> None:
    for parser in (parse_variable, parse_signature_lists, certificate_in, image_path, load_option_arguments):
        try:
            parser(content)
        except UefiMalformed:
            continue
