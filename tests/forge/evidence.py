"""Evidence that is accepted, with every part of it open to change: `dataclasses.replace` one field, and build again.

The keys are made in software, so tests need no TPM; the boot logs are real. What a TPM would compute is computed here
by hand or by hashlib, never by the code under test, except for the replay of the log and the binding digest, which
have tests of their own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from pathlib import Path

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.forge import attest
from tests.forge.keys import AkKind, EkKind, SoftKey, attestation_key, binding_key, endorsement_key
from verifier.appraisal.boot import measure_boot
from verifier.appraisal.boot_facts import MeasuredBoot
from verifier.appraisal.context import EkEndorsement, EnrolledNode, IssuedChallenge
from verifier.evidence.tpm import parse_public
from verifier.wire.binding import quote_extra_data
from verifier.wire.bundle import (
    BindingKey,
    BootLog,
    EvidenceBundle,
    HostFacts,
    Item,
    KnownBody,
    NodeId,
    NodeToken,
    Nonce,
    TpmQuote,
)
from verifier.wire.challenge import DEFAULT_PCRS

VM = Path(__file__).parent.parent / "vectors" / "vm"
VERIFIER_ID = "https://verifier.example"
NOW = 1_795_000_000
"""2026-11-18: within the validity of the forge's baselines."""
LINUX_BOOT_ID = "0b1c2d3e-4f50-4617-8293-a4b5c6d7e8f9"
ENDORSED = EkEndorsement("verified", "00001014", "swtpm", "20191023")


@cache
def vm_log(case: str = "sb-on-good") -> bytes:
    """A boot log recorded on our own test machines."""
    return (VM / case / "eventlog.bin").read_bytes()


@cache
def measured(log: bytes, bank: str = "sha256") -> MeasuredBoot:
    """`log` measured, the same object for the same log."""
    return measure_boot(log, bank)


def pcrs_of(log: bytes, pcrs: tuple[int, ...] = DEFAULT_PCRS, bank: str = "sha256") -> dict[int, bytes]:
    """The PCR values of a TPM that measured `log`; zero where it extended nothing."""
    replayed = measured(log, bank).pcrs
    return {pcr: replayed.get(pcr, bytes(32 if bank == "sha256" else 48)) for pcr in pcrs}


@dataclass(frozen=True)
class ForgedNode:
    """A node with its TPM's keys in software, and the row that its enrolment left."""

    ek: SoftKey
    ak: SoftKey
    enrolled: EnrolledNode

    @property
    def ak_qualified_name(self) -> bytes:
        return self.ak.qualified_name(self.ek.qualified_name(attest.ENDORSEMENT))


@cache
def forged_node(
    ek_kind: EkKind = "rsa-2048", ak_kind: AkKind = "p-256", which: int = 0, name: str = "node-a"
) -> ForgedNode:
    """A node of tenant `ml`, cohort `prod-a`; `which` gives one with other keys."""
    ek, ak = endorsement_key(ek_kind, which), attestation_key(ak_kind, which)
    der = ek.private.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    node_id = NodeId(sha256(der).hexdigest())
    enrolled = EnrolledNode(node_id, name, "ml", "prod-a", parse_public(ek.tpm2b), parse_public(ak.tpm2b), ENDORSED)
    return ForgedNode(ek, ak, enrolled)


def challenge_for(
    node: ForgedNode, nonce: bytes = b"n" * 32, pcrs: tuple[int, ...] = DEFAULT_PCRS, *, node_token: bool = False
) -> IssuedChallenge:
    """A challenge issued to `node` at NOW."""
    return IssuedChallenge(Nonce(nonce), node.enrolled.node_id, "sha256", pcrs, node_token, NOW, NOW + 120)


@dataclass(frozen=True)
class ForgedBinding:
    """A binding key item; each field is what the TPM would have made of the others."""

    key: SoftKey
    name: bytes
    qualified_name: bytes
    qualifying_data: bytes
    signer: bytes
    reset_count: int
    restart_count: int
    signing_key: SoftKey

    def item(self) -> BindingKey:
        """The item; certified once, as on a node, so the same bytes every time."""
        return _certify(self)


@cache
def _certify(binding: ForgedBinding) -> BindingKey:
    certify = attest.attest(
        attest.CERTIFY,
        attest.certify_body(binding.name, binding.qualified_name),
        signer=binding.signer,
        extra_data=binding.qualifying_data,
        clock_ms=1000,
        reset_count=binding.reset_count,
        restart_count=binding.restart_count,
    )
    return BindingKey(0, binding.key.tpm2b, certify, binding.signing_key.sign(certify))


