"""HTTPS to the verifier and the broker: pinned CA, bounded answers, errors in our terms.

No retries here: a command says at once that it failed, and only the daemon tries again, with back-off.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import httpx
import zstandard

from verifier.wire.challenge import AttestNowResponse, ChallengeResponse
from verifier.wire.codes import ReasonCode
from verifier.wire.encoding import canonical_json
from verifier.wire.enrolment import ActivationRequest, ActivationResponse, EnrolmentRequest, EnrolmentResponse
from verifier.wire.failures import MalformedEvidence, Refusal, Rejection, Unavailable
from verifier.wire.messages import Message, decode_message
from verifier.wire.release import ReleaseEnvelope, ReleaseResponse
from verifier.wire.signed_request import SignedRequest, encode_signed_request
from verifier.wire.verdict import EvidenceResponse, Problem

MAX_ANSWER_BYTES = 2 * 1024 * 1024
COMPRESS_FROM_BYTES = 16 * 1024
"""A steady bundle (log known by digest) is smaller and goes as it is."""
EXCHANGE_FACTOR = 2.0
"""A whole exchange may take this many request time-outs, each of which bounds only the wait for one part."""
KEEP_ALIVE_SECONDS = 600.0
"""Longer than any interval between rounds, so that a steady round needs no new handshake; the server may end it."""

AnswerT = TypeVar("AnswerT", bound=Message)


class Client:
    """One server and one connection kept open to it. Made by `open_client`."""

    def __init__(self, http: httpx.Client, exchange_seconds: float) -> None:
        self._http = http
        self._exchange_seconds = exchange_seconds
        self._socket: socket.socket | None = None
        self._late = False

    def enrol(self, request: EnrolmentRequest) -> EnrolmentResponse:
        """POST /v1/enrolments. Raises as `_post`."""
        return self._post(EnrolmentResponse, "/v1/enrolments", _json(request))

    def activate(self, enrolment_id: str, request: ActivationRequest) -> ActivationResponse:
        """POST /v1/enrolments/{id}/activation. `enrolment_id` is base64url, so it is safe in a path."""
        return self._post(ActivationResponse, f"/v1/enrolments/{enrolment_id}/activation", _json(request))

    def challenge(self, request: SignedRequest) -> ChallengeResponse:
        """POST /v1/challenges."""
        return self._post(ChallengeResponse, "/v1/challenges", encode_signed_request(request))

    def attest_now(self, request: SignedRequest) -> bool:
        """POST /v1/attest-now: whether evidence is wanted before the interval is over. Held for most of a minute."""
        return self._post(AttestNowResponse, "/v1/attest-now", encode_signed_request(request)).wanted

    def send_evidence(self, bundle: bytes) -> EvidenceResponse:
        """POST /v1/evidence. A bad verdict is an answer, not an error."""
        return self._post(EvidenceResponse, "/v1/evidence", bundle)

    def release(self, envelope: ReleaseEnvelope) -> ReleaseResponse:
        """POST /v1/secrets/release.

        Raises the broker's refusal under the broker's own code; Rejection `broker-refused` for a code that is unknown
        here, Unavailable `broker-unreachable` without an answer that can be read.
        """
        try:
            return self._post(ReleaseResponse, "/v1/secrets/release", _json(envelope))
        except Refusal as refusal:
            raise _of_broker(refusal) from refusal

    def reach(self, path: str) -> None:
        """The server answers at the open route `path` over TLS by the pinned CA. Raises as `_post`."""
        with self._exchange("GET", path, None) as (status, body):
            if status != httpx.codes.OK:
                raise _problem(status, body, path)

    def break_off(self) -> None:
        """From another thread: the exchange in flight fails at once, where it has a connection already."""
        connected = self._socket
        if connected is not None:
            # Closing would not wake the reader; SSLSocket's own shutdown would take its TLS state from under it.
            with suppress(OSError):
                socket.socket.shutdown(connected, socket.SHUT_RDWR)

    def _post(self, kind: type[AnswerT], path: str, body: bytes) -> AnswerT:
        # Raises Rejection verifier-refused (4xx; the server's own code in `observed`), Unavailable
        # verifier-unreachable (no connection, TLS, time-out, 5xx, 429, or an answer that we cannot read).
        with self._exchange("POST", path, body) as (status, answer):
            if status not in (httpx.codes.OK, httpx.codes.CREATED):
                raise _problem(status, answer, path)
        try:
            return decode_message(kind, answer, f"answer to {path}", MAX_ANSWER_BYTES)
        except MalformedEvidence as error:
            claim, observed = error.failure.claim, error.failure.observed
            raise Unavailable(ReasonCode.VERIFIER_UNREACHABLE, claim, observed, "a readable answer") from error

    @contextmanager
    def _exchange(self, method: str, path: str, body: bytes | None) -> Iterator[tuple[int, bytes]]:
        headers = {"accept": "application/json"}
        if body is not None:
            headers["content-type"] = "application/json"
            if len(body) >= COMPRESS_FROM_BYTES:
                # One frame with its content size: the server refuses others.
                body = zstandard.ZstdCompressor(level=3, write_content_size=True).compress(body)
                headers["content-encoding"] = "zstd"
        deadline = time.monotonic() + self._exchange_seconds
        self._late = False
        # Attack: a head that never ends, a byte now and then. Nothing of it comes to us before all of it is there.
        timer = threading.Timer(self._exchange_seconds, self._cut)
        timer.daemon = True
        timer.start()
        try:
            watched = {"trace": self._watch}
            with self._http.stream(method, path, content=body, headers=headers, extensions=watched) as response:
                answer = _bounded(response, path, deadline)
                status = response.status_code
        except (httpx.HTTPError, httpx.StreamError) as error:
            claim = f"{self._http.base_url}{path}"
            raise Unavailable(ReasonCode.VERIFIER_UNREACHABLE, claim, _cause(error)) from error
        finally:
            timer.cancel()
        yield status, answer

    def _cut(self) -> None:
        self._late = True
        self.break_off()

    def _watch(self, event: str, found: dict[str, Any]) -> None:
        # httpx keeps its sockets to itself; what it says of its progress is the documented way to them.
        if event == "connection.start_tls.complete":
            self._socket = found["return_value"].get_extra_info("socket")
            if self._late:
                self.break_off()


@contextmanager
def open_client(
    url: str, ca_file: Path, connect_timeout_seconds: int, request_timeout_seconds: int
) -> Iterator[Client]:
    """A client of the server at `url` (https), trusting the CA in `ca_file` alone.

    No proxy or CA from the environment, no redirects. Raises Unavailable `file-unreadable` for the CA file.
    """
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_verify_locations(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise Unavailable(ReasonCode.FILE_UNREADABLE, str(ca_file), type(error).__name__, "a CA in PEM") from error
    timeout = httpx.Timeout(float(request_timeout_seconds), connect=float(connect_timeout_seconds))
    # Answers are small and some quote what the server was sent: compressed ones are not asked for.
    headers = {"accept-encoding": "identity", "user-agent": "nodewarden-attester"}
    limits = httpx.Limits(max_keepalive_connections=1, keepalive_expiry=KEEP_ALIVE_SECONDS)
    with httpx.Client(
        base_url=url, verify=context, timeout=timeout, limits=limits, headers=headers, trust_env=False
    ) as http:
        yield Client(http, EXCHANGE_FACTOR * request_timeout_seconds)


def _cause(error: Exception) -> str:
    """The fault in the words of the layer that saw it: refused, unknown name, or a certificate by another CA."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def refusal_code(refusal: Rejection) -> str | None:
    """The server's own reason code, where `refusal` came from a server."""
    return refusal.failure.observed if refusal.code is ReasonCode.VERIFIER_REFUSED else None


