"""The end of what a node was: its result, its challenges, and whatever enrolment of it still waits.

Whoever loses trust loses it with a signed result of a higher sequence number, in the unit that takes it.
"""

from __future__ import annotations

from sqlalchemy import ColumnElement, Update, delete, insert, or_, select, update

from verifier.store.ports import NodeRecord, SignVoid
from verifier.store.schema import CHALLENGES, ENROLMENTS, NODES, RESULTS
from verifier.store.writer import Transaction


def moved(which: ColumnElement[bool]) -> Update:
    """Evidence that is being judged by the node's former state will be judged again."""
    return update(RESULTS).where(which).values(moved=RESULTS.c.moved + 1)


def end_trust(transaction: Transaction, node: NodeRecord, void: SignVoid, *, same_ak: bool) -> None:
    """A signed end of trust replaces the node's result, if it ever had one; the boot log starts anew.

    So do counters and clock, except with `same_ak`: what was last seen of them stays, or a revocation hid a roll-back.
    """
    connection = transaction.connection
    row = connection.execute(select(RESULTS).where(RESULTS.c.node_id == node.node_id)).mappings().first()
    if row is None:
        connection.execute(
            insert(RESULTS).values(node_id=node.node_id, node_name=node.node_name, seq=0, moved=0, event=0)
        )
        return
    result = void(node, row["seq"])
    values = {
        "node_name": node.node_name,
        "seq": result.sequence,
        "moved": row["moved"] + 1,
        "event": transaction.next_event(),
        "verdict": result.verdict,
        "issued_at": result.issued_at,
        "expires_at": result.expires_at,
        "token": result.token,
        "explanation": result.explanation,
        "kubernetes_node_uid": result.kubernetes_node_uid,
        "boot_log_sha256": None,
    }
    if not same_ak:
        values |= {"reset_count": None, "restart_count": None, "clock_ms": None}
    connection.execute(update(RESULTS).where(RESULTS.c.node_id == node.node_id).values(**values))


def end_challenges(transaction: Transaction, node_id: str) -> None:
    """No challenge of this node is live."""
    transaction.connection.execute(delete(CHALLENGES).where(CHALLENGES.c.node_id == node_id))
    ended = {"next_nonce_sha256": None, "next_expires_at": None}
    transaction.connection.execute(update(RESULTS).where(RESULTS.c.node_id == node_id).values(ended))


def end_enrolments(transaction: Transaction, node_id: str | None, node_name: str) -> None:
    """No enrolment of this TPM or under this name waits any more.

    Attack: root on a machine keeps an enrolment pending, and finishes it after a person removed the machine.
    """
    which = ENROLMENTS.c.node_name == node_name
    if node_id is not None:
        which = or_(which, ENROLMENTS.c.node_id == node_id)
    transaction.connection.execute(delete(ENROLMENTS).where(which))


def remove_node(transaction: Transaction, node: NodeRecord, void: SignVoid) -> None:
    """The TPM is no node any more; its sequence number and audit rows stay."""
    end_trust(transaction, node, void, same_ak=False)
    end_challenges(transaction, node.node_id)
    end_enrolments(transaction, node.node_id, node.node_name)
    transaction.connection.execute(delete(NODES).where(NODES.c.node_id == node.node_id))
