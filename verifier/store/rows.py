"""Rows to values and back, in one place each."""

from __future__ import annotations

from typing import Any, get_args

from sqlalchemy import RowMapping

from verifier.appraisal.context import EkEndorsement, LastSeen
from verifier.store.ports import Admission, NodeRecord, NodeState, NonceState, StoredResult
from verifier.wire.bundle import NodeId

_STATES: dict[str, NodeState] = {state: state for state in get_args(NodeState)}
_ADMISSIONS: dict[str, Admission] = {admission: admission for admission in get_args(Admission)}


def nonce_state(nonce_sha256: bytes, row: tuple[Any, ...], *, in_row: bool) -> NonceState:
    """The state in a row of `FIND_NONCE`, or, with `in_row`, of `FIND_NEXT_NONCE`."""
    reset, restart, clock = row[12:15]
    return NonceState(
        nonce_sha256=nonce_sha256,
        node_id=NodeId(row[0]),
        issued_at=row[1],
        expires_at=row[2],
        pcr_bank=row[3],
        pcrs=tuple(map(int, row[4].split(","))),
        node_token=bool(row[5]),
        tries=row[6],
        used=row[7] is not None,
        node_version=row[8],
        node_state=_STATES[row[9]],
        previous_sequence=row[10],
        moved=row[11],
        last_seen=None if reset is None else LastSeen(reset, restart, clock),
        boot_log_sha256=row[15],
        in_row=in_row,
        row_nonce_sha256=row[16],
        row_expires_at=row[17] or 0,
        used_nonces=row[18] or b"",
    )


def node_record(row: RowMapping) -> NodeRecord:
    """The node in a row of `nodes`."""
    return introduced_node(row, _STATES[row["state"]], row["enrolled_at"], row["version"])


def introduced_node(row: RowMapping, state: NodeState, enrolled_at: int, version: int) -> NodeRecord:
    """The node of the columns that `nodes` and `enrolments` share."""
    return NodeRecord(
        node_id=NodeId(row["node_id"]),
        node_name=row["node_name"],
        tenant=row["tenant"],
        cohort=row["cohort"],
        ek_public=row["ek_public"],
        ak_public=row["ak_public"],
        endorsement=endorsement(row),
        admission=_ADMISSIONS[row["admission"]],
        state=state,
        kubernetes_node_uid=row["kubernetes_node_uid"],
        enrolled_at=enrolled_at,
        version=version,
        ek_certificate_sha256=row["ek_certificate_sha256"],
    )


def endorsement(row: RowMapping) -> EkEndorsement:
    """The EK's endorsement in a row of `nodes` or `enrolments`."""
    chain = row["ek_chain"]
    return EkEndorsement(
        chain="verified" if chain == "verified" else "none",
        manufacturer=row["tpm_manufacturer"],
        model=row["tpm_model"],
        version=row["tpm_version"],
    )


def node_columns(node: NodeRecord) -> dict[str, Any]:
    """The columns that `nodes` and `enrolments` share."""
    return {
        "node_id": node.node_id,
        "node_name": node.node_name,
        "tenant": node.tenant,
        "cohort": node.cohort,
        "ek_public": node.ek_public,
        "ak_public": node.ak_public,
        "ek_chain": node.endorsement.chain,
        "tpm_manufacturer": node.endorsement.manufacturer,
        "tpm_model": node.endorsement.model,
        "tpm_version": node.endorsement.version,
        "admission": node.admission,
        "ek_certificate_sha256": node.ek_certificate_sha256,
        "kubernetes_node_uid": node.kubernetes_node_uid,
    }


def stored_result(row: RowMapping) -> StoredResult | None:
    """The result in a row of `results`; None before the node's first."""
    if row["token"] is None:
        return None
    return StoredResult(
        node_id=row["node_id"],
        node_name=row["node_name"],
        sequence=row["seq"],
        event=row["event"],
        verdict=row["verdict"],
        issued_at=row["issued_at"],
        expires_at=row["expires_at"],
        token=row["token"],
        explanation=row["explanation"],
        kubernetes_node_uid=row["kubernetes_node_uid"],
    )
