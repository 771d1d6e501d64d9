"""Token buckets by client address, in bounded memory."""

from __future__ import annotations

import time
from collections import OrderedDict

from edges.connections import network_of

MAX_ADDRESSES = 50_000


class RateLimiter:
    """`per_minute` tokens for each address, all of them at first; memory for the last `MAX_ADDRESSES` only.

    An IPv6 client is its /64: one host has that many addresses to itself.
    """

    def __init__(self, per_minute: int, limit: int = MAX_ADDRESSES) -> None:
        self._capacity = float(per_minute)
        self._per_second = per_minute / 60
        self._limit = limit
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_seconds(self, address: str) -> int:
        """0 when the address had a token, which is now taken; else after how many seconds it will have one."""
        key = network_of(address)
        now = time.monotonic()
        tokens, at = self._buckets.pop(key, (self._capacity, now))
        tokens = min(self._capacity, tokens + (now - at) * self._per_second)
        if tokens >= 1:
            self._buckets[key] = (tokens - 1, now)
            wait = 0
        else:
            self._buckets[key] = (tokens, now)
            wait = int((1 - tokens) / self._per_second) + 1
        if len(self._buckets) > self._limit:
            self._buckets.popitem(last=False)
        return wait
