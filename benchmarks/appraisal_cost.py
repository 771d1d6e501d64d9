"""What an appraisal costs beside the cryptography that it cannot do without.

Steady re-attestation: boot log known by digest, binding key checked before, one baseline. From the bundle's JSON to the
signed result, without network and store.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from benchmarks.fleet import NOW, Steady, steady
from edges.collector import tune_collector
from verifier.appraisal.appraise import appraise
from verifier.appraisal.authenticate import authenticate
from verifier.appraisal.verify import verify
from verifier.evidence.parse import parse_bundle
from verifier.evidence.steady import SteadyBundles, parse_steady
from verifier.wire.bundle_codec import decode_bundle

NAMES = ("appraisal_cost_ratio", "appraisals_per_s")
_ROUNDS = 15
_PER_ROUND = 200


def run() -> dict[str, dict[str, Any]]:
    """The two figures. The ratio is the median over rounds."""
    tune_collector()
    prepared = steady()
    ours = _appraisal(prepared)
    floor = cryptography_alone()
    _round(ours, floor)
    pairs = [_round(ours, floor) for _ in range(_ROUNDS)]
    ratio = statistics.median(a / b for a, b in pairs)
    each = statistics.median(a for a, _ in pairs) / _PER_ROUND
    n = _ROUNDS * _PER_ROUND
    how = "JSON bundle to signed result, log known by digest, one core"
    return {
        "appraisal_cost_ratio": {
            "value": round(ratio, 2),
            "unit": "x",
            "n": n,
            "how": f"{how}; over one P-256 verification plus one ES256 signature, taking turns",
        },
        "appraisals_per_s": {"value": round(1 / each), "unit": "1/s", "n": n, "how": how},
    }


def _round(ours: Callable[[], object], floor: Callable[[], object]) -> tuple[float, float]:
    """Seconds of both sides, one after the other each time, so that both find the same caches and the same load."""
    appraising = cryptography = 0.0
    for _ in range(_PER_ROUND):
        started = time.perf_counter()
        ours()
        between = time.perf_counter()
        floor()
        cryptography += time.perf_counter() - between
        appraising += between - started
    return appraising, cryptography


def _appraisal(prepared: Steady) -> Callable[[], object]:
    results, node, nonce = prepared.results, prepared.known_node, prepared.nonce_state
    baselines = prepared.baselines
    proved = SteadyBundles()
    proved.keep(prepared.body, parse_bundle(decode_bundle(prepared.body)))

    def appraisal() -> object:
        head = proved.find(prepared.body)
        assert head is not None
        parsed = parse_steady(head)
        authentic = authenticate(parsed, node.enrolled, prepared.challenge, prepared.issuer, nonce.last_seen)
        verified = verify(
            authentic, prepared.boots.measured(parsed.boot_log, prepared.challenge.pcr_bank), prepared.binding_key
        )
        judged = appraise(verified, baselines, NOW)
        return results.attested(node.record, node.ak_text, judged, nonce, None, NOW * 1000)

    return appraisal


def cryptography_alone() -> Callable[[], object]:
    """One P-256 verification and one signature, each time it is called."""
    private = ec.generate_private_key(ec.SECP256R1())
    public, algorithm, message = private.public_key(), ec.ECDSA(hashes.SHA256()), bytes(145)
    signature = private.sign(message, algorithm)

    def floor() -> object:
        public.verify(signature, message, algorithm)
        return private.sign(message, algorithm)

    return floor
