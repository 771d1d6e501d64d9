"""Forged nodes for the benchmarks of the verifier: software keys, real boot log, honest quotes."""

from __future__ import annotations

import hashlib
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from policies.compiler import CompiledBaseline, compile_baseline
from policies.loader import load_baseline
from tests.forge import baselines
from tests.forge.evidence import challenge_for
from tests.verifier.fleet import NOW, SetClock, encoded, evidence, make_settings, node, record_of
from verifier.appraisal.authenticate import authenticate
from verifier.appraisal.binding_key import VerifiedBindingKey
from verifier.appraisal.context import IssuedChallenge
from verifier.appraisal.verify import verify
from verifier.boot_cache import BootCache
from verifier.evidence.parse import parse_bundle
from verifier.node_cache import KnownNode, NodeCache
from verifier.results import ResultMaker
from verifier.store.ports import NonceState
from verifier.tokens import load_signer
from verifier.wire.bundle_codec import decode_bundle

__all__ = ["NOW", "Steady", "steady"]


@dataclass(frozen=True)
class Steady:
    """Everything that one steady appraisal needs."""

    body: bytes
    issuer: str
    challenge: IssuedChallenge
    known_node: KnownNode
    nonce_state: NonceState
    boots: BootCache
    binding_key: VerifiedBindingKey | None
    baselines: tuple[CompiledBaseline, ...]
    results: ResultMaker


def steady() -> Steady:
    """One node in its steady state: the log was sent before, the binding key checked before."""
    forged = node(0)
    challenge = challenge_for(forged)
    honest = evidence(forged, challenge)
    body = encoded(honest, log_by_digest=True)
    logs = {hashlib.sha256(honest.log or b"").digest(): honest.log}
    boots = BootCache(logs.get)
    known_node = NodeCache().put(record_of(forged))
    with tempfile.TemporaryDirectory() as name:
        settings = make_settings(Path(name) / "verifier", SetClock())
        results = ResultMaker(settings, load_signer(settings.keys_dir))
    parsed = parse_bundle(decode_bundle(body))
    authentic = authenticate(parsed, known_node.enrolled, challenge, settings.issuer, None)
    verified = verify(authentic, boots.measured(parsed.boot_log, challenge.pcr_bank), None)
    state = NonceState(
        nonce_sha256=bytes(32),
        node_id=challenge.node_id,
        issued_at=challenge.issued_at,
        expires_at=challenge.expires_at,
        pcr_bank=challenge.pcr_bank,
        pcrs=challenge.pcrs,
        node_token=False,
        tries=0,
        used=False,
        node_version=1,
        node_state="admitted",
        previous_sequence=0,
        moved=0,
        last_seen=None,
        boot_log_sha256=None,
        in_row=True,
        row_nonce_sha256=bytes(32),
        row_expires_at=challenge.expires_at,
        used_nonces=b"",
    )
    return Steady(
        body,
        settings.issuer,
        challenge,
        known_node,
        state,
        boots,
        verified.binding_key,
        (compile_baseline(load_baseline(json.dumps(baselines.document()), "baseline")),),
        results,
    )


def document_now(not_before: str, expires: str) -> dict[str, Any]:
    """The forge's baseline, valid between the two times."""
    changed = baselines.document()
    changed["metadata"] |= {"notBefore": not_before, "expires": expires}
    return changed
