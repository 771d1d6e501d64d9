"""The single path of evidence, readable from top to bottom: from bytes to a signed, stored and answered result.

The order is a security property: the nonce is looked up before anything is parsed, the AK's signature is checked
before anything that only the node may cause, and the nonce is used up in the one transaction that stores the result.
So a stranger's evidence costs little and changes nothing, and a crash at any point leaves the node as it was.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable

from pydantic_core import to_json

from verifier.answers import Answered, answer_to, audit_entry, challenge_json
from verifier.appraisal.appraise import Appraisal, appraise, rejected
from verifier.appraisal.authenticate import AuthenticBundle, authenticate
from verifier.appraisal.binding_key import VerifiedBindingKey
from verifier.appraisal.context import IssuedChallenge, LastSeen
from verifier.appraisal.verify import verify
from verifier.baselines import AssignedBaselines, BaselineSet
from verifier.boot_cache import BootCache
from verifier.clock import Clock
from verifier.cluster_tokens import NodeTokens
from verifier.entropy import Entropy
from verifier.evidence.parse import ParsedBundle, parse_bundle
from verifier.evidence.steady import SteadyBundles, SteadyHead, parse_steady
from verifier.issued_nonces import IssuedNonces
from verifier.live_nonces import LiveNonces
from verifier.node_cache import KnownNode, NodeCache
from verifier.results import ResultMaker
from verifier.settings import Settings
from verifier.store.ports import AttestationCommit, NodeRecord, NonceState, SequenceMoved, Store
from verifier.wanted import Wanted
from verifier.wire.bundle import NONCE_BYTES, KnownBody, NodeId, Nonce
from verifier.wire.bundle_codec import BundleHead, decode_head, decode_items
from verifier.wire.challenge import AttestNowRequest, ChallengeRequest
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence, Refusal, Rejection, Unavailable
from verifier.wire.messages import decode_message
from verifier.wire.request_signature import verify_signed_request
from verifier.wire.signed_request import RequestLabel, SignedRequest, decode_signed_request

REQUEST_SKEW_SECONDS = 300
"""How far the clock of a node may be off in a signed request."""
_ATTEMPTS = 3
"""How often evidence is judged again when the node's result moved while it was judged."""


Pace = Callable[[str], int]
"""0 when a node may prove itself again, else after how many seconds."""


