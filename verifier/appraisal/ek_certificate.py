"""Whether a TPM maker vouches for an EK: its certificate is of this key and purpose, and leads to a pinned root."""

from __future__ import annotations

from dataclasses import dataclass

from verifier.appraisal.context import EkEndorsement
from verifier.appraisal.endorsements import Endorsements, parse_endorsements
from verifier.appraisal.x509 import build_path
from verifier.evidence.certificate import (
    OID_BASIC_CONSTRAINTS,
    OID_EXTENDED_KEY_USAGE,
    OID_KEY_USAGE,
    OID_SUBJECT_ALTERNATIVE_NAME,
    Certificate,
    basic_constraints,
    directory_names,
    extended_key_usage,
    key_usage,
    parse_certificate,
)
from verifier.evidence.tpm import PublicArea, RsaPublic
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Rejection

MAX_CERTIFICATES = 8
EKU_EK_CERTIFICATE = "2.23.133.8.1"
"""tcg-kp-EKCertificate."""
_KEY_ENCIPHERMENT = 1 << 13
_KEY_AGREEMENT = 1 << 11
_TPM_SPECIFICATION = "2.5.29.9"
"""subjectDirectoryAttributes, which some makers mark critical; it restricts nothing."""
_UNDERSTOOD_CRITICAL = frozenset(
    {
        OID_BASIC_CONSTRAINTS,
        OID_KEY_USAGE,
        OID_EXTENDED_KEY_USAGE,
        OID_SUBJECT_ALTERNATIVE_NAME,
        _TPM_SPECIFICATION,
        "2.5.29.32",
    }
)
_MANUFACTURER, _MODEL, _VERSION = "2.23.133.2.1", "2.23.133.2.2", "2.23.133.2.3"


@dataclass(frozen=True, slots=True)
class TpmIdentity:
    """Manufacturer, model and version of the TPM as its certificate says; None where it does not (newer cloud TPMs)."""

    manufacturer: str | None
    model: str | None
    version: str | None


def verify_ek_certificate(
    ek: PublicArea, certificates: tuple[bytes, ...], endorsements: Endorsements, now: int
) -> EkEndorsement:
    """What the maker says of the TPM that holds `ek`, by a certificate that leads to a pinned root at `now`.

    `certificates` are DER as read from the TPM, leaf first, then intermediates; NV prefix and padding are allowed.
    Raises MalformedEvidence `certificate-malformed`; Rejection `ek-certificate-missing`, `ek-certificate-key-mismatch`,
    `ek-certificate-unsuitable`, `ek-certificate-expired`, `ek-certificate-revoked`, `ek-chain-untrusted`. Does not
    check that the key is in a TPM: credential activation does.
    """
    if not certificates or len(certificates) > MAX_CERTIFICATES:
        seen = f"{len(certificates)} certificates"
        raise Rejection(ReasonCode.EK_CERTIFICATE_MISSING, "ek.certificates", seen, f"1 to {MAX_CERTIFICATES}")
    leaf, *supplied = (parse_certificate(der) for der in certificates)
    if leaf.key is None or leaf.key != ek.key:
        raise Rejection(ReasonCode.EK_CERTIFICATE_KEY_MISMATCH, "ek.certificate", "another key", "the EK's own key")
    check_suitable(leaf)
    identity = tpm_identity(leaf)
    build_path(leaf, supplied, parse_endorsements(endorsements), now)
    return EkEndorsement("verified", identity.manufacturer, identity.model, identity.version)


def check_suitable(leaf: Certificate) -> None:
    """Returns if `leaf` may stand for an endorsement key (TCG EK Credential Profile 2.5, section 3.2).

    Not a CA; EKU, where present, names EK certificates; key usage, where present, is for encryption and never for
    signing certificates; nothing critical that we do not understand. Newer Google certificates have no EKU and no SAN.
    Raises Rejection `ek-certificate-unsuitable`, MalformedEvidence `certificate-malformed`.
    """
    unknown = sorted(o for o, e in leaf.extensions.items() if e.critical and o not in _UNDERSTOOD_CRITICAL)
    if unknown:
        raise _unsuitable(f"critical extension {unknown[0]}", "none that is unknown")
    constraints = leaf.extensions.get(OID_BASIC_CONSTRAINTS)
    if leaf.is_ca or (constraints is not None and basic_constraints(constraints.value)[0]):
        raise _unsuitable("a CA certificate", "an EK's")
    purposes = leaf.extensions.get(OID_EXTENDED_KEY_USAGE)
    if purposes is not None and EKU_EK_CERTIFICATE not in extended_key_usage(purposes.value):
        raise _unsuitable("extended key usage of another purpose", EKU_EK_CERTIFICATE)
    usage = leaf.extensions.get(OID_KEY_USAGE)
    if usage is not None:
        wanted = _KEY_ENCIPHERMENT if isinstance(leaf.key, RsaPublic) else _KEY_AGREEMENT
        if not key_usage(usage.value) & wanted:
            # A signing key's certificate (Google issues both kinds from one CA) vouches for no endorsement key.
            raise _unsuitable("key usage without encryption", "keyEncipherment or keyAgreement")


def tpm_identity(certificate: Certificate) -> TpmIdentity:
    """The TPM that the certificate's subjectAltName names (section 3.2.9); nothing of it is verified.

    Manufacturer is four ASCII characters where its id spells them (`id:494E5443` is `INTC`), else the id's hex digits.
    """
    extension = certificate.extensions.get(OID_SUBJECT_ALTERNATIVE_NAME)
    names = {} if extension is None else dict(directory_names(extension.value))
    return TpmIdentity(_vendor(names.get(_MANUFACTURER)), names.get(_MODEL), names.get(_VERSION))


def _vendor(text: str | None) -> str | None:
    if text is None:
        return None
    digits = text.removeprefix("id:")
    try:
        name = bytes.fromhex(digits).rstrip(b"\0 ")
    except ValueError:
        return text
    return name.decode("ascii") if name.isalnum() and len(digits) == 8 else digits.upper()


def _unsuitable(observed: str, expected: str) -> Rejection:
    return Rejection(ReasonCode.EK_CERTIFICATE_UNSUITABLE, "ek.certificate", observed, expected)
