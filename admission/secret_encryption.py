"""Encryption of a secret to a node's binding key: a flattened JWE that only its TPM, in its boot, can open.

RFC 7516 and RFC 7518, section 4.6: ECDH-ES+A256KW with P-256, A256GCM. The private half of the key is in a TPM's null
hierarchy and dies with the boot (`verifier.wire.result`, `cnf`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from jwcrypto import jwe, jwk

from verifier.wire.codes import ReasonCode
from verifier.wire.encoding import decode_base64url
from verifier.wire.failures import MalformedEvidence

ALGORITHM = "ECDH-ES+A256KW"
ENCRYPTION = "A256GCM"
_FIELDS = frozenset({"kty", "crv", "x", "y"})


class BindingKey:
    """A public P-256 key of a verified result, and its RFC 7638 thumbprint as `sha256` (hex)."""

    def __init__(self, key: Mapping[str, str]) -> None:
        """Raises MalformedEvidence `result-malformed` for any other kind of key, or a point off the curve."""
        wanted = {name: key.get(name) for name in _FIELDS}
        if wanted["kty"] != "EC" or wanted["crv"] != "P-256" or "d" in key:
            raise MalformedEvidence(ReasonCode.RESULT_MALFORMED, "cnf.jwk", str(key.get("crv")), "a public P-256 key")
        x, y = (decode_base64url(str(wanted[name]), f"cnf.jwk.{name}", 32) for name in ("x", "y"))
        try:
            # Attack: a point on another curve would give the shared secret away bit by bit.
            ec.EllipticCurvePublicNumbers(int.from_bytes(x), int.from_bytes(y), ec.SECP256R1()).public_key()
        except ValueError as error:
            raise MalformedEvidence(ReasonCode.RESULT_MALFORMED, "cnf.jwk", "not a point of P-256") from error
        self._key = jwk.JWK(**wanted)
        self.sha256 = decode_base64url(self._key.thumbprint(), "cnf.jwk", 32).hex()

    def encrypt(self, secret: bytes) -> dict[str, Any]:
        """`secret` as a flattened JSON JWE to this key, under a fresh ephemeral key each time."""
        token = jwe.JWE(secret, json.dumps({"alg": ALGORITHM, "enc": ENCRYPTION}, sort_keys=True))
        token.add_recipient(self._key)
        sealed: dict[str, Any] = json.loads(token.serialize(compact=False))
        return sealed
