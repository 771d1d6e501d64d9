"""Enrolled nodes as the appraisal wants them, parsed once for each change of the node."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from verifier.appraisal.context import EnrolledNode
from verifier.evidence.tpm import parse_public
from verifier.store.ports import NodeRecord
from verifier.wire.encoding import encode_base64url
from verifier.wire.request_signature import RequestKey, load_request_key

MAX_NODES = 20_000
"""About 10 KiB a node; more nodes than this only cost parsing again."""


@dataclass(frozen=True, slots=True)
class KnownNode:
    """A node's row, and what is made of it."""

    record: NodeRecord
    enrolled: EnrolledNode
    request_key: RequestKey
    ak_text: str
    """The AK as results carry it: base64url of TPM2B_PUBLIC."""


class NodeCache:
    """The last used nodes. An entry counts only for the row's own version, so it is never old."""

    def __init__(self, limit: int = MAX_NODES) -> None:
        self._limit = limit
        self._known: OrderedDict[str, KnownNode] = OrderedDict()

    def find(self, node_id: str, version: int) -> KnownNode | None:
        """The node as it is at `version`, if it was put here."""
        known = self._known.get(node_id)
        if known is None or known.record.version != version:
            return None
        self._known.move_to_end(node_id)
        return known

    def put(self, record: NodeRecord) -> KnownNode:
        """The node of `record`, parsed and remembered. Both public areas were parsed before they were stored."""
        known = KnownNode(
            record=record,
            enrolled=EnrolledNode(
                node_id=record.node_id,
                node_name=record.node_name,
                tenant=record.tenant,
                cohort=record.cohort,
                ek=parse_public(record.ek_public),
                ak=parse_public(record.ak_public),
                endorsement=record.endorsement,
            ),
            request_key=load_request_key(record.ak_public),
            ak_text=encode_base64url(record.ak_public),
        )
        self._known[record.node_id] = known
        self._known.move_to_end(record.node_id)
        if len(self._known) > self._limit:
            self._known.popitem(last=False)
        return known
