"""How large a view of the cluster is and how long it has been silent: what an operator watches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from verifier.wire.failures import Failure


@dataclass(frozen=True, slots=True)
class ViewMeasures:
    """By kind of object, how many are in memory and how many of them deny because they could not be read; and for how
    long each source has been silent: infinity is one that was never heard of."""

    objects: Mapping[str, int]
    unreadable: Mapping[str, int]
    silent_seconds: Mapping[str, float]


def measures_of(
    kinds: Mapping[str, Iterable[Iterable[object]]], alive: Mapping[str, float | None], now: float
) -> ViewMeasures:
    """The measures of `kinds` (collections of objects, a Failure being an unreadable one) and of sources that last were
    heard of at `alive`, by the clock of `now`."""
    found = {kind: [isinstance(one, Failure) for part in parts for one in part] for kind, parts in kinds.items()}
    return ViewMeasures(
        objects={kind: len(failed) for kind, failed in found.items()},
        unreadable={kind: sum(failed) for kind, failed in found.items()},
        silent_seconds={name: float("inf") if at is None else now - at for name, at in alive.items()},
    )