def forged_binding(node: ForgedNode, reset_count: int, restart_count: int) -> ForgedBinding:
    """The binding key of this boot of `node`, certified."""
    key = binding_key(reset_count, restart_count)
    return certified(key, node, reset_count, restart_count)


def certified(key: SoftKey, node: ForgedNode, reset_count: int, restart_count: int) -> ForgedBinding:
    """`key` certified by the AK of `node`, whatever key it is."""
    return ForgedBinding(
        key,
        key.name,
        key.qualified_name(attest.NULL_HIERARCHY),
        sha256(b"nodewarden/binding-key/1\0" + bytes.fromhex(node.enrolled.node_id)).digest(),
        node.ak_qualified_name,
        reset_count,
        restart_count,
        node.ak,
    )


@dataclass(frozen=True)
class ForgedEvidence:
    """One answer to one challenge. None in an override means: what an honest TPM and attester would send."""

    node: ForgedNode
    challenge: IssuedChallenge
    log: bytes | None
    pcrs: Mapping[int, bytes]
    binding: ForgedBinding | None
    reset_count: int = 3
    restart_count: int = 0
    clock_ms: int = 10_000
    log_by_digest: bool = False
    node_token: bytes | None = None
    linux_boot_id: str | None = LINUX_BOOT_ID
    verifier_id: str = VERIFIER_ID
    extra_data: bytes | None = None
    signer: bytes | None = None
    signing_key: SoftKey | None = None
    signature: bytes | None = None
    labels: Mapping[str, Mapping[int, bytes]] | None = None
    quote_body: bytes | None = None
    kind: int = attest.QUOTE
    magic: int = attest.MAGIC
    extra_items: tuple[Item, ...] = ()

    def items(self) -> tuple[Item, ...]:
        """All items but the quote."""
        found: list[Item] = []
        if self.log is not None:
            body = KnownBody(sha256(self.log).digest(), len(self.log)) if self.log_by_digest else self.log
            found.append(BootLog(0, body))
        if self.binding is not None:
            found.append(self.binding.item())
        if self.node_token is not None:
            found.append(NodeToken(0, self.node_token))
        if self.linux_boot_id is not None:
            facts = {"hostname": "node-a", "kernel_release": "6.1.0-57-amd64", "linux_boot_id": self.linux_boot_id}
            found.append(HostFacts(0, json.dumps(facts, sort_keys=True, separators=(",", ":")).encode()))
        return (*found, *self.extra_items)

    def bundle(self) -> EvidenceBundle:
        """The bundle, quoted over exactly these items."""
        items = self.items()
        node_id = self.node.enrolled.node_id
        extra = quote_extra_data(self.challenge.nonce, self.challenge.node_id, self.verifier_id, items)
        body = attest.quote_body(self.challenge.pcr_bank, self.pcrs)
        message = attest.attest(
            self.kind,
            body if self.quote_body is None else self.quote_body,
            signer=self.node.ak_qualified_name if self.signer is None else self.signer,
            extra_data=extra if self.extra_data is None else self.extra_data,
            clock_ms=self.clock_ms,
            reset_count=self.reset_count,
            restart_count=self.restart_count,
            magic=self.magic,
        )
        signing_key = self.node.ak if self.signing_key is None else self.signing_key
        signature = signing_key.sign(message) if self.signature is None else self.signature
        labels = {self.challenge.pcr_bank: dict(self.pcrs)} if self.labels is None else self.labels
        return EvidenceBundle(node_id, self.challenge.nonce, (TpmQuote(0, message, signature, labels), *items))


def accepted(
    case: str = "sb-on-good",
    node: ForgedNode | None = None,
    challenge: IssuedChallenge | None = None,
    reset_count: int = 3,
    restart_count: int = 0,
    clock_ms: int = 10_000,
) -> ForgedEvidence:
    """Evidence of `node` booted as in the recorded `case`: accepted as it is by the baseline for that case."""
    node = forged_node() if node is None else node
    challenge = challenge_for(node) if challenge is None else challenge
    log = vm_log(case)
    return ForgedEvidence(
        node=node,
        challenge=challenge,
        log=log,
        pcrs=pcrs_of(log, challenge.pcrs, challenge.pcr_bank),
        binding=forged_binding(node, reset_count, restart_count),
        reset_count=reset_count,
        restart_count=restart_count,
        clock_ms=clock_ms,
    )


def with_log(evidence: ForgedEvidence, log: bytes) -> ForgedEvidence:
    """`evidence` of a machine that measured `log`: quoted anew over its PCR values."""
    return replace(evidence, log=log, pcrs=pcrs_of(log, evidence.challenge.pcrs))
