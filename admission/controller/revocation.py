"""Starts the revocation of every lease that a fallen node holds, and asks again until the broker confirms each.

A SecretRelease whose condition `RevocationRequested` is true is the broker's order: it revokes at the backend and
answers with `status.revokedAt`. What a backend cannot revoke (a static value) must be rotated by its owner; the
condition stays as the record of that.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor

from admission.controller.conditions import condition
from admission.controller.view import OURS, ControllerView
from admission.controller.writer import Writer
from admission.kube import KubeNotFound, KubeUnavailable
from admission.lease_records import REQUESTED, Recorded
from verifier.wire.failures import Refusal

ORDERS_AT_ONCE = 8
MAX_REMEMBERED = 10_000


class RevocationOrders:
    """Orders leases revoked beside all other work: a node with a thousand leases keeps its label no second longer."""

    def __init__(self, view: ControllerView, writer: Writer) -> None:
        self._view, self._writer = view, writer
        self._pool = ThreadPoolExecutor(ORDERS_AT_ONCE, thread_name_prefix="order")
        self._lock = threading.Lock()
        self._orders: dict[str, Future[Refusal | None]] = {}

    def revoke(self, node_name: str, now: int, refused: list[Refusal]) -> int:
        """Every lease of the node is ordered revoked or about to be. Returns how many the broker has yet to answer.

        By the node's name: leases of an earlier Node object of the same name fall with it. Returns at once; an order
        that the API server refused is in `refused` of the next call, and is given again.
        """
        open_leases = 0
        with self._lock:
            for record in self._view.releases_of(node_name):
                if record.answered:
                    continue
                open_leases += 1
                if record.ordered:
                    self._orders.pop(record.uid, None)
                    continue
                given = self._orders.get(record.uid)
                if given is not None and given.done() and (refusal := given.result()) is not None:
                    refused.append(refusal)
                    given = None
                if given is None:
                    self._orders[record.uid] = self._pool.submit(self._order, record, node_name, now)
            if len(self._orders) > MAX_REMEMBERED:
                # Of leases that went before their order showed.
                self._orders = {uid: order for uid, order in self._orders.items() if not order.done()}
        return open_leases

    def _order(self, record: Recorded, node: str, now: int) -> Refusal | None:
        asked = condition({}, REQUESTED, "True", "NodeFell", f"node {node} lost its verdict", now)
        others = [part for part in record.conditions if part.get("type") != REQUESTED]
        path = f"{OURS}/secretreleases/{record.name}/status"
        try:
            self._writer.merge(path, {"metadata": {"uid": record.uid}, "status": {"conditions": [*others, asked]}})
        except KubeNotFound:
            return None
        except Refusal as refusal:
            return refusal
        except Exception as error:  # noqa: BLE001 - one lease's fault must not keep the label on its node
            return KubeUnavailable(path, type(error).__name__)
        return None
