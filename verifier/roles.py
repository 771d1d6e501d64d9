"""Bearer tokens and what they may do. The file holds digests, so a thief of it has no token."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from edges.private_files import create_private, read_private
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence
from verifier.wire.messages import Hex32


class Role(StrEnum):
    """What a token's holder is: reads, runs nodes, admits nodes, or is another part of Nodewarden."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    APPROVER = "approver"
    MACHINE = "machine"


@dataclass(frozen=True, slots=True)
class Identity:
    """Who asks: a token's name, for the audit log, and its role."""

    name: str
    role: Role


class _Entry(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    name: Annotated[str, StringConstraints(pattern=r"\A[a-z0-9][a-z0-9.-]{0,62}\z")]
    role: Annotated[Role, Field(strict=False)]
    sha256: Hex32


class _File(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    version: Literal[1]
    tokens: Annotated[list[_Entry], Field(min_length=1, max_length=1000)]


class Tokens:
    """The tokens that this verifier knows."""

    def __init__(self, entries: tuple[tuple[bytes, Identity], ...]) -> None:
        self._entries = entries

    def identify(self, token: bytes) -> Identity | None:
        """Whose token this is. Every entry is compared in full, so that the time taken tells nothing of any."""
        digest = hashlib.sha256(token).digest()
        found: Identity | None = None
        for known, identity in self._entries:
            if hmac.compare_digest(known, digest):
                found = identity
        return found


def load_tokens(path: Path) -> Tokens:
    """The tokens in the file at `path`: `{"version": 1, "tokens": [{"name", "role", "sha256"}]}`, mode 0600.

    Raises Rejection `file-mode-unsafe`, MalformedEvidence `setting-invalid`, Unavailable `file-unreadable`.
    """
    content = read_private(path)
    try:
        entries = _File.model_validate_json(content).tokens
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise MalformedEvidence(ReasonCode.SETTING_INVALID, str(path), first["type"], first["msg"]) from error
    if len({entry.sha256 for entry in entries}) != len(entries):
        raise MalformedEvidence(ReasonCode.SETTING_INVALID, str(path), "one token twice", "each token once")
    return Tokens(tuple((bytes.fromhex(entry.sha256), Identity(entry.name, entry.role)) for entry in entries))


def create_tokens(path: Path, holders: dict[str, tuple[Role, Path]]) -> None:
    """A tokens file at `path`, and for each holder a new token of 32 random bytes in a file of its own, all 0600."""
    entries = []
    for name, (role, token_path) in holders.items():
        token = secrets.token_urlsafe(32)
        create_private(token_path, token.encode() + b"\n")
        entries.append({"name": name, "role": role.value, "sha256": hashlib.sha256(token.encode()).hexdigest()})
    create_private(path, json.dumps({"version": 1, "tokens": entries}, indent=1).encode() + b"\n")
