"""The file names under which opened secrets are laid down: the broker proposes, the node decides."""

from __future__ import annotations

from attester.release import OpenedSecret
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence

MAX_NAME_BYTES = 253


def file_names(opened: tuple[OpenedSecret, ...]) -> tuple[str, ...]:
    """One plain file name for each of `opened`, no two alike.

    Raises MalformedEvidence `jwe-malformed`. Attack: a broker that names "../../etc/cron.d/x", or one secret over
    another.
    """
    names = tuple(_file_name(one.claimed_path) for one in opened)
    if len(set(names)) != len(names):
        raise MalformedEvidence(ReasonCode.JWE_MALFORMED, "secrets.path", "two secrets for one file")
    return names


def _file_name(claimed_path: str) -> str:
    name = claimed_path.removeprefix("./")
    # Nothing hidden: names with two dots in front are the CSI driver's own in a volume.
    if not name.isprintable() or not name or "/" in name or name.startswith("."):
        raise MalformedEvidence(ReasonCode.JWE_MALFORMED, "secrets.path", claimed_path, "one file name")
    if len(name.encode()) > MAX_NAME_BYTES:
        raise MalformedEvidence(ReasonCode.JWE_MALFORMED, "secrets.path", claimed_path, f"{MAX_NAME_BYTES} bytes")
    return name
