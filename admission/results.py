"""Attestation results as a relying party takes them: verified here, from the JWT up.

`ResultVerifier.verify` holds, in this order: size; ES256 by a known key of the verifier; issuer and audience; form; and
that no older result is taken for a node after a newer one. Expiry is a question of the moment: `admission.node_check`.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jwt

from admission.key_sets import KeySet
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence, Rejection
from verifier.wire.result import RESULT_TYPE, AttestationResult, result_from_claims

MAX_RESULT_CHARACTERS = 64 * 1024
ALGORITHMS = frozenset({"ES256"})
_FORBIDDEN_HEADERS = frozenset({"jwk", "jku", "x5u", "x5c", "crit", "b64"})
"""Attack: a token that brings the key by which it wants to be checked."""


class SequenceMemory(Protocol):
    """Which result of each node is the newest seen."""

    def highest(self, node: str) -> tuple[int, str] | None:
        """The sequence and token digest last remembered under `node`."""
        ...

    def remember(self, nodes: tuple[str, ...], sequence: int, digest: str) -> None: ...


class InMemorySequences:
    """A memory for one process's life."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, str]] = {}

    def highest(self, node: str) -> tuple[int, str] | None:
        return self._seen.get(node)

    def remember(self, nodes: tuple[str, ...], sequence: int, digest: str) -> None:
        for node in nodes:
            self._seen[node] = (sequence, digest)


class ResultVerifier:
    """Verifies results of one verifier for one cluster. `keys` is asked each time, so that rotation is seen."""

    def __init__(self, keys: Callable[[], KeySet], issuer: str, audience: str, sequences: SequenceMemory) -> None:
        self._keys, self._issuer, self._audience, self._sequences = keys, issuer, audience, sequences
        self._lock = threading.Lock()

    def key_ids(self) -> tuple[tuple[str, str], ...]:
        """Which keys count now, by id and thumbprint: when they change, what was refused may be good, or the reverse.

        Attack, or its cure: a key that was withdrawn or replaced under its old id vouches for nothing any more.
        """
        return self._keys().thumbprints

    def verify(self, token: str) -> AttestationResult:
        """The result in `token`, remembered as the newest of its node.

        Raises MalformedEvidence `result-malformed`; Rejection `result-signature-invalid`, `result-audience-wrong`,
        `result-rolled-back`. Does not check expiry, age, node object or verdict.
        """
        result = result_from_claims(self._claims(token))
        digest = hashlib.sha256(token.encode()).hexdigest()
        # By TPM and by name: after a TPM was replaced, the old one's results are older results of the same node.
        keys = (f"id/{result.node_id}", f"name/{result.node_name}")
        with self._lock:
            for key in keys:
                newest = self._sequences.highest(key)
                # The same number under two contents is a rollback too: which of them is the newer cannot be told.
                if newest is not None and (result.sequence, digest) != newest and result.sequence <= newest[0]:
                    raise Rejection(
                        ReasonCode.RESULT_ROLLED_BACK,
                        f"nodes.{result.node_name}.seq",
                        str(result.sequence),
                        f"above {newest[0]}",
                    )
            self._sequences.remember(keys, result.sequence, digest)
        return result

    def _claims(self, token: str) -> Mapping[str, Any]:
        if len(token) > MAX_RESULT_CHARACTERS or not token.isascii():
            raise MalformedEvidence(ReasonCode.RESULT_MALFORMED, "result", f"{len(token)} characters")
        try:
            header = jwt.get_unverified_header(token)
        except (jwt.PyJWTError, ValueError, RecursionError, TypeError) as error:
            raise MalformedEvidence(ReasonCode.RESULT_MALFORMED, "result.header", type(error).__name__) from error
        if header.get("typ") != RESULT_TYPE:
            raise MalformedEvidence(ReasonCode.RESULT_MALFORMED, "result.typ", str(header.get("typ")), RESULT_TYPE)
        key_id, algorithm = header.get("kid"), header.get("alg")
        if not isinstance(key_id, str) or not isinstance(algorithm, str):
            seen = f"alg {type(algorithm).__name__}, kid {type(key_id).__name__}"
            raise MalformedEvidence(ReasonCode.RESULT_MALFORMED, "result.header", seen, "text")
        key = self._keys().keys.get(key_id)
        if key is None or algorithm not in ALGORITHMS or _FORBIDDEN_HEADERS & header.keys():
            seen = f"alg {algorithm}, kid {key_id}"
            raise Rejection(ReasonCode.RESULT_SIGNATURE_INVALID, "result.header", seen, "ES256 by a known key")
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=sorted(ALGORITHMS),
                audience=self._audience,
                issuer=self._issuer,
                options={
                    "require": ["iss", "aud", "exp", "iat"],
                    "verify_exp": False,
                    "verify_iat": False,
                    "verify_nbf": False,
                    "strict_aud": True,
                },
            )
        except jwt.InvalidAudienceError as error:
            wanted = f"aud {self._audience}"
            raise Rejection(ReasonCode.RESULT_AUDIENCE_WRONG, "result", type(error).__name__, wanted) from error
        except (jwt.InvalidSignatureError, jwt.InvalidAlgorithmError, jwt.InvalidIssuerError) as error:
            wanted = f"iss {self._issuer}"
            raise Rejection(ReasonCode.RESULT_SIGNATURE_INVALID, "result", type(error).__name__, wanted) from error
        except (jwt.PyJWTError, ValueError, RecursionError, TypeError) as error:
            # The library raises what its parts raise on input that it did not foresee: such input is malformed.
            raise MalformedEvidence(ReasonCode.RESULT_MALFORMED, "result", type(error).__name__) from error
        return claims
