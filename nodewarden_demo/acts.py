"""What can be done on the stage, each as an outcome with the product's own reasons: nothing here judges anything."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from attester.binding_key import BootKey, agree, kept_boot_key
from attester.bundle import collect
from attester.client import open_client, refusal_code
from attester.jwe import open_jwe
from attester.keys import AttestationKey, create_ak
from attester.release import OpenedSecret, open_secrets, request_secrets
from attester.rounds import ask_challenge, attest, using_tpm
from nodewarden_demo.cluster import NAMESPACE, POLICY, SECRET, DemoPod
from nodewarden_demo.stage import Machine, Stage, now, verifier_client
from nodewarden_demo.steps import Outcome
from verifier.wire.bundle_codec import encode_bundle
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Refusal, Rejection
from verifier.wire.release import ReleaseResponse
from verifier.wire.verdict import EvidenceResponse, Reason

_SETTLE_SECONDS = 6.0
"""The webhook and the broker look for changed manifests every second."""
_CODES = {code.value: code for code in ReasonCode}
_LABEL = f"nodewarden.node-restriction.kubernetes.io/{POLICY}"


@dataclass(frozen=True, slots=True)
class Attestation:
    """An outcome, and the bytes that were sent, so that a thief can send them again."""

    outcome: Outcome
    sent: bytes


def attest_now(stage: Stage, machine: Machine) -> Outcome:
    """The machine attests as its daemon does every minute; the cluster then holds the new result."""
    with verifier_client(machine.settings) as client:
        answer = attest(machine.node, client, None, now)
    stage.publish_results()
    return verdict_outcome(answer)


def attest_recorded(
    machine: Machine, *, signer: AttestationKey | None = None, holder: Machine | None = None
) -> Attestation:
    """As `attest_now` without publishing; `signer` in the TPM of `holder` quotes in place of the machine's own AK."""
    node = machine.node
    with verifier_client(machine.settings) as client:
        challenge = ask_challenge(node, client, now())
        quoting = machine if holder is None else holder
        with using_tpm(quoting.settings) as tpm:
            ak = node.ak if signer is None else signer
            bundle = collect(tpm, ak, node.enrolment.node_id, quoting.settings, challenge)
        sent = encode_bundle(bundle)
        return Attestation(_sent(lambda: verdict_outcome(client.send_evidence(sent))), sent)


def send_again(machine: Machine, sent: bytes) -> Outcome:
    """Evidence that was already accepted is sent once more."""
    with verifier_client(machine.settings) as client:
        return _sent(lambda: verdict_outcome(client.send_evidence(sent)))


def foreign_key(thief: Machine) -> AttestationKey:
    """A new attestation key in the thief's own TPM."""
    with using_tpm(thief.settings) as tpm:
        return AttestationKey(create_ak(tpm, thief.settings.ek_type, thief.settings.ak_type))


def admit(stage: Stage, pod: DemoPod) -> Outcome:
    """The API server asks whether `pod` may be created."""
    return _settled(lambda: reviewed(stage.review("/validate", _pod_review(pod))), wanted="allowed")


def refuse(stage: Stage, pod: DemoPod) -> Outcome:
    """As `admit`, for a pod whose refusal is expected: waits until a change is seen."""
    return _settled(lambda: reviewed(stage.review("/validate", _pod_review(pod))), wanted="denied")


def steer(stage: Stage, pod: DemoPod) -> Outcome:
    """The API server asks how to change `pod`: it must get an affinity to verified nodes."""
    response = stage.review("/mutate", _pod_review(pod))
    steered = "patch" in response
    return Outcome(
        "steered" if steered else "unchanged", detail=f"required node label: {_LABEL}=true" if steered else ""
    )


def bind(stage: Stage, pod: DemoPod, machine: Machine, wanted: str) -> Outcome:
    """The scheduler binds `pod` to the machine's node, and tries again while the webhook does not know the pod."""

    def look() -> Outcome:
        outcome = reviewed(stage.review("/validate", binding_review(pod, machine.name)))
        unknown = any(code == ReasonCode.POD_UNKNOWN.value for code, _, _ in outcome.reasons)
        return Outcome("retry", outcome.reasons) if unknown else outcome

    return _settled(look, wanted)


def release(machine: Machine, token: str) -> ReleaseResponse | Outcome:
    """The broker's answer to the machine's request for the pod's secret; an outcome when it refuses."""
    node, settings = machine.node, machine.settings
    with using_tpm(settings) as tpm:
        envelope = request_secrets(tpm, node.ak, node.enrolment, token.encode(), (SECRET,), now())
    with open_client(str(settings.broker_url), settings.ca_file, 5, 30) as broker:
        try:
            return broker.release(envelope)
        except Refusal as refusal:
            return refused(refusal)


