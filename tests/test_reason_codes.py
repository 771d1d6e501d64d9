"""Every denial is explainable: each code is raised somewhere, proved by a test, and told in the documentation."""

from __future__ import annotations

import re
from pathlib import Path

from docs.reason_codes import page
from verifier.wire.codes import ReasonCode

ROOT = Path(__file__).parent.parent
USE = re.compile(r"ReasonCode\.([A-Z0-9_]+)")


def _uses(*folders: str) -> set[str]:
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    return {
        name
        for path in files
        if path.name not in {"codes.py", Path(__file__).name}
        for name in USE.findall(path.read_text())
    }


def test_every_reason_code_is_raised_by_product_code() -> None:
    unused = {code.name for code in ReasonCode} - _uses("attester", "verifier", "admission")
    assert sorted(unused) == []


def test_every_reason_code_is_asserted_by_a_test() -> None:
    untested = {code.name for code in ReasonCode} - _uses("tests")
    assert sorted(untested) == []


def test_every_reason_code_has_a_name_of_its_own_and_a_remedy() -> None:
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", code.value) for code in ReasonCode)
    assert all(code.remedy.endswith(".") and len(code.remedy) > 20 for code in ReasonCode)


def test_the_page_of_reason_codes_is_current() -> None:
    assert (ROOT / "docs/reason-codes.md").read_text() == page()
