"""What this process itself wrote with the last answers: the state that the next evidence will most likely ask for.

Only a short cut. The transaction that uses a nonce up checks that it is unused and that nothing happened to its node
since; where that fails, the entry is dropped and the store is asked.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import replace

from verifier.appraisal.context import IssuedChallenge, LastSeen
from verifier.store.ports import NonceState
from verifier.wire.bundle import Nonce

MAX_NONCES = 20_000


class IssuedNonces:
    """The last issued nonces with the state of their nodes as it was committed."""

    def __init__(self, limit: int = MAX_NONCES) -> None:
        self._limit = limit
        self._known: OrderedDict[Nonce, NonceState] = OrderedDict()

    def find(self, nonce: Nonce) -> NonceState | None:
        """The state as committed with this nonce's challenge; given out once, as a nonce is good once."""
        return self._known.pop(nonce, None)

    def put(
        self,
        challenge: IssuedChallenge,
        before: NonceState,
        sequence: int,
        last_seen: LastSeen,
        boot_log_sha256: bytes | None,
    ) -> None:
        """`challenge` was committed with a result of `sequence`, in the unit that used up `before`."""
        self._known[challenge.nonce] = replace(
            before,
            nonce_sha256=hashlib.sha256(challenge.nonce).digest(),
            issued_at=challenge.issued_at,
            expires_at=challenge.expires_at,
            pcr_bank=challenge.pcr_bank,
            pcrs=challenge.pcrs,
            node_token=challenge.node_token,
            tries=0,
            used=False,
            previous_sequence=sequence,
            moved=before.moved + 1,
            last_seen=last_seen,
            boot_log_sha256=boot_log_sha256,
        )
        if len(self._known) > self._limit:
            self._known.popitem(last=False)

    def forget(self, nonce: Nonce) -> None:
        """The state of this nonce is no longer known."""
        self._known.pop(nonce, None)
