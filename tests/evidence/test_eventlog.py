from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.evidence.logs import Draft, encoded, event, header, log_of, no_action, vm_drafts, vm_log
from verifier.appraisal.boot import measure_boot
from verifier.evidence.eventlog import MAX_EVENTS, EventLog, parse_event_log
from verifier.wire.bundle import MAX_BOOT_LOG_BYTES
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence


def _refused(log: bytes) -> ReasonCode:
    with pytest.raises(MalformedEvidence) as refusal:
        parse_event_log(log)
    return refusal.value.code


def _contents(log: EventLog) -> bytes:
    return b"".join(event.content for event in log.events)


def test_a_real_log_parses_to_the_events_that_a_second_reader_finds() -> None:
    parsed = parse_event_log(vm_log())
    drafts = vm_drafts()
    assert parsed.format == "crypto-agile"
    assert parsed.algorithms == ("sha1", "sha256")
    assert [(e.pcr, e.type, dict(e.digests), e.content) for e in parsed.events[1:]] == [
        (d.pcr, d.type, d.digests, d.content) for d in drafts
    ]
    assert [e.index for e in parsed.events] == list(range(len(drafts) + 1))


def test_a_log_cut_within_an_event_is_malformed_at_every_byte() -> None:
    log = log_of(vm_drafts()[:6])
    whole = {len(log_of(vm_drafts()[:count])) for count in range(7)}
    for size in set(range(len(log))) - whole:
        with pytest.raises(MalformedEvidence) as refusal:
            # A first event of PCR 0 cut within its zeros looks like padding, which no TPM's log has.
            measure_boot(log[:size], "sha256")
        assert refusal.value.code is ReasonCode.BOOT_LOG_MALFORMED


@pytest.mark.parametrize("tail", [b"\1", b"\0\1", b"\xff\0", b"\0" * 16 + b"\1"])
def test_bytes_behind_the_last_event_are_refused(tail: bytes) -> None:
    assert _refused(vm_log() + tail) is ReasonCode.BOOT_LOG_MALFORMED


@pytest.mark.parametrize("fill", [b"\0", b"\xff"])
@pytest.mark.parametrize("size", [1, 7, 8, 4096])
def test_uniform_padding_makes_a_log_a_ccel_buffer_and_adds_no_event(fill: bytes, size: int) -> None:
    parsed = parse_event_log(vm_log() + fill * size)
    assert parsed.format == "ccel"
    assert _contents(parsed) == _contents(parse_event_log(vm_log()))


def test_an_empty_log_is_malformed() -> None:
    assert _refused(b"") is ReasonCode.BOOT_LOG_MALFORMED


def test_a_log_above_the_limit_is_too_large() -> None:
    assert _refused(bytes(MAX_BOOT_LOG_BYTES + 1)) is ReasonCode.BODY_TOO_LARGE


def test_more_events_than_the_limit_are_refused() -> None:
    small = struct.pack("<II20sI", 1, 1, bytes(20), 0)
    assert len(parse_event_log(small * MAX_EVENTS).events) == MAX_EVENTS
    assert _refused(small * (MAX_EVENTS + 1)) is ReasonCode.BOOT_LOG_MALFORMED
    agile = encoded(Draft(1, 1, {}, b""))
    assert _refused(header() + agile * MAX_EVENTS) is ReasonCode.BOOT_LOG_MALFORMED


@pytest.mark.parametrize("pcr", [24, 0xFFFFFFFE])
def test_a_pcr_that_no_tpm_has_is_refused(pcr: int) -> None:
    assert _refused(log_of([event(pcr, 1, b"x")])) is ReasonCode.BOOT_LOG_MALFORMED
    assert _refused(struct.pack("<II20sI", pcr, 1, bytes(20), 0)) is ReasonCode.BOOT_LOG_MALFORMED


def test_windows_events_without_a_pcr_are_kept() -> None:
    assert parse_event_log(log_of([event(0xFFFFFFFF, 3, b"x")])).events[1].pcr == 0xFFFFFFFF


@pytest.mark.parametrize("count", [3, 0x7FFFFFFF, 0xFFFFFFFF])
def test_a_digest_count_above_the_declared_algorithms_is_refused_at_once(count: int) -> None:
    assert _refused(header() + struct.pack("<III", 0, 1, count) + bytes(200)) is ReasonCode.BOOT_LOG_MALFORMED


