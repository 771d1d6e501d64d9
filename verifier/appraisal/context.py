"""What the verifier knows apart from the evidence: the arguments that keep the appraisal core pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from verifier.evidence.tpm import PublicArea
from verifier.wire.bundle import NodeId, Nonce


@dataclass(frozen=True, slots=True)
class EkEndorsement:
    """What a manufacturer's certificate said of the TPM when the node enrolled, after its chain was verified.

    `chain` is `verified`, or `none` where the node was admitted by the public key alone. TCG EK Credential Profile,
    section 3.2.9: manufacturer is eight hex digits (`id:494E5443` is written `INTC`), model and version are text.
    """

    chain: Literal["verified", "none"]
    manufacturer: str | None
    model: str | None
    version: str | None


@dataclass(frozen=True, slots=True)
class EnrolledNode:
    """One enrolled TPM. The AK is taken from here, never from a bundle."""

    node_id: NodeId
    node_name: str
    tenant: str
    cohort: str
    ek: PublicArea
    ak: PublicArea
    endorsement: EkEndorsement


@dataclass(frozen=True, slots=True)
class IssuedChallenge:
    """A challenge as the verifier issued it. Times are seconds since 1970.

    `form` is `bound` for every challenge that the service issues. `bare-nonce` describes recordings whose quotes
    answer the nonce itself; only recorded evidence is ever judged under it, and its results are never signed.
    """

    nonce: Nonce
    node_id: NodeId
    pcr_bank: str
    pcrs: tuple[int, ...]
    node_token: bool
    issued_at: int
    expires_at: int
    form: Literal["bound", "bare-nonce"] = "bound"


@dataclass(frozen=True, slots=True)
class LastSeen:
    """Counters and clock of the last quote of this AK that was accepted; clock in milliseconds of the TPM."""

    reset_count: int
    restart_count: int
    clock_ms: int
