"""Command lines as the kernel splits them, against a model that is written after its source."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.kernel_arguments import parse_argument, split_command_line


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", []),
        ("  \t ", []),
        ("a", [("a", None)]),
        ("a=", [("a", "")]),
        ("a=b=c", [("a", "b=c")]),
        ("a-b_c=d-e", [("a_b_c", "d-e")]),
        ('a="b c" d', [("a", "b c"), ("d", None)]),
        ('"a=b c" d', [("a", "b c"), ("d", None)]),
        ("a='b c'", [("a", "'b"), ("c'", None)]),
        ("a\xa0b\vc\fd\re\nf", [("a", None), ("b", None), ("c", None), ("d", None), ("e", None), ("f", None)]),
        ('a="b c', [("a", '"b c')]),
        ("quiet quiet", [("quiet", None), ("quiet", None)]),
    ],
)
def test_a_line_splits_as_in_the_kernel(line: str, expected: list[tuple[str, str | None]]) -> None:
    assert [argument.same_as for argument in split_command_line(line)] == expected


@given(st.lists(st.text(st.sampled_from("abc=_-.:,/09"), min_size=1, max_size=8), max_size=6), st.sampled_from(" \t\n"))
def test_plain_arguments_come_back_as_written(arguments: list[str], space: str) -> None:
    split = split_command_line(space.join(arguments))
    assert [argument.text for argument in split] == arguments
    assert all(argument.plain for argument in split)


@given(st.text(max_size=60))
def test_no_character_is_lost_but_white_space_between_arguments(line: str) -> None:
    spaces = " \t\n\v\f\r\xa0"
    joined = "".join(argument.text for argument in split_command_line(line))
    assert [c for c in joined if c not in spaces] == [c for c in line if c not in spaces]


@pytest.mark.parametrize("text", ['a="b c"', "a'b", "a\\b", "a b", "a\xa0b", "a\x00", "ä=1", "a\u2028b", '"a"'])
def test_text_that_readers_split_differently_is_not_plain(text: str) -> None:
    assert not parse_argument(text).plain
