"""Baselines load in one reading only: each fault has its code and its place."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from policies.faults import BaselineFault, PolicyCode
from policies.loader import MAX_BASELINE_CHARACTERS, load_baseline
from tests.forge.baselines import document

Change = Callable[[dict[str, Any]], object]

TEXT = """\
apiVersion: nodewarden.dev/v1
kind: Baseline
metadata:
  name: h100-prod
  version: "4.2.0"
  summary: Kernel 6.8.0-79
  notBefore: 2026-09-01T06:00:00Z
  expires: "2027-01-15T00:00:00Z"
appliesTo: {tenants: [ml-platform], cohorts: [h100-prod-*]}
evidence: {maxAgeSeconds: 300, pcrBank: sha256, requirePcrReplay: [0, 1, 2, 3, 4, 5, 6, 7, 8]}
tpm: {ekChain: required}
secureBoot: {enabled: required, setupMode: forbidden}
firmware:
  allow:
    - {version: "3.10", blobs: [aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa]}
bootSets:
  - id: ubuntu-6.8.0-79
    images:
      - {role: kernel, authenticode: [bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb]}
    cmdline: {require: [lockdown=integrity], allow: [quiet], ignoreKeys: [BOOT_IMAGE, root]}
    lockdown: cmdline
"""


def _faults(text: str) -> list[PolicyCode]:
    with pytest.raises(BaselineFault) as caught:
        load_baseline(text, "b")
    return [fault.code for fault in caught.value.every]


def _changed(change: Change) -> str:
    changed = document()
    change(changed)
    return json.dumps(changed)


def test_a_baseline_as_people_write_it_loads_with_every_value_as_written() -> None:
    baseline = load_baseline(TEXT, "b")
    assert baseline.metadata.not_before == "2026-09-01T06:00:00Z"
    assert baseline.firmware.allow[0].version == "3.10"
    assert baseline.applies_to.cohorts == ("h100-prod-*",)


def test_json_is_yaml() -> None:
    assert load_baseline(json.dumps(document()), "b").metadata.name == "test-nodes"


YAML_FAULTS: dict[str, tuple[str, str, PolicyCode]] = {
    "an unquoted version": ('version: "4.2.0"', "version: 4.2.0", PolicyCode.VERSION_UNQUOTED),
    "an unquoted version that YAML reads as a number": (
        '{version: "3.10"', "{version: 3.10", PolicyCode.VERSION_UNQUOTED,
    ),
    "a duplicate key": ("kind: Baseline", "kind: Baseline\nkind: Baseline", PolicyCode.KEY_DUPLICATED),
    "a duplicate key further in": ("tpm: {ekChain", "tpm: {ekChain: inventory, ekChain", PolicyCode.KEY_DUPLICATED),
    "a duplicate key, once quoted": ("kind: Baseline", 'kind: Baseline\n"kind": Baseline', PolicyCode.KEY_DUPLICATED),
    "an anchor": ("tpm: {", "tpm: &a {", PolicyCode.YAML_FORBIDDEN),
    "an alias": ("tpm: {ekChain: required}", "tpm: *a", PolicyCode.YAML_FORBIDDEN),
    "a tag": ("tpm: {", "tpm: !!map {", PolicyCode.YAML_FORBIDDEN),
    "a tag that runs code elsewhere": (
        "summary: Kernel 6.8.0-79", "summary: !!python/object/apply:os.system [id]", PolicyCode.YAML_FORBIDDEN,
    ),
    "a merge key": ("tpm: {ekChain", "tpm: {<<: {a: 1}, ekChain", PolicyCode.VALUE_AMBIGUOUS),
    "on for a boolean": ("setupMode: forbidden", "setupMode: off", PolicyCode.VALUE_AMBIGUOUS),
    "a number in base 60": ("summary: Kernel 6.8.0-79", "summary: 12:30:45", PolicyCode.VALUE_AMBIGUOUS),
    "an octal number": ("maxAgeSeconds: 300", "maxAgeSeconds: 0300", PolicyCode.VALUE_AMBIGUOUS),
    "a float": ("maxAgeSeconds: 300", "maxAgeSeconds: 300.0", PolicyCode.VALUE_AMBIGUOUS),
    "null": ("summary: Kernel 6.8.0-79", "summary:", PolicyCode.VALUE_AMBIGUOUS),
    "a tilde": ("summary: Kernel 6.8.0-79", "summary: ~", PolicyCode.VALUE_AMBIGUOUS),
    "an unquoted digest of digits": (
        "[" + "a" * 64 + "]", "[" + "1" * 64 + "]", PolicyCode.VALUE_AMBIGUOUS,
    ),
    "a second document": ("kind: Baseline", "kind: Baseline\n---\na: b", PolicyCode.YAML_FORBIDDEN),
    "broken YAML": ("kind: Baseline", "kind: [Baseline", PolicyCode.YAML_INVALID),
    "a key that is no text": ("kind: Baseline", "kind: Baseline\n1: x", PolicyCode.YAML_INVALID),
    "a control character": ("summary: Kernel 6.8.0-79", 'summary: "a\\x07b"', PolicyCode.VALUE_INVALID),
    "a lone surrogate": ("summary: Kernel 6.8.0-79", 'summary: "a\\ud800b"', PolicyCode.VALUE_INVALID),
}  # fmt: skip


@pytest.mark.parametrize("name", YAML_FAULTS)
def test_yaml_that_readers_disagree_on_is_refused(name: str) -> None:
    old, new, code = YAML_FAULTS[name]
    assert TEXT.count(old) >= 1
    assert _faults(TEXT.replace(old, new, 1)) == [code]


SCHEMA_FAULTS: dict[str, tuple[Change, PolicyCode]] = {
    "an unknown key": (lambda d: d.update(extra="x"), PolicyCode.KEY_UNKNOWN),
    "an unknown key further in": (lambda d: d["secureBoot"].update(enable="required"), PolicyCode.KEY_UNKNOWN),
    "a Python name for a key": (lambda d: d["tpm"].update(ek_chain="required"), PolicyCode.KEY_UNKNOWN),
    "a missing part": (lambda d: d.pop("firmware"), PolicyCode.KEY_MISSING),
    "a missing chain rule": (lambda d: d["tpm"].pop("ekChain"), PolicyCode.KEY_MISSING),
    "another kind": (lambda d: d.update(kind="Policy"), PolicyCode.VALUE_INVALID),
    "another version of the schema": (lambda d: d.update(apiVersion="v2"), PolicyCode.VALUE_INVALID),
    "a version of two parts": (lambda d: d["metadata"].update(version="1.0"), PolicyCode.VALUE_INVALID),
    "a version with a leading zero": (lambda d: d["metadata"].update(version="1.00.0"), PolicyCode.VALUE_INVALID),
    "a version with a line break": (lambda d: d["metadata"].update(version="1.0.0\n"), PolicyCode.VALUE_INVALID),
    "text for a number": (lambda d: d["evidence"].update(maxAgeSeconds="300"), PolicyCode.VALUE_INVALID),
    "an age of a day": (lambda d: d["evidence"].update(maxAgeSeconds=86400), PolicyCode.VALUE_INVALID),
    "an age of no time": (lambda d: d["evidence"].update(maxAgeSeconds=0), PolicyCode.VALUE_INVALID),
    "a weak bank": (lambda d: d["evidence"].update(pcrBank="sha1"), PolicyCode.VALUE_INVALID),
    "a time with an offset": (
        lambda d: d["metadata"].update(notBefore="2026-11-01T00:00:00+01:00"),
        PolicyCode.VALUE_INVALID,
    ),
    "a day that does not exist": (
        lambda d: d["metadata"].update(expires="2027-02-30T00:00:00Z"),
        PolicyCode.VALUE_INVALID,
    ),
    "an end before the start": (
        lambda d: d["metadata"].update(expires="2026-11-01T00:00:00Z"),
        PolicyCode.VALIDITY_EMPTY,
    ),
    "no tenants": (lambda d: d["appliesTo"].update(tenants=[]), PolicyCode.LIST_EMPTY),
    "every cohort": (lambda d: d["appliesTo"].update(cohorts=["*"]), PolicyCode.VALUE_INVALID),
    "a star in the middle": (lambda d: d["appliesTo"].update(cohorts=["a*b"]), PolicyCode.VALUE_INVALID),
    "no authorities": (lambda d: d["secureBoot"].update(authorities=[]), PolicyCode.LIST_EMPTY),
    "no manufacturers": (lambda d: d["tpm"].update(manufacturers=[]), PolicyCode.LIST_EMPTY),
    "manufacturers without a chain": (lambda d: d["tpm"].update(ekChain="inventory"), PolicyCode.VALUE_INVALID),
    "no firmware": (lambda d: d["firmware"].update(allow=[]), PolicyCode.LIST_EMPTY),
    "no firmware volumes": (lambda d: d["firmware"]["allow"][0].update(blobs=[]), PolicyCode.LIST_EMPTY),
    "no boot sets": (lambda d: d.update(bootSets=[]), PolicyCode.LIST_EMPTY),
    "no images": (lambda d: d["bootSets"][0].update(images=[]), PolicyCode.LIST_EMPTY),
    "no kernel": (lambda d: d["bootSets"][0]["images"].pop(), PolicyCode.VALUE_INVALID),
    "no files in a list of them": (lambda d: d["bootSets"][0].update(files=[]), PolicyCode.LIST_EMPTY),
    "no arguments": (lambda d: d["bootSets"][0]["cmdline"].update(allow=[]), PolicyCode.LIST_EMPTY),
    "a grammar that accepts nothing": (
        lambda d: d["bootSets"][0].update(cmdline={"ignoreKeys": ["root"]}),
        PolicyCode.LIST_EMPTY,
    ),
    "two boot sets of one id": (lambda d: d["bootSets"].append(d["bootSets"][0]), PolicyCode.LIST_DUPLICATE),
    "a digest twice": (
        lambda d: d["bootSets"][0]["files"].append(d["bootSets"][0]["files"][0]),
        PolicyCode.LIST_DUPLICATE,
    ),
    "a PCR twice": (lambda d: d["evidence"]["requirePcrReplay"].append(7), PolicyCode.LIST_DUPLICATE),
    "a firmware PCR left out": (lambda d: d["evidence"]["requirePcrReplay"].remove(7), PolicyCode.PCR_REQUIRED),
    "PCR 24": (lambda d: d["evidence"]["requirePcrReplay"].append(24), PolicyCode.VALUE_INVALID),
    "true for PCR 1": (lambda d: d["evidence"].update(requirePcrReplay=[0, True]), PolicyCode.VALUE_AMBIGUOUS),
    "a short digest": (lambda d: d["secureBoot"].update(authorities=["ab" * 31]), PolicyCode.DIGEST_INVALID),
    "an upper-case digest": (lambda d: d["secureBoot"].update(authorities=["AB" * 32]), PolicyCode.DIGEST_INVALID),
    "a digest of other digits": (
        lambda d: d["secureBoot"].update(authorities=["\u0661" * 64]),
        PolicyCode.DIGEST_INVALID,
    ),
    "a digest of another bank": (
        lambda d: d["bootSets"][0]["images"][0].update(authenticode=["ab" * 48]),
        PolicyCode.DIGEST_INVALID,
    ),
    "the whole in another bank": (lambda d: d["evidence"].update(pcrBank="sha384"), PolicyCode.DIGEST_INVALID),
    "an argument with a space": (
        lambda d: d["bootSets"][0]["cmdline"]["allow"].append("a b"),
        PolicyCode.VALUE_INVALID,
    ),
    "a key with a value": (
        lambda d: d["bootSets"][0]["cmdline"].update(ignoreKeys=["root=x"]),
        PolicyCode.VALUE_INVALID,
    ),
    "an argument both allowed and forbidden": (
        lambda d: d["bootSets"][0]["cmdline"]["allow"].append("init=/bin/sh"),
        PolicyCode.CMDLINE_CONTRADICTION,
    ),
    "an argument both allowed and ignored": (
        lambda d: d["bootSets"][0]["cmdline"].update(ignoreKeys=["BOOT_IMAGE", "loglevel"]),
        PolicyCode.CMDLINE_CONTRADICTION,
    ),
    "a second value for a required argument": (
        lambda d: d["bootSets"][0]["cmdline"]["allow"].append("ima-policy=none"),
        PolicyCode.CMDLINE_CONTRADICTION,
    ),
    "no lockdown": (lambda d: d["bootSets"][0].pop("lockdown"), PolicyCode.KEY_MISSING),
    "secure boot optional": (lambda d: d["secureBoot"].update(enabled="optional"), PolicyCode.VALUE_INVALID),
    "setup mode allowed": (lambda d: d["secureBoot"].update(setupMode="allowed"), PolicyCode.VALUE_INVALID),
}


@pytest.mark.parametrize("name", SCHEMA_FAULTS)
def test_a_baseline_with_one_fault_is_refused_with_its_code(name: str) -> None:
    change, code = SCHEMA_FAULTS[name]
    assert _faults(_changed(change))[0] is code


def test_every_fault_is_told_with_its_path() -> None:
    def change(document: dict[str, Any]) -> None:
        document.update(kind="x")
        document["tpm"].update(ekChain="x")

    with pytest.raises(BaselineFault) as caught:
        load_baseline(_changed(change), "file.yaml")
    assert [fault.path for fault in caught.value.every] == ["file.yaml.kind", "file.yaml.tpm.ekChain"]


def test_an_oversized_or_deep_document_is_refused_in_little_time() -> None:
    hostile = {
        "too large": ("a: " + "x" * MAX_BASELINE_CHARACTERS, PolicyCode.TOO_LARGE),
        "deep lists": ("a: " + "[" * 100_000, PolicyCode.YAML_FORBIDDEN),
        "deep maps": ("a: " + "{a: " * 100_000, PolicyCode.YAML_FORBIDDEN),
        "deep sequences": ("- " * 100_000, PolicyCode.YAML_FORBIDDEN),
        "many items": ("a: [" + "b, " * 150_000 + "]", PolicyCode.TOO_LARGE),
        "laughs": ("a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]", PolicyCode.YAML_FORBIDDEN),
    }
    for name, (text, code) in hostile.items():
        start = time.perf_counter()
        assert _faults(text) == [code], name
        assert time.perf_counter() - start < 10, name


@given(st.text(max_size=200))
def test_arbitrary_text_is_only_ever_a_fault(text: str) -> None:
    with pytest.raises(BaselineFault):
        load_baseline(text, "b")


@given(st.integers(0, len(TEXT) - 1))
def test_a_truncated_baseline_is_a_fault_unless_only_the_last_line_break_is_gone(length: int) -> None:
    text = TEXT[:length]
    if text == TEXT.rstrip("\n"):
        return
    with pytest.raises(BaselineFault):
        load_baseline(text, "b")


def test_what_the_yaml_library_would_have_read_is_not_what_was_written() -> None:
    """Why the library's own loader is not used: the traps are real."""
    read = yaml.safe_load("{v: 3.10, on: 12:30:45, a: 1, a: 2}")
    assert read == {"v": 3.1, True: 45045, "a": 2}


@pytest.mark.parametrize(
    ("change", "paths"),
    [
        (lambda d: d["metadata"].update(summary="FILL"), ["b.metadata.summary"]),
        (
            lambda d: d["appliesTo"].update(tenants=["FILL"], cohorts=["FILL"]),
            ["b.appliesTo.tenants.0", "b.appliesTo.cohorts.0"],
        ),
        (lambda d: d["bootSets"][0].update(lockdown="FILL"), ["b.bootSets.0.lockdown"]),
        (lambda d: d["firmware"]["allow"][0].update(version="FILL"), ["b.firmware.allow.0.version"]),
    ],
)
def test_a_placeholder_of_a_draft_is_told_as_one(change: Change, paths: list[str]) -> None:
    changed = document()
    change(changed)
    with pytest.raises(BaselineFault) as refused:
        load_baseline(json.dumps(changed), "b")
    assert {fault.code for fault in refused.value.every} == {PolicyCode.PLACEHOLDER_LEFT}
    assert [fault.path for fault in refused.value.every] == paths
