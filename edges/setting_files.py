"""Settings: one YAML mapping from one bounded file, then one frozen model that refuses unknown keys.

What is wrong is told as `setting-invalid` with the place of the first fault, and never with the value: it may be a
secret that stands in the wrong place.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from edges.private_files import read_bounded
from edges.yaml_documents import documents
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence

MAX_SETTINGS_BYTES = 64 * 1024

ModelT = TypeVar("ModelT", bound=BaseModel)


def read_text(path: Path, max_bytes: int, invalid: ReasonCode) -> str:
    """The text of the regular file `path`, at most `max_bytes` of UTF-8.

    Raises Unavailable `file-unreadable`, MalformedEvidence `setting-invalid` when it is larger, `invalid` when it is
    no text.
    """
    try:
        return read_bounded(path, max_bytes).decode("utf-8")
    except UnicodeDecodeError as error:
        raise MalformedEvidence(invalid, str(path), "not UTF-8") from error


def read_document(path: Path, max_bytes: int, invalid: ReasonCode) -> Any:
    """The one YAML document in the file `path`. Raises as `read_text`, `invalid` also when it is not exactly one."""
    found = list(documents(read_text(path, max_bytes, invalid), str(path), invalid))
    if len(found) != 1:
        raise MalformedEvidence(invalid, str(path), f"{len(found)} documents", "one")
    return found[0]


def read_fields(path: Path) -> dict[str, Any]:
    """The mapping that the settings file `path` spells.

    Raises Unavailable `file-unreadable`, MalformedEvidence `setting-invalid`.
    """
    fields = read_document(path, MAX_SETTINGS_BYTES, ReasonCode.SETTING_INVALID)
    if not isinstance(fields, dict):
        raise MalformedEvidence(ReasonCode.SETTING_INVALID, str(path), type(fields).__name__, "a mapping of settings")
    return fields


def validated(
    kind: type[ModelT], fields: Mapping[str, Any], source: str, invalid: ReasonCode = ReasonCode.SETTING_INVALID
) -> ModelT:
    """`fields` as a `kind`. Raises MalformedEvidence `invalid` with the place of the first fault below `source`."""
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join([source, *(str(part) for part in first["loc"])])
        raise MalformedEvidence(invalid, place, first["type"], first["msg"]) from error
