"""The newest verified result of every node, from the verifier's stream and, at the start, from NodeAttestations.

A controller that restarts, or takes over, while the verifier is away still knows what was proved: the objects carry
the verifier's signature, so that they need not be believed for who wrote them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from admission.events import reasons_of
from admission.results import ResultVerifier
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure, Refusal
from verifier.wire.result import AttestationResult


@dataclass(frozen=True, slots=True)
class Entry:
    """A verified result and the JWT that carries it."""

    token: str
    result: AttestationResult


class ResultsBook:
    """Entries by node name. Safe to use from any thread."""

    def __init__(self, verifier: ResultVerifier, refresh_keys: Callable[[], None]) -> None:
        self._verifier, self._refresh_keys = verifier, refresh_keys
        self._lock = threading.Lock()
        self._entries: dict[str, Entry] = {}

    def entry(self, node_name: str) -> Entry | None:
        return self._entries.get(node_name)

    def result_of(self, node_name: str) -> AttestationResult | Failure:
        """The result for a node of this name, possibly expired; or why there is none."""
        entry = self._entries.get(node_name)
        return Failure(ReasonCode.RESULT_MISSING, f"nodes.{node_name}") if entry is None else entry.result

    def take(self, token: str) -> str | None:
        """The name of the node whose newest result `token` now is; None, and a line in the log, when it is refused."""
        try:
            result = self._verified(token)
        except Refusal as refusal:
            structlog.get_logger().warning("result_refused", reasons=reasons_of((refusal.failure,)))
            return None
        with self._lock:
            known = self._entries.get(result.node_name)
            if known is not None and known.result.sequence > result.sequence:
                return None
            self._entries[result.node_name] = Entry(token, result)
        return result.node_name

    def _verified(self, token: str) -> AttestationResult:
        try:
            return self._verifier.verify(token)
        except Refusal as refusal:
            if refusal.code is not ReasonCode.RESULT_SIGNATURE_INVALID:
                raise
            # A verifier that rotated its key: look for the new one, and judge again.
            self._refresh_keys()
            return self._verifier.verify(token)