def test_an_undeclared_or_repeated_digest_algorithm_is_refused() -> None:
    sha1 = struct.pack("<H", 4) + bytes(20)
    for identifiers in (struct.pack("<H", 0x000C) + bytes(48), sha1 + sha1):
        count = 2 if identifiers.startswith(sha1) else 1
        log = header() + struct.pack("<III", 0, 1, count) + identifiers + struct.pack("<I", 0)
        assert _refused(log) is ReasonCode.BOOT_LOG_MALFORMED


def test_an_event_may_carry_fewer_digests_in_another_order() -> None:
    reordered = Draft(0, 1, dict(reversed(event(0, 1, b"x").digests.items())), b"x")
    fewer = Draft(0, 1, {"sha256": bytes(32)}, b"y")
    parsed = parse_event_log(log_of([reordered, fewer]))
    assert dict(parsed.events[1].digests) == reordered.digests
    assert dict(parsed.events[2].digests) == fewer.digests


@pytest.mark.parametrize(
    "table",
    [
        struct.pack("<IHH", 1, 4, 32),
        struct.pack("<IHHHH", 2, 4, 20, 4, 20),
        struct.pack("<IHH", 1, 0x0027, 32),
        struct.pack("<I", 0),
        struct.pack("<I", 0xFFFFFFFF),
    ],
    ids=["wrong size", "twice", "unknown", "none", "too many"],
)
def test_an_algorithm_table_that_is_not_the_known_one_is_refused(table: bytes) -> None:
    spec = b"Spec ID Event03\0" + struct.pack("<IBBBB", 0, 0, 2, 0, 2) + table + b"\0"
    log = struct.pack("<II20sI", 0, 3, bytes(20), len(spec)) + spec
    assert _refused(log) is ReasonCode.BOOT_LOG_MALFORMED


@pytest.mark.parametrize("size", [0, 1, 15, 17, 28])
def test_a_short_or_foreign_first_no_action_makes_a_legacy_log(size: int) -> None:
    first = struct.pack("<II20sI", 0, 3, bytes(20), size) + bytes(size)
    parsed = parse_event_log(first + struct.pack("<II20sI", 4, 0xD, b"\1" * 20, 3) + b"abc")
    assert parsed.format == "legacy"
    assert [dict(e.digests) for e in parsed.events[1:]] == [{"sha1": b"\1" * 20}]


def test_vendor_information_in_the_header_is_skipped() -> None:
    spec = b"Spec ID Event03\0" + struct.pack("<IBBBBIHH", 0, 0, 2, 105, 2, 1, 11, 32) + b"\4abcd"
    log = struct.pack("<II20sI", 0, 3, bytes(20), len(spec)) + spec
    assert parse_event_log(log).algorithms == ("sha256",)


@pytest.mark.parametrize("locality", [0, 3, 4])
def test_the_startup_locality_is_read_also_from_a_padded_event(locality: int) -> None:
    for tail in (b"", b"\0\0\0"):
        log = log_of([no_action(b"StartupLocality\0" + bytes([locality]) + tail), *vm_drafts()])
        assert parse_event_log(log).startup_locality == locality


def test_an_h_crtm_event_starts_from_locality_four() -> None:
    assert parse_event_log(log_of([event(0, 0x80000010, b"HCRTM"), *vm_drafts()])).startup_locality == 4


def test_a_locality_after_the_first_measurement_is_not_the_startup_locality() -> None:
    drafts = vm_drafts()
    log = log_of([drafts[0], no_action(b"StartupLocality\0\3"), *drafts[1:]])
    assert parse_event_log(log).startup_locality == 0


@given(st.binary(max_size=400))
@settings(max_examples=300, deadline=None)
def test_arbitrary_bytes_raise_only_malformed_evidence(log: bytes) -> None:
    for candidate in (log, header() + log):
        try:
            parse_event_log(candidate)
        except MalformedEvidence as refusal:
            assert refusal.code in {ReasonCode.BOOT_LOG_MALFORMED}


@given(st.integers(0, len(log_of(vm_drafts()[:8])) - 1), st.integers(1, 255))
@settings(max_examples=300, deadline=None)
def test_a_changed_byte_raises_nothing_else_either(position: int, flip: int) -> None:
    log = bytearray(log_of(vm_drafts()[:8]))
    log[position] ^= flip
    try:
        parse_event_log(bytes(log))
    except MalformedEvidence as refusal:
        assert refusal.code is ReasonCode.BOOT_LOG_MALFORMED


def test_drafts_written_back_are_the_log_itself() -> None:
    events = b"".join(encoded(draft) for draft in vm_drafts())
    assert vm_log().endswith(events)
