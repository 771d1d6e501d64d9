"""docs/attacks.md names tests, reason codes and policies that exist."""

from __future__ import annotations

import re
from pathlib import Path

from verifier.wire.codes import ReasonCode

ROOT = Path(__file__).parent.parent
LINES = [line.split("|")[1:-1] for line in (ROOT / "docs/attacks.md").read_text().splitlines() if line.startswith("| ")]
ROWS = LINES[1:]
NOT_CODES = {"failed calling webhook", "webhook.clientCA", "seq"}


def test_every_named_test_is_there() -> None:
    sources = "\n".join(path.read_text() for path in (ROOT / "tests/e2e").rglob("test_*.py"))
    there = set(re.findall(r"^def (test_\w+)", sources, re.MULTILINE))
    named = [name for *_, tests in ROWS for name in re.findall(r"`(\w+)`", tests)]
    assert len(named) >= len(ROWS) > 25
    assert set(named) <= there


def test_every_attack_of_the_tests_is_on_the_page() -> None:
    page = (ROOT / "docs/attacks.md").read_text()
    for path in (ROOT / "tests/e2e").glob("test_attack_*.py"):
        for name in re.findall(r"^def (test_\w+(?:_is_denied|_cannot)\w*)", path.read_text(), re.MULTILINE):
            assert f"`{name}`" in page


def test_every_reason_is_one_that_exists() -> None:
    policies = {path.stem for path in (ROOT / "deploy/chart/nodewarden/templates/policies").glob("*.yaml")}
    text = "\n".join(path.read_text() for path in (ROOT / "deploy/chart/nodewarden/templates/policies").glob("*.yaml"))
    assert policies
    codes = {code.value for code in ReasonCode}
    for _, refused, _ in ROWS:
        for word in re.findall(r"`([^`]+)`", refused):
            known = word in codes or word in NOT_CODES or f"name: {word}\n" in text
            assert known, word
