"""Enrolment: a new AK under the EK, introduced to the verifier, proved by activation, kept only when accepted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from attester.client import Client
from attester.collectors.node_token import read_token
from attester.keys import AttestationKey, activate_credential, create_ak, read_endorsement_key
from attester.settings import AttesterSettings
from attester.state import Enrolment, keep_enrolment, prepare_enrolment
from attester.tpm import Tpm
from verifier.wire.codes import ReasonCode
from verifier.wire.enrolment import ActivationRequest, EnrolmentRequest
from verifier.wire.failures import Rejection
from verifier.wire.messages import bytes_of, text_of


@dataclass(frozen=True, slots=True)
class Enrolled:
    """The enrolment, and whether the verifier admits the node already or waits for a person (`admission`)."""

    enrolment: Enrolment
    admitted: bool
    admission: Literal["inventory", "manual", "manufacturer"]


def enrol(tpm: Tpm, client: Client, settings: AttesterSettings) -> Enrolled:
    """The node is enrolled with a new AK, and the state directory holds it; an older enrolment is then replaced.

    All that can fail on our side is tried before the verifier is asked to accept: from then on it knows the new AK
    only, and a node that kept the old one would be locked out. Raises Rejection `verifier-refused` (the verifier's own
    code inside), `credential-mismatch`, `node-token-missing`, `tpm-command-missing`, `verifier-id-mismatch`,
    Unavailable `tpm-failed`, `verifier-unreachable`.
    """
    # First, so that no machine enrols that could never hold a binding key.
    tpm.require_counter_policy()
    ek = read_endorsement_key(tpm, settings.ek_type)
    blob = create_ak(tpm, settings.ek_type, settings.ak_type)
    token = None if settings.node_token_path is None else text_of(read_token(settings.node_token_path))
    request = EnrolmentRequest(
        version=1,
        node_name=settings.node_name,
        ek_public=text_of(ek.public),
        ak_public=text_of(blob.public),
        ek_certificates=[text_of(certificate) for certificate in ek.certificates],
        node_token=token,
    )
    offered = client.enrol(request)
    if offered.node_id != ek.node_id:
        # Evidence is bound to the node id, so both sides must derive the same from the EK itself.
        raise Rejection(ReasonCode.CREDENTIAL_MISMATCH, "node_id", offered.node_id, ek.node_id)
    if offered.verifier_id != settings.verifier_id:
        # Never adopted: a verifier that could name itself could have evidence made for another.
        raise Rejection(ReasonCode.VERIFIER_ID_MISMATCH, "verifier_id", settings.verifier_id, offered.verifier_id)
    ak = AttestationKey(blob)
    secret = activate_credential(tpm, ak, bytes_of(offered.credential_blob), bytes_of(offered.encrypted_secret))
    enrolment = Enrolment(ek.node_id, settings.node_name, settings.verifier_id, blob)
    prepare_enrolment(settings.state_dir, enrolment)
    accepted = client.activate(offered.enrolment_id, ActivationRequest(secret=text_of(secret)))
    keep_enrolment(settings.state_dir)
    return Enrolled(enrolment, accepted.admitted, accepted.admission)
