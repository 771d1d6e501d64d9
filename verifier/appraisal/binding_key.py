"""The binding key: proof that secrets encrypted to it open only in this TPM, and only in this boot.

It is a primary of the null hierarchy whose policy names this boot's counters ("template B"). The null seed alone does
not do: it survives a TPM Restart, and any process re-derives a key from a known template whatever its authorisation.
The policy ends the key with the boot, and the secret `unique` keeps others from deriving it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from verifier.appraisal.authenticate import AuthenticBundle
from verifier.appraisal.identity import HANDLE_NULL, qualified_name_of_primary
from verifier.appraisal.signatures import load_key, verify_signature
from verifier.evidence.attest import CertifyAttest, ClockInfo
from verifier.evidence.parse import ParsedBindingKey
from verifier.evidence.tpm import EccPublic, PublicArea
from verifier.wire.binding import binding_key_qualifying_data
from verifier.wire.codes import ReasonCode
from verifier.wire.encoding import encode_base64url
from verifier.wire.failures import MalformedEvidence, Rejection

BINDING_KEY_ATTRIBUTES = 0x00020432
"""fixedTPM, fixedParent, sensitiveDataOrigin, noDA, decrypt; userWithAuth, adminWithPolicy and restricted clear, so
that nothing but the policy authorises its use."""
_POLICY_COUNTER_TIMER = 0x0000016D
"""TPM_CC_PolicyCounterTimer (Part 2, section 6.5.2)."""
_OFFSET_COUNTERS = 16
"""resetCount and restartCount follow u64 time and u64 clock in TPMS_TIME_INFO (Part 2, 10.11.6)."""
_EO_EQ = 0x0000
_COORDINATE_BYTES = 32


@dataclass(frozen=True, slots=True)
class VerifiedBindingKey:
    """A binding key that was checked for one node and one boot; `jwk` is its public part (RFC 7517, P-256).

    It may be kept and given to `verify` again: it counts only for the same node, AK, counters and bytes.
    """

    node_id: str
    ak_name: bytes
    reset_count: int
    restart_count: int
    parsed: ParsedBindingKey
    jwk: Mapping[str, str]


def verify_binding_key(authentic: AuthenticBundle, known: VerifiedBindingKey | None) -> VerifiedBindingKey | None:
    """The bundle's binding key, checked; None where the challenge's form is `bare-nonce` and there is none.

    `known` saves the work when it was made of the same bytes, for the same node, AK and boot. Raises Rejection:
     1. the AK signed the certification: `binding-key-signature-invalid`
     2. it is of this key, for this node, by the AK under the EK: `binding-key-certify-mismatch`
     3. it was made in the boot that the quote shows: `binding-key-counters-mismatch`
     4. the key's exact form: `binding-key-unsuitable`
     5. it is a primary of the null hierarchy: `binding-key-not-null-primary`
     6. its policy is on this boot's counters: `binding-key-policy-mismatch`
    """
    parsed = authentic.parsed.binding_key
    if parsed is None:
        if authentic.challenge.form == "bare-nonce":
            return None
        raise MalformedEvidence(ReasonCode.ITEM_MISSING, "binding-key[0]", "absent", "one item")
    clock = authentic.quote.clock
    if known is not None and _is_same(known, authentic, parsed):
        return known
    _check_signature(authentic, parsed)  # 1
    _check_certify(authentic, parsed.public, parsed.certify)  # 2
    _check_counters(parsed.certify.clock, clock)  # 3
    jwk = _check_form(parsed.public)  # 4
    expected = qualified_name_of_primary(HANDLE_NULL, parsed.public)
    if parsed.certify.qualified_name != expected:  # 5
        seen = parsed.certify.qualified_name.hex()
        raise Rejection(ReasonCode.BINDING_KEY_NOT_NULL_PRIMARY, "binding_key.qualified_name", seen, expected.hex())
    policy = boot_policy(clock.reset_count, clock.restart_count)
    if parsed.public.auth_policy != policy:  # 6
        seen = parsed.public.auth_policy.hex()
        raise Rejection(ReasonCode.BINDING_KEY_POLICY_MISMATCH, "binding_key.policy", seen, policy.hex())
    return VerifiedBindingKey(
        authentic.node.node_id, authentic.names.ak_name, clock.reset_count, clock.restart_count, parsed, jwk
    )


def boot_policy(reset_count: int, restart_count: int) -> bytes:
    """The policy digest (32 bytes) of PolicyCounterTimer(counters == these), alone, from a fresh session.

    Source: TPM 2.0 Library, Part 3, 23.14: SHA-256(0^32 || TPM_CC || SHA-256(operand || u16 offset || u16 operation)).
    """
    operand = reset_count.to_bytes(4, "big") + restart_count.to_bytes(4, "big")
    arguments = operand + _OFFSET_COUNTERS.to_bytes(2, "big") + _EO_EQ.to_bytes(2, "big")
    command = _POLICY_COUNTER_TIMER.to_bytes(4, "big")
    return hashlib.sha256(bytes(32) + command + hashlib.sha256(arguments).digest()).digest()


def _is_same(known: VerifiedBindingKey, authentic: AuthenticBundle, parsed: ParsedBindingKey) -> bool:
    clock = authentic.quote.clock
    return (
        known.node_id == authentic.node.node_id
        and known.ak_name == authentic.names.ak_name
        and known.reset_count == clock.reset_count
        and known.restart_count == clock.restart_count
        and known.parsed.public.raw == parsed.public.raw
        and known.parsed.certify.raw == parsed.certify.raw
        and known.parsed.signature == parsed.signature
    )


def _check_signature(authentic: AuthenticBundle, parsed: ParsedBindingKey) -> None:
    ak = authentic.node.ak
    if parsed.signature.scheme != ak.scheme:
        seen = str(parsed.signature.scheme)
        raise Rejection(ReasonCode.BINDING_KEY_SIGNATURE_INVALID, "binding_key.signature", seen, str(ak.scheme))
    verify_signature(
        ak, parsed.certify.raw, parsed.signature, ReasonCode.BINDING_KEY_SIGNATURE_INVALID, "binding_key.signature"
    )


def _check_certify(authentic: AuthenticBundle, public: PublicArea, certify: CertifyAttest) -> None:
    qualifying = binding_key_qualifying_data(authentic.node.node_id)
    for claim, seen, expected in (
        ("binding_key.certify.name", certify.name, public.name),
        ("binding_key.certify.extra_data", certify.extra_data, qualifying),
        ("binding_key.certify.qualified_signer", certify.qualified_signer, authentic.names.ak_qualified_name),
    ):
        if seen != expected:
            raise Rejection(ReasonCode.BINDING_KEY_CERTIFY_MISMATCH, claim, seen.hex(), expected.hex())


def _check_counters(certified: ClockInfo, quoted: ClockInfo) -> None:
    seen = (certified.reset_count, certified.restart_count)
    expected = (quoted.reset_count, quoted.restart_count)
    if seen != expected:
        raise Rejection(ReasonCode.BINDING_KEY_COUNTERS_MISMATCH, "binding_key.certify.clock", str(seen), str(expected))


def _check_form(public: PublicArea) -> Mapping[str, str]:
    """The key's JWK, if it has the template's exact form and its point is on the curve."""
    key = public.key
    if public.attributes != BINDING_KEY_ATTRIBUTES:
        seen = f"{public.attributes:#010x}"
        raise Rejection(
            ReasonCode.BINDING_KEY_UNSUITABLE, "binding_key.attributes", seen, f"{BINDING_KEY_ATTRIBUTES:#010x}"
        )
    if not isinstance(key, EccPublic) or key.curve != "P-256" or public.name_alg != "sha256":
        raise Rejection(ReasonCode.BINDING_KEY_UNSUITABLE, "binding_key.type", public.algorithm, "P-256 with SHA-256")
    if public.symmetric is not None or public.scheme is not None or public.kdf is not None:
        raise Rejection(ReasonCode.BINDING_KEY_UNSUITABLE, "binding_key.parameters", "set", "null")
    try:
        load_key(key)
    except ValueError as error:
        raise Rejection(
            ReasonCode.BINDING_KEY_UNSUITABLE, "binding_key.point", "off the curve", "a point of P-256"
        ) from error
    x, y = (encode_base64url(value.to_bytes(_COORDINATE_BYTES, "big")) for value in (key.x, key.y))
    return {"kty": "EC", "crv": "P-256", "x": x, "y": y}