def released(machine: Machine, token: str) -> ReleaseResponse | Outcome:
    """As `release`, waiting until the broker has seen the newest manifests."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    while isinstance(answer := release(machine, token), Outcome) and time.monotonic() < deadline:
        time.sleep(0.2)
    return answer


def open_in_tpm(machine: Machine, response: ReleaseResponse) -> OpenedSecret:
    """The secret, opened by the machine's TPM. Raises Rejection `secret-does-not-open`."""
    node = machine.node
    with using_tpm(machine.settings) as tpm:
        (opened,) = open_secrets(tpm, node.ak, response, (SECRET,), machine.settings.runtime_dir)
    return opened


def boot_secrets(machine: Machine) -> BootKey:
    """What derives the machine's binding key in its TPM: all that a thief of its files could have kept."""
    node = machine.node
    with using_tpm(machine.settings) as tpm:
        return kept_boot_key(tpm, node.ak, machine.settings.runtime_dir)


def try_to_open(machine: Machine, response: ReleaseResponse, kept: BootKey) -> Outcome:
    """What the TPM itself says when it is asked to open `response` with the binding key that was `kept`."""
    try:
        with using_tpm(machine.settings) as tpm:
            open_jwe(response.secrets[0].jwe, partial(agree, tpm, kept))
    except Refusal as refusal:
        failure = refusal.failure
        return Outcome("does not open", ((failure.code.value, failure.line(), failure.code.remedy),))
    return Outcome("opened")


def verdict_outcome(answer: EvidenceResponse) -> Outcome:
    """The verdict with its reasons."""
    return Outcome(
        answer.verdict.value, tuple((reason.code, _seen(reason), reason.remedy) for reason in answer.reasons)
    )


def _seen(reason: Reason) -> str:
    where = "" if reason.pcr is None else f", PCR {reason.pcr}"
    where += "" if reason.event_index is None else f", event {reason.event_index}"
    return f"{reason.claim}{where}: {reason.observed}"


def refused(refusal: Refusal) -> Outcome:
    """A refusal with its reason; a server's own code where one answered."""
    failure = refusal.failure
    served = refusal_code(refusal) if isinstance(refusal, Rejection) else None
    code = failure.code if served is None else _CODES[served]
    return Outcome("refused", ((code.value, failure.claim, code.remedy),))


def _sent(send: Callable[[], Outcome]) -> Outcome:
    try:
        return send()
    except Refusal as refusal:
        return refused(refusal)


def _settled(look: Callable[[], Outcome], wanted: str) -> Outcome:
    deadline = time.monotonic() + _SETTLE_SECONDS
    while (outcome := look()).observed != wanted and time.monotonic() < deadline:
        time.sleep(0.1)
    return outcome


def reviewed(response: dict[str, Any]) -> Outcome:
    """The webhook's response as an outcome."""
    if response["allowed"]:
        return Outcome("allowed")
    status = response["status"]
    causes = status["details"]["causes"]
    return Outcome("denied", tuple((c["reason"], c["message"], _CODES[c["reason"]].remedy) for c in causes))


def _pod_review(pod: DemoPod) -> dict[str, Any]:
    resource = {"group": "", "version": "v1", "resource": "pods"}
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    return _review(kind, resource, "", pod.name, pod.manifest())


def binding_review(pod: DemoPod, node: str) -> dict[str, Any]:
    """The AdmissionReview by which the API server asks about the scheduler's Binding."""
    metadata = {"name": pod.name, "namespace": NAMESPACE, "uid": pod.uid}
    target = {"kind": "Node", "name": node}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}
    resource = {"group": "", "version": "v1", "resource": "pods"}
    kind = {"group": "", "version": "v1", "kind": "Binding"}
    return _review(kind, resource, "binding", pod.name, binding)


def _review(
    kind: dict[str, str], resource: dict[str, str], subresource: str, name: str, content: dict[str, Any]
) -> dict[str, Any]:
    request: dict[str, Any] = {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": kind,
        "resource": resource,
        "requestKind": kind,
        "requestResource": resource,
        "name": name,
        "namespace": NAMESPACE,
        "operation": "CREATE",
        "userInfo": {"username": "system:kube-scheduler" if subresource else "alice"},
        "object": content,
        "oldObject": None,
        "dryRun": False,
        "options": None,
    }
    if subresource:
        request |= {"subResource": subresource, "requestSubResource": subresource}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
