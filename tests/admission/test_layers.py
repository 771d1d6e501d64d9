"""A layered store is a dictionary, and each of its moments stays what it was."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admission import layers
from admission.layers import LayeredStore

WRITES = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 9), st.one_of(st.none(), st.integers(0, 3))),
        st.tuples(st.just("replace"), st.dictionaries(st.integers(0, 9), st.integers(0, 3)), st.none()),
    ),
    max_size=40,
)


@pytest.mark.parametrize("limit", [0, 3, 512])
@given(writes=WRITES)
def test_whatever_is_written_it_equals_a_dictionary_and_old_moments_do_not_change(
    limit: int, writes: list[tuple[str, Any, Any]]
) -> None:
    kept = layers.MAX_CHANGES
    layers.MAX_CHANGES = limit
    try:
        store: LayeredStore[int, int] = LayeredStore()
        plain: dict[int, int] = {}
        moments = []
        for kind, first, second in writes:
            before = dict(plain)
            if kind == "replace":
                plain = dict(first)
                changed = store.replace(dict(first))
            elif second is None:
                plain.pop(first, None)
                changed = store.put(first, None)
            else:
                plain[first] = second
                changed = store.put(first, second)
            assert changed == (before != plain)
            assert len(store) == len(plain)
            moments.append((store.moment(), dict(plain)))
        for moment, expected in moments:
            assert dict(moment) == expected
            assert len(moment) == len(expected)
            assert all(moment.get(key) == expected.get(key) for key in range(10))
            assert all((key in moment) == (key in expected) for key in range(10))
    finally:
        layers.MAX_CHANGES = kept
