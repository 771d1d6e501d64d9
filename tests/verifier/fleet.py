"""A verifier in a temporary directory, and nodes of the forge that are enrolled in it without a TPM."""

from __future__ import annotations

import hashlib
import json
import secrets
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.forge import baselines
from tests.forge.evidence import NOW, VERIFIER_ID, ForgedEvidence, ForgedNode, accepted, forged_node
from verifier.appraisal.context import IssuedChallenge
from verifier.first_start import initialise
from verifier.results import ResultMaker
from verifier.server import Verifier, build_verifier
from verifier.settings import Settings
from verifier.store.ports import AuditEntry, NodeRecord, NodeState, PendingEnrolment
from verifier.wire.binding import quote_extra_data
from verifier.wire.bundle import Nonce
from verifier.wire.bundle_codec import encode_bundle
from verifier.wire.codes import ReasonCode
from verifier.wire.encoding import decode_base64url
from verifier.wire.signed_request import RequestLabel, SignedRequest, encode_signed_request, message_to_sign

__all__ = ["NOW", "ReasonCode", "quote_extra_data"]


class SetClock:
    """A clock that stands until a test moves it."""

    def __init__(self, seconds: int = NOW) -> None:
        self.ms = seconds * 1000

    def now_ms(self) -> int:
        return self.ms

    def forward(self, seconds: int) -> None:
        self.ms += seconds * 1000


def write_baseline(directory: Path, document: dict[str, Any] | None = None, name: str = "good.yaml") -> None:
    """The forge's baseline, or `document`, among the verifier's."""
    path = directory / name
    path.write_text(json.dumps(baselines.document() if document is None else document))
    path.chmod(0o600)  # whatever the umask says


def make_settings(directory: Path, clock: SetClock, **changes: Any) -> Settings:
    """Settings of a first start in `directory`, with the good baseline."""
    settings = initialise(directory, VERIFIER_ID, "test-cluster", "127.0.0.1", 8443, ("localhost", "127.0.0.1"), NOW)
    write_baseline(settings.baselines_dir)
    generous = {"anonymous_requests_per_minute": 10_000, "refused_requests_per_minute": 10_000}
    generous |= {"evidence_per_node_per_minute": 10_000}
    return settings.model_copy(update=generous | changes)


def start(directory: Path, clock: SetClock, **changes: Any) -> Verifier:
    """A verifier that was started for the first time in `directory`; close it."""
    return build_verifier(make_settings(directory, clock, **changes), clock)


def node(which: int = 0, name: str | None = None) -> ForgedNode:
    """The forge's node number `which`, with keys of its own."""
    return forged_node("p-256", "p-256", which, f"node-{which}" if name is None else name)


def record_of(forged: ForgedNode, state: NodeState = "admitted") -> NodeRecord:
    """The row that the node's enrolment makes."""
    enrolled = forged.enrolled
    return NodeRecord(
        node_id=enrolled.node_id,
        node_name=enrolled.node_name,
        tenant=enrolled.tenant,
        cohort=enrolled.cohort,
        ek_public=forged.ek.tpm2b,
        ak_public=forged.ak.tpm2b,
        endorsement=enrolled.endorsement,
        # As if a person had approved it: the forge's nodes are in no inventory.
        admission="manual",
        state=state,
        kubernetes_node_uid=None,
        enrolled_at=NOW,
        version=1,
    )


async def enrol(verifier: Verifier, forged: ForgedNode, state: NodeState = "admitted") -> NodeRecord:
    """The node is enrolled, by the store's own two steps."""
    return await enrol_record(verifier, record_of(forged, state))


async def enrol_record(verifier: Verifier, record: NodeRecord) -> NodeRecord:
    """The node of `record` is enrolled; raises what the store raises."""
    now_ms = verifier.clock.now_ms()
    secret, number = secrets.token_bytes(32), secrets.token_bytes(32)
    enrolment = hashlib.sha256(number).digest()
    pending = PendingEnrolment(enrolment, hashlib.sha256(secret).digest(), now_ms // 1000 + 300, record)
    audit = AuditEntry(now_ms, "enrolled", "test", "test-request")
    await verifier.store.begin_enrolment(pending, now_ms // 1000, audit)
    results = ResultMaker(verifier.settings, verifier.signer)
    return await verifier.store.activate(
        enrolment,
        secret,
        now_ms // 1000,
        lambda node, previous: results.void(node, previous, ReasonCode.NODE_ENROLLED_ANEW, now_ms),
        audit,
    )


def signed(forged: ForgedNode, now: int, label: RequestLabel = RequestLabel.CHALLENGE, jti: str | None = None) -> bytes:
    """A request signed by the node's AK."""
    body = json.dumps(
        {"jti": jti or secrets.token_urlsafe(16), "iat": now, "node_id": forged.enrolled.node_id}
    ).encode()
    return encode_signed_request(SignedRequest(body, forged.ak.sign(message_to_sign(label, body))))


def issued(forged: ForgedNode, response: dict[str, Any], now: int) -> IssuedChallenge:
    """The challenge in an answer, as the forge takes it."""
    collect = response["collect"]
    nonce = Nonce(decode_base64url(response["nonce"], "nonce"))
    pcrs = tuple(collect["pcrs"])
    node_id = forged.enrolled.node_id
    return IssuedChallenge(
        nonce, node_id, collect["pcr_bank"], pcrs, collect["node_token"], now, response["expires_at"]
    )


async def challenge(verifier: Verifier, forged: ForgedNode) -> IssuedChallenge:
    """A live challenge for the node."""
    now = verifier.clock.now_ms() // 1000
    return issued(forged, json.loads((await verifier.service.challenge(signed(forged, now)))[1]), now)


_clock_ms = [10_000]


def evidence(forged: ForgedNode, answering: IssuedChallenge, case: str = "sb-on-good") -> ForgedEvidence:
    """Evidence that the good baseline accepts; each call is later by the TPM's clock."""
    _clock_ms[0] += 1000
    return accepted(case, forged, answering, clock_ms=_clock_ms[0])


def encoded(forged_evidence: ForgedEvidence, **changes: Any) -> bytes:
    """The bundle's JSON."""
    return encode_bundle(replace(forged_evidence, **changes).bundle())
