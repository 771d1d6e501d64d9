"""What a host says of itself: believed for display and for matching names, never for trust."""

from __future__ import annotations

import re
from dataclasses import dataclass

from verifier.wire.bundle import MAX_FACTS_BYTES
from verifier.wire.codes import ReasonCode
from verifier.wire.encoding import canonical_json, decode_json_object
from verifier.wire.failures import MalformedEvidence

_FIELDS = frozenset({"hostname", "kernel_release", "linux_boot_id"})
_BOOT_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_NAME = re.compile(r"[\x21-\x7e]{1,253}")
"""Printable ASCII without spaces. Attack: control characters in a name that reach a log line or a terminal."""


@dataclass(frozen=True, slots=True)
class ParsedHostFacts:
    """The host's own account. The quote binds it to the AK; nothing proves it true."""

    claimed_linux_boot_id: str
    """/proc/sys/kernel/random/boot_id, which Kubernetes reports as the node's bootID."""
    claimed_kernel_release: str
    claimed_hostname: str


def parse_host_facts(body: bytes) -> ParsedHostFacts:
    """The facts in `body`: canonical JSON `{"hostname", "kernel_release", "linux_boot_id"}`, all text.

    Raises MalformedEvidence `host-facts-malformed`, also for JSON that is not in its canonical spelling.
    """
    try:
        facts = decode_json_object(body, "host_facts", MAX_FACTS_BYTES)
    except MalformedEvidence as error:
        raise MalformedEvidence(
            ReasonCode.HOST_FACTS_MALFORMED, error.failure.claim, error.failure.observed, "a canonical JSON object"
        ) from error
    if facts.keys() != _FIELDS or not all(type(value) is str for value in facts.values()):
        raise _malformed("host_facts", ", ".join(sorted(facts)), f"text for {', '.join(sorted(_FIELDS))}")
    if canonical_json(facts) != body:
        raise _malformed("host_facts", "another spelling", "canonical JSON")
    for name in ("hostname", "kernel_release"):
        if _NAME.fullmatch(facts[name]) is None:
            raise _malformed(f"host_facts.{name}", facts[name], "1 to 253 printable ASCII characters")
    if _BOOT_ID.fullmatch(facts["linux_boot_id"]) is None:
        raise _malformed("host_facts.linux_boot_id", facts["linux_boot_id"], "a lower-case UUID")
    return ParsedHostFacts(facts["linux_boot_id"], facts["kernel_release"], facts["hostname"])


def _malformed(where: str, observed: str, expected: str) -> MalformedEvidence:
    return MalformedEvidence(ReasonCode.HOST_FACTS_MALFORMED, where, observed, expected)
