"""What the attester keeps across restarts: which node it is, and the AK with which it enrolled."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attester.keys import AkBlob
from attester.templates import EkType
from edges.private_files import read_own, rename_private, replace_private, require_private_directory
from verifier.wire.bundle import NodeId
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Rejection

_FILE = "enrolment.json"
_NEXT_FILE = "enrolment.next.json"
_MAX_FILE_BYTES = 64 * 1024
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Enrolment:
    """An accepted enrolment. The AK blob opens in its own TPM only, yet stays private: it is not for others to use."""

    node_id: NodeId
    node_name: str
    verifier_id: str
    ak: AkBlob


def prepare_enrolment(state_directory: Path, enrolment: Enrolment) -> None:
    """`enrolment` lies durably beside the one that counts, so that keeping it needs no more than a rename.

    Raises `file-mode-unsafe`, `file-unreadable`.
    """
    require_private_directory(state_directory)
    fields: dict[str, Any] = {
        "version": _VERSION,
        "node_id": enrolment.node_id,
        "node_name": enrolment.node_name,
        "verifier_id": enrolment.verifier_id,
        "ek_type": enrolment.ak.ek_kind.value,
        "ak_public": enrolment.ak.public.hex(),
        "ak_private": enrolment.ak.private.hex(),
    }
    replace_private(state_directory / _NEXT_FILE, json.dumps(fields, indent=1).encode())


def keep_enrolment(state_directory: Path) -> None:
    """The prepared enrolment counts from now on, instead of an older one. Raises `file-unreadable`."""
    rename_private(state_directory / _NEXT_FILE, state_directory / _FILE)


def read_enrolment(state_directory: Path) -> Enrolment:
    """The enrolment that is kept. Raises Rejection `not-enrolled` (none, or unreadable form), `file-mode-unsafe`."""
    require_private_directory(state_directory)
    content = read_own(state_directory / _FILE, _MAX_FILE_BYTES)
    if content is None:
        raise Rejection(ReasonCode.NOT_ENROLLED, str(state_directory / _FILE), "no such file")
    try:
        fields = json.loads(content)
        _ = {_VERSION: None}[fields["version"]]
        blob = AkBlob(
            EkType(fields["ek_type"]), bytes.fromhex(fields["ak_public"]), bytes.fromhex(fields["ak_private"])
        )
        return Enrolment(NodeId(fields["node_id"]), fields["node_name"], fields["verifier_id"], blob)
    except (ValueError, KeyError, TypeError) as error:
        raise Rejection(ReasonCode.NOT_ENROLLED, str(state_directory / _FILE), "not an enrolment") from error
