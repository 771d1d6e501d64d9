"""Enrolment: a TPM introduces itself, proves by activation that it holds EK and AK, and becomes one node.

Which node it becomes is decided from the inventory, or by a person; never from what it says of itself.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from dataclasses import dataclass

from verifier.appraisal.attestation_key import check_ak
from verifier.appraisal.context import EkEndorsement
from verifier.appraisal.credential import make_credential
from verifier.appraisal.ek_certificate import verify_ek_certificate
from verifier.appraisal.endorsement_key import check_ek_template, node_id_of
from verifier.appraisal.endorsements import Endorsements
from verifier.clock import Clock
from verifier.cluster_tokens import NodeTokens
from verifier.evidence.certificate import certificate_bytes
from verifier.evidence.tpm import PublicArea, parse_public
from verifier.results import ResultMaker
from verifier.settings import Settings
from verifier.store.ports import AuditEntry, InventoryEk, InventoryEntry, NodeRecord, PendingEnrolment, Store
from verifier.wanted import Wanted
from verifier.wire.bundle import NodeId
from verifier.wire.codes import ReasonCode
from verifier.wire.enrolment import ActivationRequest, ActivationResponse, EnrolmentRequest, EnrolmentResponse
from verifier.wire.failures import MalformedEvidence, Rejection
from verifier.wire.messages import bytes_of, decode_message, text_of

ENROLMENT_SECONDS = 300
UNASSIGNED = "unassigned"
"""Tenant and cohort of a node that no inventory entry names, until one does."""


@dataclass(frozen=True, slots=True)
class _Introduced:
    """What a request claims, after every check that needs neither store nor certificates."""

    node_id: NodeId
    ek: PublicArea
    ak: PublicArea
    certificates: tuple[bytes, ...]
    certificate_sha256: str | None


class EnrolmentService:
    """Enrols TPMs for one verifier."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        results: ResultMaker,
        clock: Clock,
        endorsements: Endorsements,
        node_tokens: NodeTokens | None,
        wanted: Wanted,
    ) -> None:
        self._settings = settings
        self._store = store
        self._results = results
        self._clock = clock
        self._endorsements = endorsements
        self._node_tokens = node_tokens
        self._wanted = wanted

    async def begin(self, body: bytes, request_id: str) -> bytes:
        """The JSON of a credential that only the claimed TPM opens; the enrolment waits five minutes for the secret.

        Raises whatever the checks of EK, AK, certificates and node token raise, `ek-not-in-inventory`,
        `node-name-mismatch`, `node-name-conflict`, `ek-conflict`, `node-revoked`.
        """
        now_ms = self._clock.now_ms()
        now = now_ms // 1000
        request = _decoded(body)
        claimed = _introduced(request)
        uid = self._node_uid(request, now)
        # Before any certificate is followed: whoever is not listed costs no more than this.
        entry = self._inventory_entry(claimed, request)
        # Certificate chains and OAEP take milliseconds: off the event loop, which evidence shares.
        endorsement = await asyncio.to_thread(self._endorsement, claimed, now)
        secret = secrets.token_bytes(32)
        credential = await asyncio.to_thread(make_credential, claimed.ek, claimed.ak.name, secret, secrets.token_bytes)
        enrolment_id = secrets.token_bytes(32)
        node = NodeRecord(
            node_id=claimed.node_id,
            node_name=request.node_name,
            tenant=UNASSIGNED if entry is None else entry.tenant,
            cohort=UNASSIGNED if entry is None else entry.cohort,
            ek_public=claimed.ek.tpm2b,
            ak_public=claimed.ak.tpm2b,
            endorsement=endorsement,
            admission=self._settings.admission,
            state="admitted" if self._settings.admission == "inventory" else "pending",
            kubernetes_node_uid=uid,
            enrolled_at=now,
            version=1,
            ek_certificate_sha256=claimed.certificate_sha256,
        )
        pending = PendingEnrolment(
            hashlib.sha256(enrolment_id).digest(), hashlib.sha256(secret).digest(), now + ENROLMENT_SECONDS, node
        )
        audit = AuditEntry(now_ms, "enrolment-begun", "anonymous", request_id, node.node_id, node.node_name)
        await self._store.begin_enrolment(pending, now, audit)
        response = EnrolmentResponse(
            enrolment_id=text_of(enrolment_id),
            node_id=node.node_id,
            credential_blob=text_of(credential.blob),
            encrypted_secret=text_of(credential.encrypted_secret),
            expires_at=pending.expires_at,
            verifier_id=self._settings.issuer,
        )
        return response.model_dump_json().encode()

    async def activate(self, enrolment_id: str, body: bytes, request_id: str) -> bytes:
        """The JSON that says that the node is enrolled. One try: codes as `verifier.store.nodes.activate`."""
        now_ms = self._clock.now_ms()
        request = decode_message(ActivationRequest, body, "activation")
        audit = AuditEntry(now_ms, "enrolled", "anonymous", request_id)
        node = await self._store.activate(
            hashlib.sha256(bytes_of(enrolment_id)).digest(),
            bytes_of(request.secret),
            now_ms // 1000,
            lambda record, previous: self._results.void(record, previous, ReasonCode.NODE_ENROLLED_ANEW, now_ms),
            audit,
        )
        self._wanted.want(node.node_id)
        response = ActivationResponse(
            node_id=node.node_id,
            node_name=node.node_name,
            admitted=node.state == "admitted",
            admission=node.admission,
        )
        return response.model_dump_json().encode()

    def _endorsement(self, claimed: _Introduced, now: int) -> EkEndorsement:
        if claimed.certificates:
            return verify_ek_certificate(claimed.ek, claimed.certificates, self._endorsements, now)
        # Without a certificate the EK is known by its public key, or by a person, or not at all: see below.
        return EkEndorsement(chain="none", manufacturer=None, model=None, version=None)

    def _node_uid(self, request: EnrolmentRequest, now: int) -> str | None:
        if self._node_tokens is None:
            if request.node_token is not None:
                raise MalformedEvidence(ReasonCode.ITEM_NOT_REQUESTED, "enrolment.node_token")
            return None
        if request.node_token is None:
            raise Rejection(ReasonCode.NODE_TOKEN_MISSING, "enrolment.node_token")
        node = self._node_tokens.check(bytes_of(request.node_token), now)
        if node.name != request.node_name:
            raise Rejection(ReasonCode.NODE_TOKEN_NAME_MISMATCH, "enrolment.node_name", request.node_name, node.name)
        return node.uid

    def _inventory_entry(self, claimed: _Introduced, request: EnrolmentRequest) -> InventoryEntry | None:
        """The one machine that lists this EK; None only where admission does not rest on the inventory."""
        eks = [InventoryEk("public-key", claimed.node_id)]
        if claimed.certificate_sha256 is not None:
            eks.append(InventoryEk("certificate", claimed.certificate_sha256))
        entry = self._store.inventory_entry(tuple(eks), request.node_name)
        if entry is None:
            match self._settings.admission:
                case "inventory":
                    raise Rejection(ReasonCode.EK_NOT_IN_INVENTORY, "enrolment.ek_public", claimed.node_id)
                case "manufacturer":
                    if not claimed.certificates:
                        raise Rejection(ReasonCode.EK_CERTIFICATE_MISSING, "enrolment.ek_certificates")
                case "manual":
                    pass
        return entry


def _introduced(request: EnrolmentRequest) -> _Introduced:
    """Raises what the checks of EK and AK raise, `certificate-malformed`. No certificate is verified yet."""
    ek, ak = parse_public(bytes_of(request.ek_public)), parse_public(bytes_of(request.ak_public))
    check_ek_template(ek)
    check_ak(ak)
    certificates = tuple(bytes_of(text) for text in request.ek_certificates)
    leaf = _leaf_sha256(certificates[0]) if certificates else None
    return _Introduced(node_id_of(ek), ek, ak, certificates, leaf)


def _decoded(body: bytes) -> EnrolmentRequest:
    try:
        return decode_message(EnrolmentRequest, body, "enrolment")
    except MalformedEvidence as fault:
        if fault.failure.claim != "enrolment.node_name":
            raise
        # Its own code: people meet it, where all other faults of form are a program's.
        raise MalformedEvidence(
            ReasonCode.NODE_NAME_INVALID, fault.failure.claim, fault.failure.observed, fault.failure.expected
        ) from fault


def _leaf_sha256(certificate: bytes) -> str:
    """Of the certificate itself: NV indices pad it, and the padding is nobody's identity."""
    return hashlib.sha256(certificate_bytes(certificate)).hexdigest()
