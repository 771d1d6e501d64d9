"""Whatever a log measures, measuring and showing it ends without a surprise: facts, failures or a typed refusal."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.evidence.logs import GLOBAL, SECURITY, Draft, event, log_of, signature_list, variable, vm_drafts
from verifier.appraisal.boot import measure_boot
from verifier.appraisal.event_types import EventType
from verifier.inspect_reports import eventlog_report

DRAFTS = vm_drafts()
NAMES = st.sampled_from(["SecureBoot", "PK", "KEK", "db", "dbx", "Shim", "SbatLevel", "MokListTrusted", "Boot0001", ""])
VARIABLES = st.builds(
    variable,
    NAMES,
    st.one_of(st.binary(max_size=60), st.sampled_from([b"", b"\0", b"\1", signature_list((b"h" * 32,))])),
    st.sampled_from([GLOBAL, SECURITY, bytes(16)]),
)
TEXTS = st.builds(
    lambda prefix, text: prefix + text,
    st.sampled_from([b"grub_cmd: ", b"kernel_cmdline: ", b"grub_cmd ", b"", bytes.fromhex("ed223b8f1a000000")]),
    st.one_of(
        st.binary(max_size=40), st.sampled_from([b"chainloader ", b"chainloader --x", b"/", b"(hd0)/vmlinuz \xd8"])
    ),
)
CONTENTS = st.one_of(st.binary(max_size=80), VARIABLES, VARIABLES.map(lambda content: content[:-1]), TEXTS)
KINDS = st.one_of(st.sampled_from([kind.value for kind in EventType]), st.integers(1, 2**32 - 2))
PCRS = st.one_of(st.integers(0, 23), st.just(0xFFFFFFFF))


@st.composite
def _events(draw: st.DrawFn) -> Draft:
    content = draw(CONTENTS)
    covered = draw(st.one_of(st.just(content), st.just(content.rstrip(b"\0")), st.binary(max_size=8)))
    return event(draw(PCRS), draw(KINDS), content, covered)


@given(st.lists(_events(), max_size=8), st.integers(0, len(DRAFTS)))
@settings(max_examples=150, deadline=None)
def test_arbitrary_events_among_real_ones_are_measured_and_shown(extra: list[Draft], position: int) -> None:
    log = log_of([*DRAFTS[:position], *extra, *DRAFTS[position:]])
    measured = measure_boot(log, "sha256")
    report = eventlog_report(log)
    assert report["pcrs"]["sha256"] == {str(pcr): value.hex() for pcr, value in sorted(measured.pcrs.items())}
    assert {failure.code.value for failure in measured.failures} <= {finding["code"] for finding in report["findings"]}
    assert all("\x1b" not in shown["detail"] and "\n" not in shown["detail"] for shown in report["events"])


@given(st.lists(_events(), max_size=8))
@settings(max_examples=200, deadline=None)
def test_a_log_of_arbitrary_events_alone_never_shows_secure_boot_on_without_its_parts(extra: list[Draft]) -> None:
    measured = measure_boot(log_of([event(5, 1, b"x"), *extra]), "sha256")
    if measured.facts.secure_boot.state == "on":
        assert measured.facts.secure_boot.authorities
