"""Failures as AR4SI trustworthiness vectors (draft-ietf-rats-ar4si), in two submodules: `tpm` and `boot`.

Every failure makes its submodule contraindicated: a relying party that reads vectors only must come to the same end as
one that reads the verdict. So an unlisted image is executables 96 (contraindicated) and not 33 (unrecognised), which
would be a warning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from verifier.appraisal.context import EkEndorsement
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure
from verifier.wire.result import Submodule, Verdict

INSTANCE_RECOGNISED = 2
HARDWARE_GENUINE = 2
EXECUTABLES_APPROVED_AT_BOOT = 3
"""Approved when the machine booted; 2 would say after that too, which needs IMA."""
CONFIGURATION_APPROVED = 2
NO_CLAIM = 0
CONTRAINDICATED = 96
UNRECOGNISED = 97
CRYPTOGRAPHIC_FAILURE = 99


@dataclass(frozen=True, slots=True)
class _Effect:
    part: Literal["tpm", "boot"]
    claim: str
    value: int


_EFFECTS: Mapping[ReasonCode, _Effect] = {
    ReasonCode.COUNTER_REGRESSED: _Effect("tpm", "instance-identity", CONTRAINDICATED),
    ReasonCode.BINDING_KEY_SIGNATURE_INVALID: _Effect("tpm", "instance-identity", CRYPTOGRAPHIC_FAILURE),
    ReasonCode.BINDING_KEY_UNSUITABLE: _Effect("tpm", "instance-identity", CONTRAINDICATED),
    ReasonCode.BINDING_KEY_NOT_NULL_PRIMARY: _Effect("tpm", "instance-identity", CONTRAINDICATED),
    ReasonCode.BINDING_KEY_POLICY_MISMATCH: _Effect("tpm", "instance-identity", CONTRAINDICATED),
    ReasonCode.BINDING_KEY_CERTIFY_MISMATCH: _Effect("tpm", "instance-identity", CONTRAINDICATED),
    ReasonCode.BINDING_KEY_COUNTERS_MISMATCH: _Effect("tpm", "instance-identity", CONTRAINDICATED),
    ReasonCode.TPM_UNENDORSED: _Effect("tpm", "hardware", UNRECOGNISED),
    ReasonCode.TPM_MANUFACTURER_NOT_ALLOWED: _Effect("tpm", "hardware", UNRECOGNISED),
    ReasonCode.PCR_REPLAY_MISMATCH: _Effect("boot", "executables", CRYPTOGRAPHIC_FAILURE),
    ReasonCode.PCR_WITHOUT_EVENTS: _Effect("boot", "executables", CRYPTOGRAPHIC_FAILURE),
    ReasonCode.EVENT_DIGEST_MISMATCH: _Effect("boot", "executables", CRYPTOGRAPHIC_FAILURE),
    ReasonCode.EVENT_TYPE_FORGED: _Effect("boot", "executables", CRYPTOGRAPHIC_FAILURE),
    ReasonCode.SECURE_BOOT_OFF: _Effect("boot", "configuration", CONTRAINDICATED),
    ReasonCode.SECURE_BOOT_UNKNOWN: _Effect("boot", "configuration", CONTRAINDICATED),
    ReasonCode.SECURE_BOOT_SETUP_MODE: _Effect("boot", "configuration", CONTRAINDICATED),
    ReasonCode.SECURE_BOOT_DBX_OUTDATED: _Effect("boot", "configuration", CONTRAINDICATED),
    ReasonCode.SECURE_BOOT_SHIM_VALIDATION_OFF: _Effect("boot", "configuration", CONTRAINDICATED),
    ReasonCode.MOK_NOT_ALLOWED: _Effect("boot", "configuration", CONTRAINDICATED),
    ReasonCode.SECURE_BOOT_LOG_INCONSISTENT: _Effect("boot", "configuration", CONTRAINDICATED),
    ReasonCode.CMDLINE_UNKNOWN: _Effect("boot", "configuration", CONTRAINDICATED),
    ReasonCode.CMDLINE_ARGUMENT_MISSING: _Effect("boot", "configuration", CONTRAINDICATED),
    ReasonCode.CMDLINE_ARGUMENT_FORBIDDEN: _Effect("boot", "configuration", CONTRAINDICATED),
    ReasonCode.CMDLINE_ARGUMENT_NOT_ALLOWED: _Effect("boot", "configuration", CONTRAINDICATED),
}
_OTHERWISE = _Effect("boot", "executables", CONTRAINDICATED)
"""What is not listed (images, firmware, a missing or broken log, an unusable baseline) leaves unapproved what runs."""


def submodules_of(
    failures: tuple[Failure, ...], endorsement: EkEndorsement, *, judged: bool
) -> Mapping[str, Submodule]:
    """The submodules `tpm` and `boot` for evidence with `failures`; `judged` is False where no baseline applied.

    Without failures: instance-identity 2, hardware 2 with a verified EK chain (else no claim), executables 3,
    configuration 2. Unjudged evidence makes no claim on the boot, and its verdict is `none`.
    """
    if not failures:
        return _AFFIRMED[endorsement.chain]
    vectors = {name: dict(part.vector) for name, part in _AFFIRMED[endorsement.chain].items()}
    if not judged:
        unclaimed = dict.fromkeys(vectors["boot"], NO_CLAIM)
        return {
            "tpm": Submodule(Verdict.AFFIRMING, vectors["tpm"]),
            "boot": Submodule(Verdict.NONE, unclaimed),
        }
    fallen: set[str] = set()
    for failure in failures:
        effect = _EFFECTS.get(failure.code, _OTHERWISE)
        vector = vectors[effect.part]
        vector[effect.claim] = max(vector[effect.claim], effect.value)
        fallen.add(effect.part)
    return {
        name: Submodule(Verdict.CONTRAINDICATED if name in fallen else Verdict.AFFIRMING, vector)
        for name, vector in vectors.items()
    }


def _affirmed(hardware: int) -> Mapping[str, Submodule]:
    tpm = {"instance-identity": INSTANCE_RECOGNISED, "hardware": hardware}
    boot = {"executables": EXECUTABLES_APPROVED_AT_BOOT, "configuration": CONFIGURATION_APPROVED}
    return {"tpm": Submodule(Verdict.AFFIRMING, tpm), "boot": Submodule(Verdict.AFFIRMING, boot)}


_AFFIRMED: Mapping[str, Mapping[str, Submodule]] = {
    "verified": _affirmed(HARDWARE_GENUINE),
    "none": _affirmed(NO_CLAIM),
}
