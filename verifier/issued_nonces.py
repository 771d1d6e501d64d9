"""What this process itself wrote with the last answers: the state that the next evidence will most likely ask for.

Only a short cut to the node's row. The statement that uses the nonce up checks that nothing happened to the row since;
where something did, the store is asked.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict

from verifier.appraisal.context import IssuedChallenge, LastSeen
from verifier.store.attestation import used_after
from verifier.store.ports import NonceState
from verifier.wire.bundle import Nonce

MAX_NONCES = 20_000


class IssuedNonces:
    """The challenges in the rows of the nodes that attested last, with the state of each as it was committed."""

    def __init__(self, limit: int = MAX_NONCES) -> None:
        self._limit = limit
        self._known: OrderedDict[str, tuple[Nonce, NonceState]] = OrderedDict()

    def find(self, node_id: str, nonce: Nonce) -> NonceState | None:
        """The state as committed with this nonce's challenge; given out once, as a nonce is good once."""
        known = self._known.get(node_id)
        if known is None or known[0] != nonce:
            return None
        del self._known[node_id]
        return known[1]

    def put(
        self,
        challenge: IssuedChallenge,
        before: NonceState,
        sequence: int,
        last_seen: LastSeen,
        boot_log_sha256: bytes | None,
    ) -> None:
        """`challenge` was committed to the node's row with a result of `sequence`, where `before` was used up."""
        digest = hashlib.sha256(challenge.nonce).digest()
        # Every field by name: `dataclasses.replace` takes three times as long.
        state = NonceState(
            nonce_sha256=digest,
            node_id=before.node_id,
            node_version=before.node_version,
            node_state=before.node_state,
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
            in_row=True,
            row_nonce_sha256=digest,
            row_expires_at=challenge.expires_at,
            used_nonces=used_after(before),
        )
        self._known[before.node_id] = (challenge.nonce, state)
        if len(self._known) > self._limit:
            self._known.popitem(last=False)

    def forget(self, node_id: str) -> None:
        """The state of this node's row is no longer known."""
        self._known.pop(node_id, None)
