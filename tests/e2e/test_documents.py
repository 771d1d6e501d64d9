"""What README.md and the guide tell people to type does what they say, on a cluster as `make cluster` starts it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.console import Shell, Typed, alike, play, sessions_of, with_sessions
from tests.e2e.playground import ROOT
from tests.e2e.real_node import missing_ability
from tests.e2e.record_session import DOCUMENTS

TEXT = """Before.

```console
$ first \\
>   goes on
out
$ second
```

```
$ not typed
```
"""


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_sessions_in_a_document_print_what_it_shows(name: str, tmp_path: Path) -> None:
    document = ROOT / name
    shown = [typed for session in sessions_of(document.read_text()) for typed in session]
    assert len(shown) >= 10
    printed = [typed for session in play(document, tmp_path / "cluster.log") for typed in session]
    assert [typed.command for typed in printed] == [typed.command for typed in shown]
    if missing_ability() is not None and name == "README.md":
        pytest.skip("the recorded node is a real one; here the commands ran on one that pretends")
    differences = [(was, now) for was, now in zip(shown, printed, strict=True) if not alike(was, now)]
    assert differences == []


@pytest.mark.parametrize("text", [TEXT, *((ROOT / name).read_text() for name in DOCUMENTS)])
def test_writing_down_what_a_document_shows_changes_nothing(text: str) -> None:
    assert with_sessions(text, sessions_of(text)) == text


def test_a_session_is_commands_and_what_they_printed() -> None:
    assert sessions_of(TEXT) == [[Typed("first \\\n  goes on", ("out",)), Typed("second", ())]]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("llm-5fd686dfd5-xrlbn fake-0", "llm-cff854c4f-zhhct fake-0"),
        ("node-0 Ready 44s", "node-0   Ready   1m2s"),
        ("since 2026-11-30T14:23:39Z at 10.0.0.1", "since 2027-01-01T00:00:00Z at 10.0.0.2"),
        ("a b", "b a"),
    ],
)
def test_outputs_are_alike_but_for_times_addresses_names_and_order(one: str, other: str) -> None:
    assert alike(Typed("c", (one,)), Typed("c", (other,)))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("verdict: affirming", "verdict: contraindicated"),
        ("on fake-1", "on fake-2"),
        ("a", "a a"),
        ("VIOLATING 3", "VIOLATING 1"),
    ],
)
def test_outputs_that_say_something_else_are_not_alike(one: str, other: str) -> None:
    assert not alike(Typed("c", (one,)), Typed("c", (other,)))


def test_a_shell_keeps_what_a_command_set_and_shows_what_it_said() -> None:
    shell = Shell()
    try:
        assert shell.type("export A=b").output == ()
        assert shell.type("echo $A; echo wrong >&2; echo").output == ("b", "wrong")
    finally:
        shell.close()
