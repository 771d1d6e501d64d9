"""One round of attestation: a challenge, the evidence for it, the verifier's answer."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from attester.bundle import collect
from attester.client import Client, refusal_code
from attester.keys import AttestationKey, sign_request
from attester.settings import AttesterSettings
from attester.state import Enrolment, read_enrolment
from attester.tpm import Tpm, open_tpm, tpm_errors
from attester.tpm_lock import exclusive
from verifier.wire.bundle_codec import encode_bundle
from verifier.wire.challenge import ChallengeRequest, ChallengeResponse
from verifier.wire.codes import ReasonCode
from verifier.wire.encoding import canonical_json
from verifier.wire.failures import Rejection, Unavailable
from verifier.wire.signed_request import RequestLabel, SignedRequest
from verifier.wire.verdict import EvidenceResponse

Clock = Callable[[], int]
"""Seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Node:
    """This machine as enrolled, with the AK by which it speaks."""

    settings: AttesterSettings
    enrolment: Enrolment
    ak: AttestationKey


def enrolled_node(settings: AttesterSettings) -> Node:
    """The node that the state directory keeps.

    Raises Rejection `not-enrolled` (also when the settings meanwhile name another verifier, node or EK type),
    `file-mode-unsafe`.
    """
    enrolment = read_enrolment(settings.state_dir)
    kept = (enrolment.verifier_id, enrolment.node_name, enrolment.ak.ek_kind)
    wanted = (settings.verifier_id, settings.node_name, settings.ek_type)
    if kept != wanted:
        raise Rejection(ReasonCode.NOT_ENROLLED, "enrolment", ", ".join(kept), ", ".join(wanted))
    return Node(settings, enrolment, AttestationKey(enrolment.ak))


@contextmanager
def using_tpm(settings: AttesterSettings, lock_seconds: float | None = None) -> Iterator[Tpm]:
    """The TPM, and no other attester process at it. Raises Unavailable `tpm-unavailable`."""
    with exclusive(settings.runtime_dir, lock_seconds), open_tpm(settings.tcti) as tpm:
        yield tpm


def signed_by(
    node: Node, label: RequestLabel, request: ChallengeRequest, *, lock_seconds: float | None = None
) -> SignedRequest:
    """`request` signed by the node's AK for the purpose `label`. Raises what the TPM's parts do."""
    body = canonical_json(request.model_dump(mode="json"))
    tpm_of = using_tpm(node.settings, lock_seconds)
    with tpm_of as tpm, tpm_errors("attestation key"), node.ak.loaded(tpm) as handle:
        return sign_request(tpm, handle, label, body)


def ask_challenge(node: Node, client: Client, now: int) -> ChallengeResponse:
    """A fresh challenge for this node, asked for in a request that its AK signs at `now` (seconds since 1970)."""
    request = ChallengeRequest(jti=secrets.token_urlsafe(24), iat=now, node_id=node.enrolment.node_id)
    return client.challenge(signed_by(node, RequestLabel.CHALLENGE, request))


def attest(
    node: Node,
    client: Client,
    challenge: ChallengeResponse | None,
    clock: Clock,
    *,
    whole_log: bool = False,  # the boot log is sent, also where the verifier says that it knows it
) -> EvidenceResponse:
    """The verifier's answer to this node's evidence, for `challenge` or, where that is None, for one asked for now.

    The TPM is held only while it works, not while the network does. Raises what collecting and the client raise.
    """
    if challenge is None:
        challenge = ask_challenge(node, client, clock())
    if whole_log:
        challenge = _without_known_log(challenge)
    try:
        return client.send_evidence(_evidence(node, challenge))
    except Rejection as refusal:
        match refusal_code(refusal):
            case ReasonCode.BOOT_LOG_UNKNOWN_DIGEST.value:
                # The verifier forgot the log that it said it knows. Refused evidence does not use up the nonce.
                again = _without_known_log(challenge)
            case ReasonCode.CHALLENGE_OUTDATED.value:
                # A baseline came into force since, and needs more PCRs than were asked for.
                again = ask_challenge(node, client, clock())
            case _:
                raise
    return client.send_evidence(_evidence(node, again))


class Rounds:
    """The rounds of a service: after one to which no answer came, the next sends the boot log whole.

    Attack: whoever keeps the verifier from telling this node that its log is unknown would keep it unverified.
    """

    def __init__(self, node: Node, client: Client, clock: Clock) -> None:
        self._node = node
        self._client = client
        self._clock = clock
        self._whole_log = False

    def __call__(self, challenge: ChallengeResponse | None) -> EvidenceResponse:
        """As `attest`."""
        try:
            answer = attest(self._node, self._client, challenge, self._clock, whole_log=self._whole_log)
        except Unavailable:
            self._whole_log = True
            raise
        self._whole_log = False
        return answer


def _without_known_log(challenge: ChallengeResponse) -> ChallengeResponse:
    whole = challenge.collect.model_copy(update={"boot_log_known_sha256": None})
    return challenge.model_copy(update={"collect": whole})


def _evidence(node: Node, challenge: ChallengeResponse) -> bytes:
    with using_tpm(node.settings) as tpm:
        bundle = collect(tpm, node.ak, node.enrolment.node_id, node.settings, challenge)
    return encode_bundle(bundle)
