"""Boot logs that were measured before, by digest and bank: a log does not change, so neither does its replay."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable

from verifier.appraisal.boot import measure_boot
from verifier.appraisal.boot_facts import MeasuredBoot
from verifier.wire.bundle import KnownBody
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Rejection

MAX_LOGS = 512
"""Machines of one model and release share few logs at best; a measured log takes up to about 1 MiB."""


class BootCache:
    """Measures logs and remembers the last used. Only authentic evidence may be measured: it costs time to parse."""

    def __init__(self, stored: Callable[[bytes], bytes | None], limit: int = MAX_LOGS) -> None:
        self._stored = stored
        self._limit = limit
        self._known: OrderedDict[tuple[bytes, str], MeasuredBoot] = OrderedDict()

    def measured(self, sent: bytes | KnownBody | None, bank: str) -> MeasuredBoot | None:
        """The log that was sent or named, replayed in `bank`; None where the bundle has none.

        Raises Rejection `boot-log-unknown-digest` (the node is to send it whole), MalformedEvidence
        `boot-log-malformed`.
        """
        if sent is None:
            return None
        digest = sent.claimed_sha256 if isinstance(sent, KnownBody) else hashlib.sha256(sent).digest()
        key = (digest, bank)
        known = self._known.get(key)
        if known is not None:
            self._known.move_to_end(key)
            return known
        log = self._stored(digest) if isinstance(sent, KnownBody) else sent
        if log is None:
            raise Rejection(ReasonCode.BOOT_LOG_UNKNOWN_DIGEST, "boot-log[0].log", digest.hex())
        boot = self._known[key] = measure_boot(log, bank)
        if len(self._known) > self._limit:
            self._known.popitem(last=False)
        return boot
