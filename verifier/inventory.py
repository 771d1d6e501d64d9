"""Inventory messages, and the YAML file that people write: the same fields, the same strict reading.

entries:
  - nodeName: worker-1
    tenant: team-a
    cohort: prod
    eks:
      - publicKeySha256: <64 hex digits>
      - certificateSha256: <64 hex digits>
"""

from __future__ import annotations

import json
from typing import Annotated

from pydantic import ConfigDict, Field, StringConstraints, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from policies.loader import read_yaml
from verifier.store.ports import InventoryEk, InventoryEntry
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence
from verifier.wire.messages import Hex32, Message, NodeName

Label = Annotated[str, StringConstraints(pattern=r"\A[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?\z")]


class _Camel(Message):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", alias_generator=to_camel)


class EkReference(_Camel):
    """One EK, by exactly one of its digests."""

    public_key_sha256: Hex32 | None = None
    certificate_sha256: Hex32 | None = None

    @model_validator(mode="after")
    def _one(self) -> EkReference:
        if (self.public_key_sha256 is None) == (self.certificate_sha256 is None):
            raise ValueError("publicKeySha256 or certificateSha256, not both")
        return self

    def as_ek(self) -> InventoryEk:
        """The store's form."""
        if self.public_key_sha256 is not None:
            return InventoryEk("public-key", self.public_key_sha256)
        return InventoryEk("certificate", str(self.certificate_sha256))


class Entry(_Camel):
    """One machine. All EKs of its TPM belong here, so that none of them makes a second node."""

    node_name: NodeName
    tenant: Label
    cohort: Label
    eks: Annotated[list[EkReference], Field(min_length=1, max_length=8)]

    def as_entry(self) -> InventoryEntry:
        """The store's form."""
        return InventoryEntry(self.node_name, self.tenant, self.cohort, tuple(ek.as_ek() for ek in self.eks))


class Inventory(_Camel):
    """What is imported at once: all of it, or nothing."""

    entries: Annotated[list[Entry], Field(min_length=1, max_length=10_000)]

    @model_validator(mode="after")
    def _distinct(self) -> Inventory:
        if len({entry.node_name for entry in self.entries}) != len(self.entries):
            raise ValueError("each nodeName once")
        return self


def entry_json(entry: InventoryEntry) -> dict[str, object]:
    """The JSON of an entry, in the form that an import takes."""
    names = {"public-key": "publicKeySha256", "certificate": "certificateSha256"}
    eks = [{names[ek.kind]: ek.sha256} for ek in entry.eks]
    return {"nodeName": entry.node_name, "tenant": entry.tenant, "cohort": entry.cohort, "eks": eks}


def load_inventory(text: str, source: str) -> Inventory:
    """The inventory that the YAML `text` spells, read as strictly as a baseline.

    Raises policies.faults.BaselineFault for YAML that readers disagree on, MalformedEvidence `schema-mismatch`.
    """
    try:
        return Inventory.model_validate_json(json.dumps(read_yaml(text, source)))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join([source, *(str(part) for part in first["loc"])])
        raise MalformedEvidence(ReasonCode.SCHEMA_MISMATCH, place, first["type"], first["msg"]) from error
