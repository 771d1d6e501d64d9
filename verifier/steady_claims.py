"""The claims of affirming results that stay the same from one attestation of a boot to the next, encoded once.

Four claims change every time: iat, exp, the sequence number and the evidence digest. They are written after the others;
the order of members means nothing in JSON. An entry counts only for the very objects that it was made of, which it
holds, so it cannot outlive them; everything else that enters the claims is compared.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json

from verifier.appraisal.appraise import Appraisal
from verifier.store.ports import NodeRecord

MAX_ENTRIES = 20_000
"""About 4 KiB each."""
_VOLATILE = frozenset({"iat", "exp", "nodewarden"})
_OWN_VOLATILE = frozenset({"seq", "evidence_sha256"})


@dataclass(frozen=True, slots=True)
class Steady:
    """Encoded claims, all but four, and what they were made of."""

    node: NodeRecord
    ak_public: str
    submodules: object
    binding_key: object
    compared: tuple[object, ...]
    head: bytes
    own: bytes
    explanation: str

    def payload(self, issued_at: int, expires_at: int, sequence: int, evidence_sha256: str) -> bytes:
        """The JSON of all claims."""
        return b'%b,"iat":%d,"exp":%d,"nodewarden":%b,"seq":%d,"evidence_sha256":"%b"}}' % (
            self.head,
            issued_at,
            expires_at,
            self.own,
            sequence,
            evidence_sha256.encode("ascii"),
        )


class SteadyClaims:
    """The last used entries, one a node."""

    def __init__(self, limit: int = MAX_ENTRIES) -> None:
        self._limit = limit
        self._known: OrderedDict[str, Steady] = OrderedDict()

    def find(self, node: NodeRecord, ak_public: str, appraisal: Appraisal, uid: str | None) -> Steady | None:
        """The entry of exactly this node, boot, key and baseline; None where anything differs."""
        known = self._known.get(node.node_id)
        if (
            known is None
            or len(appraisal.candidates) != 1
            or known.node is not node
            or known.ak_public is not ak_public
            or known.submodules is not appraisal.submodules
            or known.binding_key is not appraisal.binding_key_jwk
            or known.compared != _compared(appraisal, uid)
        ):
            return None
        return known

    def put(
        self,
        node: NodeRecord,
        ak_public: str,
        appraisal: Appraisal,
        uid: str | None,
        claims: Mapping[str, Any],
        explanation: str,
    ) -> None:
        """Remembers `claims`, the result of an appraisal without failures.

        Not where several baseline versions were tried: the explanation tells what the others failed, which may change.
        """
        if len(appraisal.candidates) != 1:
            return
        own = {name: value for name, value in claims["nodewarden"].items() if name not in _OWN_VOLATILE}
        self._known[node.node_id] = Steady(
            node=node,
            ak_public=ak_public,
            submodules=appraisal.submodules,
            binding_key=appraisal.binding_key_jwk,
            compared=_compared(appraisal, uid),
            head=to_json({name: value for name, value in claims.items() if name not in _VOLATILE})[:-1],
            own=to_json(own)[:-1],
            explanation=explanation,
        )
        self._known.move_to_end(node.node_id)
        if len(self._known) > self._limit:
            self._known.popitem(last=False)


def _compared(appraisal: Appraisal, uid: str | None) -> tuple[object, ...]:
    return (appraisal.verdict, appraisal.boot_id, appraisal.linux_boot_id, appraisal.baseline, uid)
