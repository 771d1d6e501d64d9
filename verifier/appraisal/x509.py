"""Paths from a certificate to a pinned root, at a given time, with bounded work.

Source: RFC 5280, section 6, for what TPM makers use of it: no name constraints, no policies. Original bytes are
verified, never re-encoded ones. The budget bounds what a node can make us do with certificates of its own making.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa

from verifier.appraisal.endorsements import ParsedEndorsements
from verifier.appraisal.signatures import load_key
from verifier.evidence.certificate import (
    OID_BASIC_CONSTRAINTS,
    OID_EXTENDED_KEY_USAGE,
    OID_KEY_USAGE,
    OID_SUBJECT_ALTERNATIVE_NAME,
    Certificate,
    RevocationList,
    basic_constraints,
    key_usage,
)
from verifier.evidence.der import INTEGER, OID, SEQUENCE, DerReader, oid_text
from verifier.evidence.tpm import EccPublic, RsaPublic
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence, Rejection

MAX_PATH_CERTIFICATES = 8
"""The longest real path (Intel on-die) has seven."""
MAX_SIGNATURE_CHECKS = 64
MAX_SUPPLIED_CHECKS = 16
"""Of those, by keys that the node itself sent: the longest real path needs five, two of one name double that."""
_MAX_RSA_BITS = 8192
_MAX_RSA_EXPONENT = 2**32 - 1
"""Attack: an exponent as long as the modulus makes one check hundreds of times as dear."""
_MAX_SALT_BYTES = 64
_KEY_CERT_SIGN = 1 << 10
"""keyUsage bit 5 of 16, counted from the highest."""
_UNDERSTOOD_CRITICAL = frozenset(
    {OID_BASIC_CONSTRAINTS, OID_KEY_USAGE, OID_EXTENDED_KEY_USAGE, OID_SUBJECT_ALTERNATIVE_NAME, "2.5.29.32"}
)
"""2.5.29.32 is certificatePolicies, which restrict nothing unless a policy is asked for (RFC 5280, section 6.1.1)."""
_RSA_HASHES: Mapping[str, hashes.HashAlgorithm] = {
    "1.2.840.113549.1.1.11": hashes.SHA256(),
    "1.2.840.113549.1.1.12": hashes.SHA384(),
    "1.2.840.113549.1.1.13": hashes.SHA512(),
}
_ECDSA_HASHES: Mapping[str, hashes.HashAlgorithm] = {
    "1.2.840.10045.4.3.2": hashes.SHA256(),
    "1.2.840.10045.4.3.3": hashes.SHA384(),
    "1.2.840.10045.4.3.4": hashes.SHA512(),
}
_PSS = "1.2.840.113549.1.1.10"
_PSS_HASHES: Mapping[str, hashes.HashAlgorithm] = {
    "2.16.840.1.101.3.4.2.1": hashes.SHA256(),
    "2.16.840.1.101.3.4.2.2": hashes.SHA384(),
    "2.16.840.1.101.3.4.2.3": hashes.SHA512(),
}
"""SHA-1 is in none of these: a collision would make a CA of anybody."""


@dataclass(slots=True)
class _Search:
    """One search: what may issue, when, and how much work is left."""

    endorsements: ParsedEndorsements
    supplied: Sequence[Certificate]
    now: int
    checks_left: int = MAX_SIGNATURE_CHECKS
    supplied_left: int = MAX_SUPPLIED_CHECKS
    expired: Certificate | None = None
    revoked: Certificate | None = None


def build_path(
    leaf: Certificate, supplied: Sequence[Certificate], endorsements: ParsedEndorsements, now: int
) -> tuple[Certificate, ...]:
    """A path from `leaf` to a pinned root, leaf first, whose every signature, time and CA flag holds at `now`.

    `supplied` are intermediates that the node sent: they help to find a path and are trusted for nothing. Raises
    Rejection: `ek-certificate-expired` or `ek-certificate-revoked` if only that kept a path from holding, else
    `ek-chain-untrusted`. CRLs count as far as they are given and signed by the issuer; that they are current is not
    checked, nor anything about the leaf but time, signature and revocation.
    """
    search = _Search(endorsements, supplied, now)
    path = _extend((leaf,), search)
    if path is not None:
        return path
    if search.revoked is not None:
        raise Rejection(
            ReasonCode.EK_CERTIFICATE_REVOKED, "ek.certificate", f"serial {search.revoked.serial:x}", "not revoked"
        )
    if search.expired is not None:
        seen = f"valid from {search.expired.not_before} to {search.expired.not_after}"
        raise Rejection(ReasonCode.EK_CERTIFICATE_EXPIRED, "ek.certificate", seen, f"valid at {now}")
    raise Rejection(ReasonCode.EK_CHAIN_UNTRUSTED, "ek.certificate", "no path to a pinned root", "a path")


def _extend(path: tuple[Certificate, ...], search: _Search) -> tuple[Certificate, ...] | None:
    """The whole path that begins with `path`; depth first, pinned roots first."""
    last = path[-1]
    if len(path) > 1 and last.der in search.endorsements.roots:
        return path
    if len(path) >= MAX_PATH_CERTIFICATES:
        return None
    pinned = (*search.endorsements.roots.values(), *search.endorsements.intermediates)
    for position, issuer in enumerate((*pinned, *search.supplied)):
        if issuer.subject != last.issuer or any(issuer.der == earlier.der for earlier in path):
            continue
        search.checks_left -= 1
        search.supplied_left -= position >= len(pinned)
        if search.checks_left < 0 or search.supplied_left < 0:
            return None
        if not _may_issue(issuer, len(path) - 1) or not _signed_by(last, issuer):
            continue
        whole = _extend((*path, issuer), search)
        if whole is not None and _holds(last, issuer, search):
            return whole
    return None


def _holds(certificate: Certificate, issuer: Certificate, search: _Search) -> bool:
    """Whether times and revocation allow this step; what does not is remembered, for the reason."""
    for checked in (certificate, issuer):
        if not checked.not_before <= search.now <= checked.not_after:
            search.expired = checked
            return False
    for crl in search.endorsements.crls:
        if crl.issuer == issuer.subject and certificate.serial in crl.revoked and _signed_by(crl, issuer):
            search.revoked = certificate
            return False
    return True


def _may_issue(issuer: Certificate, below: int) -> bool:
    """Whether the certificate may sign others, with `below` CA certificates under it."""
    if any(e.critical and oid not in _UNDERSTOOD_CRITICAL for oid, e in issuer.extensions.items()):
        return False
    try:
        constraints = issuer.extensions.get(OID_BASIC_CONSTRAINTS)
        if constraints is not None:
            is_ca, path_length = basic_constraints(constraints.value)
            if not is_ca or (path_length is not None and below > path_length):
                return False
        elif not issuer.is_ca:
            return False
        usage = issuer.extensions.get(OID_KEY_USAGE)
        return usage is None or bool(key_usage(usage.value) & _KEY_CERT_SIGN)
    except MalformedEvidence:
        return False


def _signed_by(signed: Certificate | RevocationList, issuer: Certificate) -> bool:
    """Whether the issuer's key signed it; any algorithm that we do not use is a no."""
    if issuer.key is None or not _affordable(issuer.key):
        return False
    try:
        algorithm = DerReader(signed.signature_algorithm, "signatureAlgorithm")
        name = oid_text(algorithm.next(OID).content)
        # Not remembered: a stranger's certificates would fill the memory of keys.
        key = load_key.__wrapped__(issuer.key)
        if isinstance(key, ec.EllipticCurvePublicKey):
            key.verify(signed.signature, signed.tbs, ec.ECDSA(_ECDSA_HASHES[name]))
        else:
            _verify_rsa(key, signed, name, algorithm)
    except (InvalidSignature, UnsupportedAlgorithm, KeyError, ValueError, MalformedEvidence):
        return False
    return True


