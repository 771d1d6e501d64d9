"""The garbage collector of a process that serves."""

from __future__ import annotations

import gc


def tune_collector() -> None:
    """What was built until now lives as long as the process: the collector need not look at it again.

    It looks for cycles, and over the objects of a large fleet or cluster a full look takes some tenths of a second;
    what parses and decides makes no cycles, so that few looks are enough.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
