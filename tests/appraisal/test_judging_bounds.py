"""What a hostile log may cost: time, results and memory that is kept, whatever it holds and however often it comes."""

from __future__ import annotations

import gc
import time
from dataclasses import replace
from functools import cache
from weakref import ref

import pytest

from policies.compiler import CompiledBaseline
from tests.evidence.logs import APPLICATION, AUTHORITY, BLOB, IPL, Draft, event, log_of, variable, vm_drafts, vm_log
from tests.forge import baselines
from verifier.appraisal.appraise import _BootJudgements
from verifier.appraisal.boot import measure_boot
from verifier.appraisal.boot_checks import MAX_FAILURES, judge_boot
from verifier.appraisal.boot_facts import MeasuredBoot
from verifier.appraisal.loaders import MAX_COMMAND_LINES
from verifier.wire.codes import ReasonCode

ALL = frozenset(range(24))
GOOD = vm_drafts()


def _lines(count: int, arguments: str = "a b c d e f g h i j k l") -> list[Draft]:
    texts = [f"/{number} {arguments}".encode() for number in range(count)]
    return [event(8, IPL, b"kernel_cmdline: " + text, text) for text in texts]


@cache
def _sets(count: int) -> CompiledBaseline:
    document = baselines.document()
    document["bootSets"] = [{**document["bootSets"][0], "id": f"set-{number}"} for number in range(count)]
    return baselines.compiled(document)


def test_more_command_lines_than_any_boot_has_are_a_failure_and_not_kept() -> None:
    for count, codes in ((MAX_COMMAND_LINES - 1, []), (MAX_COMMAND_LINES, [ReasonCode.EVENT_NOT_ALLOWED])):
        boot = measure_boot(log_of([*GOOD, *_lines(count)]), "sha256")
        assert [failure.code for failure in boot.failures] == codes
        assert len(boot.facts.command_lines) == MAX_COMMAND_LINES


HOSTILE: dict[str, list[Draft]] = {
    "command lines": _lines(5000),
    "long command lines": _lines(64, " ".join(f"x{number}" for number in range(120))),
    "repeated arguments": _lines(64, "quiet " * 1300),
    "lines that fit, beside an image that does not": [
        *_lines(31, "ima_policy=tcb " + " ".join(f"BOOT_IMAGE={number}" for number in range(125))),
        event(4, APPLICATION, b"", b"unlisted"),
    ],
    "images": [event(4, APPLICATION, b"", b"%d" % number) for number in range(5000)],
    "authorities": [event(7, AUTHORITY, variable(f"a{number}", b"x")) for number in range(5000)],
    "files": [event(9, IPL, b"%d" % number) for number in range(5000)],
    "lists of shim": [event(14, IPL, b"%d" % number) for number in range(5000)],
    "firmware": [event(2, BLOB, b"%d" % number) for number in range(5000)],
    "options of systemd-stub": [event(12, IPL, b"%d" % number) for number in range(5000)],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_log_full_of_what_fails_is_judged_in_bounded_time_by_many_boot_sets(name: str) -> None:
    boot = measure_boot(log_of([*GOOD, *HOSTILE[name]]), "sha256")
    baseline = _sets(256)
    start = time.process_time()
    failures = judge_boot(boot.facts, ALL, baseline)
    # Seconds where each fact was judged by each set; generous for a busy machine.
    assert time.process_time() - start < 0.8
    assert 0 < len(failures) <= MAX_FAILURES


def test_the_closest_boot_set_is_found_wherever_it_stands() -> None:
    facts = measure_boot(vm_log(), "sha256").facts
    document = baselines.document()
    good = document["bootSets"][0]
    near = {**good, "id": "near", "files": [baselines.INITRD, baselines.KERNEL_FILE]}
    far = {**good, "id": "far", "images": good["images"][:1] + good["images"][2:]}
    for order in ([near, far], [far, near]):
        document["bootSets"] = order
        assert [f.claim for f in judge_boot(facts, ALL, baselines.compiled(document))] == ["boot.near.file"]
        document["bootSets"] = [*order, good]
        assert judge_boot(facts, ALL, baselines.compiled(document)) == ()


def test_a_line_of_more_arguments_than_any_kernel_is_given_has_one_failure() -> None:
    arguments = " ".join(f"x{number}" for number in range(200))
    boot = measure_boot(log_of([*GOOD, *_lines(1, arguments)]), "sha256")
    failures = judge_boot(boot.facts, ALL, baselines.good())
    assert [failure.code for failure in failures] == [ReasonCode.CMDLINE_UNKNOWN]


def _fresh(which: int) -> MeasuredBoot:
    return replace(measure_boot(vm_log(), "sha256"), size=which)


def test_a_judgement_keeps_no_boot_that_nothing_else_keeps() -> None:
    judgements = _BootJudgements(limit=100)
    boots = [_fresh(which) for which in range(3)]
    for boot in boots:
        assert judgements(boot, ALL, baselines.good()) == ()
    assert len(judgements._known) == 3
    last = ref(boots[-1])
    del boot
    boots.clear()
    gc.collect()
    assert last() is None
    assert judgements._known == {}


def test_judgements_are_remembered_up_to_a_limit_and_stay_right() -> None:
    judgements = _BootJudgements(limit=2)
    other = _sets(2)
    boots = [_fresh(which) for which in range(4)]
    for _ in range(2):
        for boot in boots:
            assert judgements(boot, ALL, baselines.good()) == ()
            assert judgements(boot, ALL, other) == ()
            assert judgements(boot, ALL - {8}, other) != ()
            assert len(judgements._known) <= 2