class Service:
    """Challenges and evidence of enrolled nodes."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        results: ResultMaker,
        clock: Clock,
        node_tokens: NodeTokens | None,
        pace: Pace,
        asking_pace: Pace,
    ) -> None:
        self._settings = settings
        self._pace, self._asking_pace = pace, asking_pace
        self._store = store
        self._results = results
        self._clock = clock
        self._node_tokens = node_tokens
        self._nodes = NodeCache()
        self._issued = IssuedNonces()
        self._nonces = LiveNonces(store, self._issued)
        self._entropy = Entropy()
        self._steady = SteadyBundles()
        self._boots = BootCache(store.boot_log)
        self._binding_keys: dict[str, VerifiedBindingKey] = {}
        self.baselines = BaselineSet(())
        self.wanted = Wanted()

    # --- evidence ---

    async def attest(self, body: bytes, request_id: str) -> Answered:
        """The signed result of the evidence in `body`, durable, with its node's next challenge.

        Raises MalformedEvidence and Rejection for whatever does not carry a valid AK signature over a live nonce of
        that node: then no verdict changes and the nonce stays good, for a few tries. Raises Rejection `rate-limited`
        for a node that proves itself too often, Unavailable `store-unavailable` when nothing could be stored; then
        nothing was.
        """
        head = self._steady.find(body) or decode_head(body)
        await _in_step()
        for _ in range(_ATTEMPTS):
            try:
                return await self._attest_once(body, head, request_id)
            except SequenceMoved:
                continue
        raise Unavailable(ReasonCode.STORE_UNAVAILABLE, "store", "the node's result kept moving")

    async def _attest_once(self, body: bytes, head: BundleHead | SteadyHead, request_id: str) -> Answered:
        now_ms = self._clock.now_ms()
        nonce = self._nonces.find(head.claimed_node_id, head.claimed_nonce, now_ms // 1000)
        try:
            node = self._node_of(head, nonce)
            assigned = self.baselines.assigned(node.record.tenant, node.record.cohort)
            _require_current(nonce, assigned)
            parsed = parse_steady(head) if isinstance(head, SteadyHead) else parse_bundle(decode_items(head))
            challenge = _challenge_of(head.claimed_nonce, nonce)
            authentic = authenticate(parsed, node.enrolled, challenge, self._settings.issuer, nonce.last_seen)
            uid = self._check_node_token(node, parsed, now_ms // 1000)
            self._require_pace(node.record.node_id)
            if not isinstance(head, SteadyHead):
                self._steady.keep(body, parsed)
            appraisal, proved = self._judge(authentic, assigned, now_ms // 1000)
        except Refusal as refusal:
            refusal.of_the_node = True
            if refusal.code is not ReasonCode.RATE_LIMITED:
                await self._nonces.count_try(nonce, refusal, request_id, now_ms)
            raise
        await _in_step()
        signed = self._results.attested(node.record, node.ak_text, appraisal, nonce, uid, now_ms)
        following = self._next_challenge(node.record.node_id, assigned, now_ms // 1000)
        last_seen = _latest(nonce.last_seen, appraisal.seen)
        known_log, new_log = _boot_log_to_keep(parsed.boot_log, nonce, proved=proved)
        await self._store.commit_attestation(
            AttestationCommit(
                nonce=nonce,
                used_at=now_ms // 1000,
                result=signed.stored,
                last_seen=last_seen,
                boot_log_sha256=known_log,
                new_boot_log=new_log,
                next_challenge=following,
                audit=audit_entry(node, appraisal, signed, request_id, now_ms),
            )
        )
        self.wanted.attested(node.record.node_id)
        if nonce.row_is_free(now_ms // 1000):
            self._issued.put(following, nonce, signed.stored.sequence, last_seen, known_log)
        else:
            self._issued.forget(nonce.node_id)
        return answer_to(node, signed, challenge_json(following, known_log, self._settings.interval_seconds))

    def _node_of(self, head: BundleHead | SteadyHead, nonce: NonceState) -> KnownNode:
        if head.claimed_node_id != nonce.node_id:
            raise Rejection(ReasonCode.NONCE_WRONG_NODE, "bundle.node_id", head.claimed_node_id)
        if nonce.node_state == "revoked":
            raise Rejection(ReasonCode.NODE_REVOKED, "bundle.node_id", nonce.node_id)
        return self._nodes.find(nonce.node_id, nonce.node_version) or self._load_node(nonce.node_id)

    def _load_node(self, node_id: str) -> KnownNode:
        record = self._store.node(node_id)
        if record is None:
            raise Rejection(ReasonCode.NODE_UNKNOWN, "node_id", node_id)
        return self._nodes.find(node_id, record.version) or self._nodes.put(record)

    def _check_node_token(self, node: KnownNode, parsed: ParsedBundle, now: int) -> str | None:
        """The UID of the node's Node object, by the cluster's own word; None where no cluster is served."""
        if self._node_tokens is None:
            return None
        if parsed.node_token is None:
            raise Rejection(ReasonCode.NODE_TOKEN_MISSING, "node-token[0]")
        kubernetes_node = self._node_tokens.check(parsed.node_token, now)
        if kubernetes_node.name != node.record.node_name:
            raise Rejection(
                ReasonCode.NODE_TOKEN_NAME_MISMATCH, "node-token.node", kubernetes_node.name, node.record.node_name
            )
        return kubernetes_node.uid

    def _require_pace(self, node_id: str) -> None:
        """Attack: a node that proves itself again and again, and has us measure a new log each time."""
        seconds = self._pace(node_id)
        if seconds:
            raise Rejection(ReasonCode.RATE_LIMITED, "node", None, f"again after {seconds} s")

    def _judge(self, authentic: AuthenticBundle, assigned: AssignedBaselines, now: int) -> tuple[Appraisal, bool]:
        """The verdict, and whether the evidence holds together: what is wrong from here on, the node itself signed."""
        node_id = authentic.node.node_id
        try:
            boot = self._boots.measured(authentic.parsed.boot_log, authentic.challenge.pcr_bank)
        except MalformedEvidence as malformed:
            # The node signed this very log. Attack: a changed node whose old verdict stands while it sends rubbish.
            return rejected(authentic, malformed.failure), False
        try:
            verified = verify(authentic, boot, self._binding_keys.get(node_id))
        except Rejection as rejection:
            return rejected(authentic, rejection.failure), False
        if verified.binding_key is not None:
            if len(self._binding_keys) >= 20_000:
                self._binding_keys.clear()
            self._binding_keys[node_id] = verified.binding_key
        return appraise(verified, assigned.baselines, now), True

    # --- challenges ---

    async def challenge(self, message: bytes) -> tuple[NodeRecord, bytes]:
        """The node that signed the request in `message`, and the JSON of a new challenge for it.

        Raises Rejection `node-unknown`, `node-revoked`, `request-signature-invalid`, `request-not-fresh`,
        `request-replayed`, `rate-limited`.
        """
        node, request, now = self._signed(RequestLabel.CHALLENGE, decode_signed_request(message), ChallengeRequest)
        assigned = self.baselines.assigned(node.record.tenant, node.record.cohort)
        challenge = self._next_challenge(node.record.node_id, assigned, now)
        await self._store.add_challenge(challenge, request.jti, request.iat + 2 * REQUEST_SKEW_SECONDS)
        known = self._store.known_boot_log(node.record.node_id)
        return node.record, to_json(challenge_json(challenge, known, self._settings.interval_seconds))

    async def attest_now(self, message: bytes) -> NodeRecord:
        """The node that may wait at `wanted` for whether evidence is wanted early. Raises as `challenge`."""
        node, request, _ = self._signed(RequestLabel.ATTEST_NOW, decode_signed_request(message), AttestNowRequest)
        await self._store.use_request(node.record.node_id, request.jti, request.iat + 2 * REQUEST_SKEW_SECONDS)
        return node.record

    def _signed(
        self, label: RequestLabel, envelope: SignedRequest, kind: type[ChallengeRequest]
    ) -> tuple[KnownNode, ChallengeRequest, int]:
        now = self._clock.now_ms() // 1000
        claimed = decode_message(kind, envelope.claimed_body, "request.body")
        node = self._load_node(claimed.node_id)
        verify_signed_request(node.request_key, label, envelope)
        refusal: Rejection | None = None
        if node.record.state == "revoked":
            refusal = Rejection(ReasonCode.NODE_REVOKED, "node", node.record.node_name)
        elif abs(now - claimed.iat) > REQUEST_SKEW_SECONDS:
            refusal = Rejection(ReasonCode.REQUEST_NOT_FRESH, "request.iat", str(claimed.iat), f"about {now}")
        elif seconds := self._asking_pace(claimed.node_id):
            # Attack: a node, admitted or not, whose requests are each written and synced before anyone else's.
            refusal = Rejection(ReasonCode.RATE_LIMITED, "node", None, f"again after {seconds} s")
        if refusal is not None:
            refusal.of_the_node = True
            raise refusal
        return node, claimed, now

    def _next_challenge(self, node_id: NodeId, assigned: AssignedBaselines, now: int) -> IssuedChallenge:
        return IssuedChallenge(
            nonce=Nonce(self._entropy.take(NONCE_BYTES)),
            node_id=node_id,
            pcr_bank=assigned.pcr_bank,
            pcrs=assigned.pcrs,
            node_token=self._node_tokens is not None,
            issued_at=now,
            expires_at=now + self._settings.nonce_seconds,
        )


async def _in_step() -> None:
    """Requests that came together take the next step together, so that each finds its code and tables in the caches.

    Never between the look-up of a nonce and the counting of a try: many bad bundles side by side would be one try.
    """
    await asyncio.sleep(0)


def _require_current(nonce: NonceState, assigned: AssignedBaselines) -> None:
    """A baseline that came into force after the challenge may need PCRs that it did not ask for: not the node's fault.

    Raises Rejection `challenge-outdated`.
    """
    if nonce.pcrs == assigned.pcrs and nonce.pcr_bank == assigned.pcr_bank:
        return
    if nonce.pcr_bank != assigned.pcr_bank or not set(assigned.pcrs).issubset(nonce.pcrs):
        asked, needed = f"{nonce.pcr_bank} {nonce.pcrs}", f"{assigned.pcr_bank} {assigned.pcrs}"
        raise Rejection(ReasonCode.CHALLENGE_OUTDATED, "challenge", asked, needed)


def _challenge_of(nonce: Nonce, state: NonceState) -> IssuedChallenge:
    return IssuedChallenge(
        nonce=nonce,
        node_id=state.node_id,
        pcr_bank=state.pcr_bank,
        pcrs=state.pcrs,
        node_token=state.node_token,
        issued_at=state.issued_at,
        expires_at=state.expires_at,
    )


def _latest(last: LastSeen | None, seen: LastSeen) -> LastSeen:
    """Attack: a TPM state put back, accepted as the new last state, would pass at the next quote."""
    if last is None:
        return seen
    order = (last.reset_count, last.restart_count, last.clock_ms), (seen.reset_count, seen.restart_count, seen.clock_ms)
    return seen if order[0] < order[1] else last


def _boot_log_to_keep(
    log: bytes | KnownBody | None, nonce: NonceState, *, proved: bool
) -> tuple[bytes | None, bytes | None]:
    """The digest of the node's known log from now on, and the log itself where it is new.

    A log is worth keeping, and naming by digest, only once a quote has proved it.
    """
    if log is None or not proved:
        return nonce.boot_log_sha256, None
    if isinstance(log, KnownBody):
        return log.claimed_sha256, None
    digest = hashlib.sha256(log).digest()
    return digest, None if digest == nonce.boot_log_sha256 else log
