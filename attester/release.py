"""Asking the broker for a pod's secrets, and opening them in the TPM."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from attester.binding_key import agree, kept_boot_key
from attester.client import Client
from attester.collectors.securityfs import read_to_end
from attester.jwe import open_jwe
from attester.keys import AttestationKey, sign_request
from attester.rounds import Clock, Node, using_tpm
from attester.state import Enrolment
from attester.tpm import Tpm, tpm_errors
from verifier.wire.bundle import MAX_TOKEN_BYTES
from verifier.wire.codes import ReasonCode
from verifier.wire.encoding import canonical_json
from verifier.wire.failures import MalformedEvidence, Rejection, Unavailable
from verifier.wire.messages import text_of
from verifier.wire.release import ReleaseEnvelope, ReleaseRequest, ReleaseResponse, SecretName
from verifier.wire.signed_request import RequestLabel

MAX_NAMES = 32
"""As many as one `ReleaseRequest` may name."""
_NAME: TypeAdapter[str] = TypeAdapter(SecretName)


@dataclass(frozen=True, slots=True)
class OpenedSecret:
    """A secret in clear. `path` is the broker's word for a file name and must be checked before it names a file."""

    name: str
    claimed_path: str
    content: bytes
    lease_id: str
    expires_at: int

    def __repr__(self) -> str:
        return f"OpenedSecret(name={self.name!r})"


def require_names(names: tuple[str, ...], where: str = "NAME") -> None:
    """`names` may be asked for in one request. Raises MalformedEvidence `setting-invalid`."""
    if not 0 < len(names) <= MAX_NAMES or len(set(names)) != len(names):
        seen = f"{len(names)} names, {len(set(names))} of them different"
        raise MalformedEvidence(ReasonCode.SETTING_INVALID, where, seen, f"1 to {MAX_NAMES} different names")
    for name in names:
        try:
            _NAME.validate_python(name)
        except ValidationError as error:
            wanted = "letters, digits, '.', '_', '-' and '/'"
            raise MalformedEvidence(ReasonCode.SETTING_INVALID, where, name, wanted) from error


def read_pod_token(path: Path) -> bytes:
    """The pod's token in the file `path`. Raises Unavailable `file-unreadable`, Rejection `token-invalid`."""
    try:
        token = read_to_end(path, MAX_TOKEN_BYTES).strip()
    except Unavailable as error:
        raise Unavailable(ReasonCode.FILE_UNREADABLE, str(path), error.failure.observed) from error
    return require_pod_token(token, str(path))


def require_pod_token(token: bytes, where: str) -> bytes:
    """`token`, of a form that a token may have. Raises Rejection `token-invalid`. Does not check whose it is."""
    if not token or len(token) > MAX_TOKEN_BYTES or not token.isascii():
        raise Rejection(ReasonCode.TOKEN_INVALID, where, "empty, too long or not ASCII", "the pod's projected token")
    return token


def request_secrets(
    tpm: Tpm, ak: AttestationKey, node: Enrolment, pod_token: bytes, names: tuple[str, ...], now: int
) -> ReleaseEnvelope:
    """The pod's token with a request for `names` that this node's AK signed at `now` (seconds since 1970).

    Raises as `require_names` and the TPM's parts do.
    """
    require_names(names)
    request = ReleaseRequest(
        jti=secrets.token_urlsafe(24),
        iat=now,
        node_id=node.node_id,
        token_sha256=hashlib.sha256(pod_token).hexdigest(),
        secrets=list(names),
    )
    body = canonical_json(request.model_dump(mode="json"))
    with tpm_errors("attestation key"), ak.loaded(tpm) as handle:
        signed = sign_request(tpm, handle, RequestLabel.SECRET_RELEASE, body)
    return ReleaseEnvelope(
        token=pod_token.decode("ascii"), body=text_of(signed.claimed_body), signature=text_of(signed.signature)
    )


def open_secrets(
    tpm: Tpm, ak: AttestationKey, released: ReleaseResponse, names: tuple[str, ...], runtime_directory: Path
) -> tuple[OpenedSecret, ...]:
    """Every secret of `released`, opened in the TPM: all that were asked for and no other.

    Raises Rejection `secret-does-not-open`, MalformedEvidence `jwe-malformed`, Unavailable `broker-unreachable` (the
    answer holds other secrets than those asked for).
    """
    if sorted(secret.name for secret in released.secrets) != sorted(names):
        raise Unavailable(ReasonCode.BROKER_UNREACHABLE, "answer to /v1/secrets/release", "other secrets than asked")
    key = kept_boot_key(tpm, ak, runtime_directory)
    agreement = partial(agree, tpm, key)
    return tuple(
        OpenedSecret(secret.name, secret.path, open_jwe(secret.jwe, agreement), secret.lease_id, secret.expires_at)
        for secret in released.secrets
    )


def fetch_secrets(
    node: Node,
    broker: Client,
    pod_token: bytes,
    names: tuple[str, ...],
    clock: Clock,
    *,
    lock_seconds: float | None = None,
) -> tuple[OpenedSecret, ...]:
    """The secrets `names` for the pod whose token is `pod_token`, opened.

    The TPM is not held while the broker works; it is waited for twice, each time at most `lock_seconds`. Raises as the
    two halves and the client do.
    """
    with using_tpm(node.settings, lock_seconds) as tpm:
        envelope = request_secrets(tpm, node.ak, node.enrolment, pod_token, names, clock())
    released = broker.release(envelope)
    with using_tpm(node.settings, lock_seconds) as tpm:
        return open_secrets(tpm, node.ak, released, names, node.settings.runtime_dir)