def _of_broker(refusal: Refusal) -> Refusal:
    """`refusal`, in the terms of a verifier, in those of the broker that answered or should have."""
    failure = refusal.failure
    code = next((code for code in ReasonCode if code.value == failure.observed), None)
    if isinstance(refusal, Unavailable):
        if code is None:
            return Unavailable(ReasonCode.BROKER_UNREACHABLE, failure.claim, failure.observed, failure.expected)
        return Unavailable(code, failure.claim)
    if code is None:
        return Rejection(ReasonCode.BROKER_REFUSED, failure.claim, failure.observed)
    return Rejection(code, failure.claim)


def _json(message: Message) -> bytes:
    return canonical_json(message.model_dump(mode="json"))


def _bounded(response: httpx.Response, path: str, deadline: float) -> bytes:
    if response.headers.get("content-encoding", "identity") != "identity":
        # Attack: a small compressed answer that unpacks to gigabytes.
        raise Unavailable(ReasonCode.VERIFIER_UNREACHABLE, path, "compressed answer", "identity encoding")
    chunks: list[bytes] = []
    size = 0
    for chunk in response.iter_raw():
        size += len(chunk)
        if size > MAX_ANSWER_BYTES:
            raise Unavailable(ReasonCode.VERIFIER_UNREACHABLE, path, None, f"at most {MAX_ANSWER_BYTES} bytes")
        if time.monotonic() > deadline:
            # Attack: a server that sends a byte now and then holds us for ever.
            raise Unavailable(ReasonCode.VERIFIER_UNREACHABLE, path, "answer too slow")
        chunks.append(chunk)
    return b"".join(chunks)


def _problem(status: int, body: bytes, path: str) -> Rejection | Unavailable:
    try:
        problem = decode_message(Problem, body, "problem", MAX_ANSWER_BYTES)
    except MalformedEvidence:
        code, claim = f"HTTP {status}", path
    else:
        code, claim = problem.code, f"{path} (request {problem.request_id}): {problem.detail}"
    again = status >= 500 or status in (httpx.codes.TOO_MANY_REQUESTS, httpx.codes.REQUEST_TIMEOUT)
    if again or status < 400:
        return Unavailable(ReasonCode.VERIFIER_UNREACHABLE, claim, code)
    return Rejection(ReasonCode.VERIFIER_REFUSED, claim, code)
