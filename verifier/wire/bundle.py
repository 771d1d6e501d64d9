"""The evidence bundle: what an attester sends for one challenge, decoded but not believed.

Shape (JSON): `{"version": 1, "node_id": hex, "nonce": base64url, "items": [...]}`. Every item has `kind` and `index`
(0, 1, 2, ... within its kind); every body is base64url. `verifier.wire.bundle_codec` reads and writes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NewType

NodeId = NewType("NodeId", str)
"""SHA-256 of the EK's DER SubjectPublicKeyInfo, 64 lower-case hex digits."""
Nonce = NewType("Nonce", bytes)
"""32 random bytes, good for one bundle of one node."""

VERSION = 1
NONCE_BYTES = 32
MAX_ITEMS = 64
MAX_STRUCTURE_BYTES = 4096
"""No TPM structure that we take exceeds this: the TPM's own command buffer is 4 KiB."""
MAX_BOOT_LOG_BYTES = 1024 * 1024
"""The firmware's log area is 64 KiB to 512 KiB in practice; the largest real log we know is 66 KiB."""
MAX_IMA_PART_BYTES = 2 * 1024 * 1024
MAX_FACTS_BYTES = 16 * 1024
MAX_TOKEN_BYTES = 16 * 1024

PCR_BANK_BYTES: Mapping[str, int] = {"sha1": 20, "sha256": 32, "sha384": 48, "sha512": 64}
PcrBanks = Mapping[str, Mapping[int, bytes]]
"""PCR values by bank name and PCR index."""


@dataclass(frozen=True, slots=True)
class KnownBody:
    """A body that the verifier already has, named by digest and size instead of being sent."""

    claimed_sha256: bytes
    claimed_size: int


@dataclass(frozen=True, slots=True)
class TpmQuote:
    """TPM2_Quote by the AK: TPMS_ATTEST, TPMT_SIGNATURE and the PCR values that it should cover."""

    index: int
    attest: bytes
    signature: bytes
    claimed_pcrs: PcrBanks
    kind: Literal["tpm-quote"] = "tpm-quote"


@dataclass(frozen=True, slots=True)
class BootLog:
    """The firmware's event log (binary_bios_measurements), or its digest when the verifier knows it."""

    index: int
    log: bytes | KnownBody
    kind: Literal["boot-log"] = "boot-log"


@dataclass(frozen=True, slots=True)
class ImaLog:
    """Part of the binary IMA log from entry-aligned byte `offset`; proved by PCR 10, so not bound by the nonce."""

    index: int
    log: bytes
    offset: int
    kind: Literal["ima-log"] = "ima-log"


@dataclass(frozen=True, slots=True)
class BindingKey:
    """This boot's binding key: TPM2B_PUBLIC, and TPM2_Certify of it by the AK (TPMS_ATTEST, TPMT_SIGNATURE)."""

    index: int
    public: bytes
    certify: bytes
    certify_signature: bytes
    kind: Literal["binding-key"] = "binding-key"


@dataclass(frozen=True, slots=True)
class NodeToken:
    """The attester pod's projected ServiceAccount token (JWT text as bytes)."""

    index: int
    token: bytes
    kind: Literal["node-token"] = "node-token"


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What the host says of itself: a JSON object as bytes, so that its digest is of what was sent."""

    index: int
    body: bytes
    kind: Literal["host-facts"] = "host-facts"


Item = TpmQuote | BootLog | ImaLog | BindingKey | NodeToken | HostFacts


@dataclass(frozen=True, slots=True)
class EvidenceBundle:
    """One node's answer to one challenge. Nothing in it is verified; `claimed_node_id` least of all."""

    claimed_node_id: NodeId
    claimed_nonce: Nonce
    items: tuple[Item, ...]
