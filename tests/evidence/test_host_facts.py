from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifier.evidence.host_facts import parse_host_facts
from verifier.wire.codes import ReasonCode
from verifier.wire.encoding import canonical_json
from verifier.wire.failures import MalformedEvidence

FACTS = {
    "hostname": "node-1",
    "kernel_release": "6.1.0-37-amd64",
    "linux_boot_id": "0b1c2d3e-4f50-4617-8293-a4b5c6d7e8f9",
}


def _refused(body: bytes) -> None:
    with pytest.raises(MalformedEvidence) as refusal:
        parse_host_facts(body)
    assert refusal.value.code is ReasonCode.HOST_FACTS_MALFORMED


def test_canonical_facts_parse_to_claims() -> None:
    facts = parse_host_facts(canonical_json(FACTS))
    assert facts.claimed_linux_boot_id == FACTS["linux_boot_id"]
    assert facts.claimed_kernel_release == FACTS["kernel_release"]
    assert facts.claimed_hostname == FACTS["hostname"]


@pytest.mark.parametrize(
    "change",
    [
        {"hostname": "node\n1"},
        {"hostname": ""},
        {"hostname": "n" * 254},
        {"hostname": "n\u00f6de"},
        {"hostname": 1},
        {"hostname": None},
        {"kernel_release": "6.1 \x1b[31m"},
        {"linux_boot_id": FACTS["linux_boot_id"].upper()},
        {"linux_boot_id": FACTS["linux_boot_id"] + "\n"},
        {"linux_boot_id": ""},
        {"more": "text"},
    ],
)
def test_facts_of_another_shape_or_with_control_characters_are_malformed(change: dict[str, object]) -> None:
    _refused(canonical_json(FACTS | change))


@pytest.mark.parametrize("missing", sorted(FACTS))
def test_a_missing_fact_is_malformed(missing: str) -> None:
    _refused(canonical_json({name: value for name, value in FACTS.items() if name != missing}))


def test_facts_in_another_spelling_are_malformed() -> None:
    _refused(json.dumps(FACTS).encode())
    _refused(canonical_json(FACTS) + b" ")
    _refused(b'{"hostname":"a","hostname":"b"}')


@given(st.binary(max_size=200))
def test_arbitrary_bytes_raise_only_malformed_evidence(body: bytes) -> None:
    _refused(body)
