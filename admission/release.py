"""Secret release, readable top to bottom: nothing is read from the backend before all conditions hold.

0. The node that the token claims has a verified result, and signed this request. Attack: strangers with made-up tokens,
   of which each would cost the API server a review, and us a thread that waits for it.
1. The token is a pod's, for this broker, and its node has a verified result.
2. The caller holds that node's AK and signed this request, now, once, for this token (`admission.possession`).
3. Pod and node are those of the token, alive, bound to each other; the node passes every policy; the workload may have
   the secrets and runs only listed images (`admission.decision`).
4. A lease is recorded, durably, before the backend is asked; one that was revoked is none.
5. Each secret is encrypted to the binding key of the current result: it opens in that TPM, in that boot.
6. No lease was revoked meanwhile, and the node is still what it was: steps 1 to 5 may have waited for the API server.
"""

from __future__ import annotations

from dataclasses import dataclass

from admission.cluster_view import AdmissionState, ClusterView, PodIdentity
from admission.decision import Deny, Release, decide_release
from admission.leases import LeaseBook
from admission.pod_tokens import claimed_node
from admission.possession import RequestMemory, prove_possession, require_signature, signed_part
from admission.sealed_store import SecretBackend
from admission.secret_encryption import BindingKey
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure, Rejection
from verifier.wire.release import ReleasedSecret, ReleaseEnvelope, ReleaseResponse
from verifier.wire.result import AttestationResult


class ReleaseDenied(Exception):
    """The request is well-formed, and the pod on its node may not have the secrets; for `failures`.

    `identity` is the pod, once its node proved that it asks; None before.
    """

    def __init__(self, failures: tuple[Failure, ...], identity: PodIdentity | None = None) -> None:
        self.failures, self.identity = failures, identity
        super().__init__(failures[0].code.value)


@dataclass(frozen=True, slots=True)
class Released:
    """What was released, for the answer and for the log."""

    response: ReleaseResponse
    pod: str
    pod_uid: str
    node: str
    boot_id: str


class ReleaseService:
    """Answers release requests from `view`, `leases` and `backend`."""

    def __init__(self, view: ClusterView, requests: RequestMemory, leases: LeaseBook, backend: SecretBackend) -> None:
        self._view, self._requests, self._leases, self._backend = view, requests, leases, backend

    def release(self, envelope: ReleaseEnvelope, now: int) -> Released:
        """All secrets that the request names, each under its lease.

        Raises MalformedEvidence, Rejection and Unavailable as the steps do, ReleaseDenied when the decision is no.
        """
        request = signed_part(envelope)
        # One state for the whole request: two would let a pod of one moment meet the verdict of another.
        state = self._view.state()
        require_signature(request, _result_of(state, claimed_node(envelope.token)))
        identity = self._view.check_token(envelope.token, now)
        account = state.account_failure(identity)
        if account is not None:
            raise ReleaseDenied((account,), identity)
        result = _result_of(state, identity.node_name)
        message = prove_possession(request, envelope.token, result, self._requests, now)
        decision = decide_release(state, identity, tuple(dict.fromkeys(message.secrets)), now)
        if isinstance(decision, Deny):
            raise ReleaseDenied(decision.failures, identity)
        try:
            released = self._released(decision, now)
        except Rejection as rejection:
            if rejection.code not in (ReasonCode.LEASE_REVOKED, ReasonCode.LEASE_HELD):
                raise
            raise ReleaseDenied((rejection.failure,), identity) from rejection
        # Attack: ask just before the node falls. No lease shows it yet, so no order to revoke would stop the answer.
        newest = decide_release(self._view.state(), identity, tuple(grant.name for grant in decision.grants), now)
        if isinstance(newest, Deny):
            raise ReleaseDenied(newest.failures, identity)
        if _proved_by(newest) != _proved_by(decision):
            failure = Failure(
                ReasonCode.BOOT_MISMATCH, f"nodes.{newest.node.name}.boot", newest.boot_id, decision.boot_id
            )
            raise ReleaseDenied((failure,), identity)
        return released

    def _released(self, decision: Release, now: int) -> Released:
        key = BindingKey(decision.binding_key)
        leases = self._leases.take(decision, key.sha256, now)
        contents = [self._backend.read(lease.secret) for lease in leases]
        secrets = [
            ReleasedSecret(
                name=lease.secret,
                path=grant.path,
                jwe=key.encrypt(content),
                lease_id=lease.lease_id,
                expires_at=lease.expires_at,
            )
            for lease, grant, content in zip(leases, decision.grants, contents, strict=True)
        ]
        self._leases.require_standing(leases)
        pod, node = decision.pod, decision.node
        return Released(
            ReleaseResponse(secrets=secrets), f"{pod.namespace}/{pod.name}", pod.uid, node.name, decision.boot_id
        )


def _result_of(state: AdmissionState, node_name: str) -> AttestationResult:
    node = state.node(node_name)
    if node is None:
        raise Rejection(ReasonCode.NODE_UNKNOWN_TO_CLUSTER, f"nodes.{node_name}")
    result = state.result_of(node)
    if isinstance(result, Failure):
        raise ReleaseDenied((result,))
    return result


def _proved_by(release: Release) -> tuple[object, ...]:
    """The boot and the keys on which `release` rests."""
    return release.boot_id, release.binding_key, release.result.ak_public
