"""Chaining and checking the audit log: every second one round signs the head over all rows committed since."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import jwt

from verifier.clock import Clock
from verifier.store.audit import START, extend
from verifier.store.ports import AuditEntry, AuditHead, AuditRow, Store
from verifier.tokens import AUDIT_TYPE, Signer
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence, Rejection, Unavailable

_PAGE = 2000


class AuditRows(Protocol):
    """What checking reads: a verifier's store, or `verifier.store.audit_reader.AuditReader`."""

    def audit_after(self, row_id: int, limit: int) -> list[AuditRow]: ...
    def audit_heads(self) -> list[AuditHead]: ...


def append_checkpoint(path: Path, head: AuditHead) -> None:
    """The head is a line of the checkpoint file. Raises Unavailable `file-unreadable`."""
    line = json.dumps({"last_id": head.last_id, "rows": head.rows, "token": head.token})
    try:
        with path.open("a", encoding="ascii") as file:
            file.write(line + "\n")
    except OSError as error:
        raise Unavailable(ReasonCode.FILE_UNREADABLE, str(path), error.strerror) from error


async def chain_once(
    store: Store, signer: Signer, clock: Clock, issuer: str, checkpoints: Path, refused: dict[str, int]
) -> AuditHead | None:
    """One round: strangers' refusals become one row, new rows are chained, and the head is signed and sent out."""
    if refused:
        detail: dict[str, str | int | None] = dict(sorted(refused.items()))
        await store.write_audit(AuditEntry(clock.now_ms(), "refusals", "verifier", "chainer", detail=detail))

    def sign(last_id: int, rows: int, chain: str) -> AuditHead:
        at_ms = clock.now_ms()
        claims = {"iss": issuer, "iat": at_ms // 1000, "last_id": last_id, "rows": rows, "chain_sha256": chain}
        return AuditHead(last_id, rows, chain, at_ms, signer.sign(claims, AUDIT_TYPE))

    head = await store.chain_audit(sign)
    if head is not None:
        append_checkpoint(checkpoints, head)
    return head


@dataclass(frozen=True, slots=True)
class AuditProof:
    """What was proved of an audit log: rows up to `last_id` are as signed, `unanchored` ones prove nothing yet."""

    rows: int
    last_id: int
    unanchored: int
    checkpoint_rows: int | None


def verify_audit(store: AuditRows, jwks: dict[str, Any], checkpoint: AuditHead | None) -> AuditProof:
    """The log's rows recompute every signed head, in order; with `checkpoint`, also that head, kept elsewhere.

    Raises Rejection `audit-chain-broken` saying where. Does not prove rows after the last head, which it counts.
    """
    keys = {key.key_id: key.key for key in jwt.PyJWKSet.from_dict(jwks).keys}
    heads = store.audit_heads()
    if checkpoint is not None:
        checked_head(checkpoint, keys)
        if not any(head.last_id >= checkpoint.last_id for head in heads):
            raise _broken("heads", "end before the checkpoint", f"row {checkpoint.last_id}")
    rows = _rows(store)
    chain, count, last_id = START, 0, 0
    anchors = [checked_head(head, keys) for head in heads]
    if checkpoint is not None:
        anchors = sorted([*anchors, checked_head(checkpoint, keys)], key=lambda head: head.last_id)
    pending = next(rows, None)
    for head in anchors:
        while pending is not None and pending.id <= head.last_id:
            chain = extend(chain, (pending,))
            count += 1
            last_id = pending.id
            pending = next(rows, None)
        if (last_id, count, chain) != (head.last_id, head.rows, head.chain_sha256):
            raise _broken(f"head at row {head.last_id}", f"{count} rows, {chain}", f"{head.rows} rows")
    unanchored = 0
    while pending is not None:
        unanchored += 1
        pending = next(rows, None)
    return AuditProof(count, last_id, unanchored, None if checkpoint is None else checkpoint.rows)


def checked_head(head: AuditHead, keys: dict[Any, Any]) -> AuditHead:
    """`head` as its signature says it is. Raises Rejection `audit-chain-broken`."""
    try:
        header = jwt.get_unverified_header(head.token)
        if header.get("typ") != AUDIT_TYPE:
            raise _broken("head", str(header.get("typ")), AUDIT_TYPE)
        claims = jwt.decode(head.token, keys[header["kid"]], algorithms=["ES256"], options={"verify_iat": False})
        signed = AuditHead(claims["last_id"], claims["rows"], claims["chain_sha256"], head.at_ms, head.token)
    except (jwt.PyJWTError, KeyError) as error:
        raise _broken(f"head at row {head.last_id}", type(error).__name__, "a signature of this verifier") from error
    if (signed.last_id, signed.rows) != (head.last_id, head.rows):
        raise _broken(f"head at row {head.last_id}", "other numbers than were signed", None)
    return signed


def read_checkpoint(path: Path) -> AuditHead:
    """The last line of a checkpoint file. Raises MalformedEvidence `schema-mismatch`, Unavailable `file-unreadable`."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
        fields = json.loads(lines[-1])
        return AuditHead(fields["last_id"], fields["rows"], "", 0, fields["token"])
    except OSError as error:
        raise Unavailable(ReasonCode.FILE_UNREADABLE, str(path), error.strerror) from error
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise MalformedEvidence(ReasonCode.SCHEMA_MISMATCH, str(path), type(error).__name__) from error


def _rows(store: AuditRows) -> Iterator[AuditRow]:
    last = -(2**63)  # Not 0: a row that was put before the first would not be seen.
    while page := store.audit_after(last, _PAGE):
        yield from page
        last = page[-1].id


def _broken(where: str, observed: str, expected: str | None) -> Rejection:
    return Rejection(ReasonCode.AUDIT_CHAIN_BROKEN, f"audit.{where}", observed, expected)