def _affordable(key: RsaPublic | EccPublic) -> bool:
    return not isinstance(key, RsaPublic) or (key.bits <= _MAX_RSA_BITS and key.exponent <= _MAX_RSA_EXPONENT)


def _verify_rsa(key: rsa.RSAPublicKey, signed: Certificate | RevocationList, name: str, parameters: DerReader) -> None:
    if name != _PSS:
        key.verify(signed.signature, signed.tbs, padding.PKCS1v15(), _RSA_HASHES[name])
        return
    # RSASSA-PSS-params: [0] hash, [1] mask generation, [2] salt length; the defaults are SHA-1, so all must be there.
    fields = parameters.inside()
    algorithm = _PSS_HASHES[oid_text(_explicit(fields, 0xA0).inside().next(OID).content)]
    mask = _explicit(fields, 0xA1).inside()
    mask.next(OID)
    mask_hash = _PSS_HASHES[oid_text(DerReader(mask.next(SEQUENCE).content, "mgf").next(OID).content)]
    salt = int.from_bytes(_explicit(fields, 0xA2).next(INTEGER).content, "big")
    if salt > _MAX_SALT_BYTES:
        # The library would take it for a C integer, and fail otherwise than by refusing.
        raise MalformedEvidence(ReasonCode.CERTIFICATE_MALFORMED, "signatureAlgorithm", "salt length")
    key.verify(signed.signature, signed.tbs, padding.PSS(padding.MGF1(mask_hash), salt), algorithm)


def _explicit(fields: DerReader, tag: int) -> DerReader:
    return DerReader(fields.next(tag).content, "signatureAlgorithm")
