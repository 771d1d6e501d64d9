"""Compiled baselines: the same meaning has the same digest, and every change of meaning another."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from typing import Any

from policies.compiler import compile_baseline, manufacturer_text
from policies.loader import load_baseline
from tests.forge.baselines import compiled, document, good


def _shuffled(value: Any, rng: random.Random, key: str = "") -> Any:
    if isinstance(value, dict):
        items = [(name, _shuffled(child, rng, name)) for name, child in value.items()]
        rng.shuffle(items)
        return dict(items)
    if isinstance(value, list):
        children = [_shuffled(child, rng) for child in value]
        if key not in ("images", "mok"):
            rng.shuffle(children)
        return children
    return value


def test_order_of_keys_and_sets_does_not_change_the_digest() -> None:
    for seed in range(20):
        shuffled = _shuffled(document(), random.Random(seed))  # noqa: S311 - a seeded shuffle, nothing secret
        assert compiled(shuffled).canonical == good().canonical


def test_the_order_of_the_boot_chain_is_part_of_the_meaning() -> None:
    for ordered in ("images", "mok"):
        changed = document()
        changed["bootSets"][0][ordered].reverse()
        assert compiled(changed).sha256 != good().sha256


def _leaves(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container with the key or index of a scalar in it."""
    children = value.items() if isinstance(value, dict) else enumerate(value)
    for key, child in list(children):
        if isinstance(child, dict | list):
            yield from _leaves(child)
        else:
            yield value, key


def test_every_scalar_enters_the_digest() -> None:
    seen = {good().sha256}
    count = 0
    original = document()
    for position, _ in enumerate(list(_leaves(original))):
        changed = document()
        container, key = list(_leaves(changed))[position]
        old = container[key]
        container[key] = old + 1 if isinstance(old, int) else "f" + old[1:] if len(old) == 64 else f"{old}1"
        try:
            seen.add(compiled(changed).sha256)
            count += 1
        except ValueError:
            continue  # Fixed words, times and the like have no other value that this simple change makes.
    assert count > 20
    assert len(seen) == count + 1


def test_the_digest_is_of_the_canonical_json_and_reading_it_back_gives_it_again() -> None:
    baseline = good()
    assert hashlib.sha256(baseline.canonical).hexdigest() == baseline.sha256
    assert compile_baseline(load_baseline(baseline.canonical.decode(), "b")).canonical == baseline.canonical
    assert json.dumps(json.loads(baseline.canonical), sort_keys=True, separators=(",", ":")).encode() == (
        baseline.canonical
    )


def test_text_beyond_ascii_is_written_as_utf8() -> None:
    changed = document()
    changed["metadata"]["summary"] = "Kernel für Münster"
    assert "Kernel für Münster".encode() in compiled(changed).canonical


def test_a_pattern_matches_its_prefix_and_a_name_only_itself() -> None:
    changed = document()
    changed["appliesTo"] = {"tenants": ["a"], "cohorts": ["x", "prod-*"]}
    baseline = compiled(changed)
    assert baseline.applies_to("a", "x")
    assert baseline.applies_to("a", "prod-1")
    assert not baseline.applies_to("a", "prod")
    assert not baseline.applies_to("ab", "x")
    assert not baseline.applies_to("a", "xy")
    assert not baseline.applies_to("", "")


def test_a_manufacturer_has_one_spelling() -> None:
    assert {manufacturer_text(text) for text in ("INTC", "494E5443")} == {"INTC"}
    assert {manufacturer_text(text) for text in ("IFX", "49465800", "IFX ")} == {"IFX"}
    assert manufacturer_text("00001014") == "00001014"
