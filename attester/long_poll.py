"""One request at a time that the verifier holds until it wants evidence: on a thread and a connection of its own.

The thread does nothing but wait for the network. It has no TPM, no state of the node and no say in when to ask: the
main thread signs each request, and takes what came of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Thread
from types import TracebackType
from typing import Self

from attester.client import Client
from verifier.wire.failures import Refusal
from verifier.wire.signed_request import SignedRequest

LONGEST_HOLD_SECONDS = 70
"""No answer is waited for longer. A verifier holds a request for 55 s at most; the rest is for the network."""
_END_SECONDS = 0.5
"""A stop waits so long for the thread, which is gone at once unless it is looking up a name or connecting."""


class LongPoll:
    """At most one held request. Use as a context: nothing of it is left behind."""

    def __init__(self, client: Client, ring: Callable[[], None]) -> None:
        """`client` is for this alone, its time-out `LONGEST_HOLD_SECONDS`; `ring` is called from the other thread."""
        self._client = client
        self._ring = ring
        self._thread: Thread | None = None
        self._outcome: bool | Exception | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The request that is held ends. A thread that is still connecting ends by itself, or with the process."""
        deadline = time.monotonic() + _END_SECONDS
        while self._thread is not None and self._thread.is_alive() and time.monotonic() < deadline:
            # Again and again: there is nothing to break off before there is a connection.
            self._client.break_off()
            self._thread.join(0.02)

    def begin(self, request: SignedRequest) -> None:
        """`request` is under way; `ring` will be called when its outcome can be taken. One at a time."""
        if self._thread is not None:
            raise RuntimeError("one request at a time")
        # A daemon: a look-up of a name cannot be interrupted, and must not keep a stopped process.
        self._thread = Thread(target=self._wait, args=(request,), name="attest-now", daemon=True)
        self._thread.start()

    def break_off(self) -> None:
        """The request fails soon."""
        self._client.break_off()

    def take(self) -> bool | Refusal | None:
        """Whether evidence is wanted, or why that cannot be told; None while the request is held, or there is none.

        Raises what a defect raised over there.
        """
        outcome = self._outcome
        if outcome is None or self._thread is None:
            return None
        self._thread.join()
        self._thread = self._outcome = None
        match outcome:
            case bool() | Refusal():
                return outcome
            case defect:
                raise defect

    def _wait(self, request: SignedRequest) -> None:
        try:
            self._outcome = self._client.attest_now(request)
        except Exception as error:  # noqa: BLE001 - the outermost edge of a thread: the main one takes it, whatever it is
            self._outcome = error
        self._ring()
