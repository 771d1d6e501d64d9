"""From a challenge to a bundle: collect what it asks for, then quote, so that the quote binds all of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from attester.binding_key import BootKey, boot_key
from attester.collectors.boot_log import collect_boot_log
from attester.collectors.host_facts import LINUX_BOOT_ID, collect_host_facts
from attester.collectors.node_token import collect_node_token
from attester.keys import AttestationKey, quote
from attester.settings import AttesterSettings
from attester.tpm import Tpm, tpm_errors
from verifier.wire.binding import quote_extra_data
from verifier.wire.bundle import EvidenceBundle, Item, NodeId, Nonce, TpmQuote
from verifier.wire.challenge import ChallengeResponse
from verifier.wire.messages import bytes_of


@dataclass(frozen=True, slots=True)
class Sources:
    """Where on this machine the evidence lies."""

    boot_log: Path
    node_token: Path | None
    linux_boot_id: Path = LINUX_BOOT_ID


@dataclass(frozen=True, slots=True)
class Wanted:
    """What one challenge asks for, decoded."""

    nonce: Nonce
    pcr_bank: str
    pcrs: tuple[int, ...]
    known_boot_log_sha256: str | None
    node_token: bool


def sources_of(settings: AttesterSettings) -> Sources:
    """The sources that the settings name."""
    return Sources(settings.boot_log_path, settings.node_token_path)


def wanted_by(challenge: ChallengeResponse) -> Wanted:
    """What `challenge` asks for."""
    collect = challenge.collect
    known = collect.boot_log_known_sha256
    return Wanted(Nonce(bytes_of(challenge.nonce)), collect.pcr_bank, tuple(collect.pcrs), known, collect.node_token)


def answer(
    tpm: Tpm, ak: AttestationKey, key: BootKey, node_id: NodeId, verifier_id: str, wanted: Wanted, sources: Sources
) -> EvidenceBundle:
    """The evidence that answers `wanted`, quoted last.

    `verifier_id` is the attester's own setting: evidence that a false verifier asks for is void at the true one.
    Raises what the collectors and `attester.keys.quote` raise; nothing is left out silently.
    """
    items: list[Item] = [
        collect_boot_log(sources.boot_log, wanted.known_boot_log_sha256),
        key.item(),
        collect_host_facts(sources.linux_boot_id),
    ]
    if wanted.node_token:
        items.append(collect_node_token(sources.node_token))
    extra_data = quote_extra_data(wanted.nonce, node_id, verifier_id, tuple(items))
    with tpm_errors("attestation key"), ak.loaded(tpm) as handle:
        made = quote(tpm, handle, wanted.pcr_bank, wanted.pcrs, extra_data)
    quoted = TpmQuote(0, made.attest, made.signature, {wanted.pcr_bank: made.pcrs})
    return EvidenceBundle(node_id, wanted.nonce, (quoted, *items))


def collect(
    tpm: Tpm, ak: AttestationKey, node_id: NodeId, settings: AttesterSettings, challenge: ChallengeResponse
) -> EvidenceBundle:
    """The evidence for `challenge` with this boot's binding key. Raises as `answer` and `boot_key`."""
    key = boot_key(tpm, ak, node_id, settings.runtime_dir)
    return answer(tpm, ak, key, node_id, settings.verifier_id, wanted_by(challenge), sources_of(settings))
