"""YAML to a baseline, in the one reading that people, reviewers and every YAML library share.

PyYAML's own constructors keep the last of two equal keys, read 3.10 as 3.1, `on` as true and 12:30:45 as 45045, and
expand aliases without bound. So only the parser's events are used here; every scalar is text or a decimal integer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails
from yaml.events import (
    AliasEvent,
    DocumentEndEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
    StreamStartEvent,
)
from yaml.resolver import Resolver

from policies.faults import BaselineFault, PolicyCode
from policies.schema import Baseline

MAX_BASELINE_CHARACTERS = 512 * 1024
MAX_YAML_DEPTH = 10
"""The schema is 6 levels deep."""
MAX_YAML_EVENTS = 50_000

PLACEHOLDER = "FILL"
"""Stands in a draft where only a person can say what belongs there."""

_INTEGER = re.compile(r"0|[1-9][0-9]{0,9}")
_TEXT_TAGS = frozenset({"tag:yaml.org,2002:str", "tag:yaml.org,2002:timestamp"})
"""A timestamp stays the text that was written: nothing is converted."""


def read_yaml(text: str, source: str) -> dict[str, Any]:
    """The mapping that the YAML `text` spells, in the strict reading; `source` names it in messages only.

    Raises BaselineFault. For other files that people write (an inventory); a baseline is read by `load_baseline`.
    """
    if len(text) > MAX_BASELINE_CHARACTERS:
        raise BaselineFault(PolicyCode.TOO_LARGE, source, f"at most {MAX_BASELINE_CHARACTERS} characters")
    return _Document(text, source).value()


def load_baseline(text: str, source: str) -> Baseline:
    """The baseline that the YAML `text` spells; `source` names it in messages only.

    Raises BaselineFault; each fault that the schema finds is in its `every`. Does not check what only `policy lint`
    asks for (validity below 180 days, kexec stopped, every PCR required that facts come from).
    """
    document = read_yaml(text, source)
    _refuse_placeholders(document, source)
    try:
        # As JSON, so that strict mode takes a list for a tuple and nothing else for anything else.
        return Baseline.model_validate_json(json.dumps(document))
    except ValidationError as error:
        raise _from_schema(error, source) from error


def _refuse_placeholders(document: dict[str, Any], source: str) -> None:
    """A draft says that it is one, before its gaps are told as faults of form, or pass as text."""
    left = [
        BaselineFault(PolicyCode.PLACEHOLDER_LEFT, path, f"a draft's {PLACEHOLDER}: put in what only you can say")
        for path in _placeholders(document, source)
    ]
    if left:
        first, *others = left
        raise BaselineFault(first.code, first.path, first.message, tuple(others))


def _placeholders(value: Any, path: str) -> Iterator[str]:
    if value == PLACEHOLDER:
        yield path
    elif isinstance(value, dict):
        for key, child in value.items():
            yield from _placeholders(child, f"{path}.{key}")
    elif isinstance(value, list):
        for position, child in enumerate(value):
            yield from _placeholders(child, f"{path}.{position}")


_SCHEMA_CODES = {
    "extra_forbidden": PolicyCode.KEY_UNKNOWN,
    "missing": PolicyCode.KEY_MISSING,
    "too_short": PolicyCode.LIST_EMPTY,
}
_OWN_CODES = {code.value: code for code in PolicyCode}


def _from_schema(error: ValidationError, source: str) -> BaselineFault:
    found = error.errors(include_url=False, include_input=False)
    # A list whose items are all wrong is also told as empty: only the items are the fault.
    within = {entry["loc"][: len(entry["loc"]) - 1] for entry in found}
    faults = [_fault(entry, source) for entry in found if entry["type"] != "too_short" or entry["loc"] not in within]
    first, *others = faults
    return BaselineFault(first.code, first.path, first.message, tuple(others))


def _fault(found: ErrorDetails, source: str) -> BaselineFault:
    path = ".".join([source, *(str(part) for part in found["loc"])])
    code = _OWN_CODES.get(found["type"]) or _SCHEMA_CODES.get(found["type"], PolicyCode.VALUE_INVALID)
    return BaselineFault(code, path, found["msg"])


class _Document:
    """One walk over the events of one YAML document, bounded in depth and number."""

    def __init__(self, text: str, source: str) -> None:
        self._events: Iterator[Event] = yaml.parse(text, Loader=yaml.SafeLoader)
        self._source = source
        self._seen = 0

    def value(self) -> dict[str, Any]:
        """The one document's mapping."""
        self._expect(StreamStartEvent)
        self._expect(DocumentStartEvent)
        value = self._node(self._next(), "", 0)
        self._expect(DocumentEndEvent)
        self._expect(StreamEndEvent)
        if not isinstance(value, dict):
            raise self._fault(PolicyCode.YAML_INVALID, "", "a mapping at the top")
        return value

    def _next(self) -> Event:
        self._seen += 1
        if self._seen > MAX_YAML_EVENTS:
            raise self._fault(PolicyCode.TOO_LARGE, "", f"more than {MAX_YAML_EVENTS} YAML events")
        try:
            return next(self._events)
        except StopIteration as error:
            raise self._fault(PolicyCode.YAML_INVALID, "", "ends too early") from error
        except (yaml.YAMLError, ValueError, RecursionError, IndexError) as error:
            raise self._fault(PolicyCode.YAML_INVALID, "", " ".join(str(error).split())[:200]) from error

    def _expect(self, kind: type[Event]) -> None:
        event = self._next()
        if not isinstance(event, kind):
            raise self._fault(PolicyCode.YAML_FORBIDDEN, "", "exactly one YAML document")

    def _fault(self, code: PolicyCode, path: str, message: str) -> BaselineFault:
        return BaselineFault(code, f"{self._source}.{path}" if path else self._source, message)

    def _node(self, event: Event, path: str, depth: int) -> Any:  # JSON-shaped: what the schema validates next
        if depth > MAX_YAML_DEPTH:
            raise self._fault(PolicyCode.YAML_FORBIDDEN, path, f"nesting deeper than {MAX_YAML_DEPTH}")
        if isinstance(event, AliasEvent) or getattr(event, "anchor", None) is not None:
            raise self._fault(PolicyCode.YAML_FORBIDDEN, path, "anchors and aliases")
        if getattr(event, "tag", None) is not None:
            raise self._fault(PolicyCode.YAML_FORBIDDEN, path, "tags")
        if isinstance(event, ScalarEvent):
            return self._scalar(event, path)
        if isinstance(event, SequenceStartEvent):
            return self._sequence(path, depth)
        if isinstance(event, MappingStartEvent):
            return self._mapping(path, depth)
        raise self._fault(PolicyCode.YAML_INVALID, path, type(event).__name__)

    def _sequence(self, path: str, depth: int) -> list[Any]:
        values: list[Any] = []
        while not isinstance(event := self._next(), SequenceEndEvent):
            values.append(self._node(event, f"{path}[{len(values)}]", depth + 1))
        return values

    def _mapping(self, path: str, depth: int) -> dict[str, Any]:
        values: dict[str, Any] = {}
        while not isinstance(event := self._next(), MappingEndEvent):
            key = self._node(event, path, depth + 1)
            if not isinstance(key, str):
                raise self._fault(PolicyCode.YAML_INVALID, path, "keys are text")
            place = f"{path}.{key}" if path else key
            if key in values:
                raise self._fault(PolicyCode.KEY_DUPLICATED, place, "this key is there twice")
            following = self._next()
            if key == "version" and isinstance(following, ScalarEvent) and following.style not in ("'", '"'):
                raise self._fault(PolicyCode.VERSION_UNQUOTED, place, "quote versions: YAML reads 3.10 as 3.1")
            values[key] = self._node(following, place, depth + 1)
        return values

    def _scalar(self, event: ScalarEvent, path: str) -> str | int:
        text = str(event.value)
        if event.style is not None:
            return text
        tag = _RESOLVER.resolve(yaml.ScalarNode, text, (True, False))
        if tag in _TEXT_TAGS:
            return text
        if tag == "tag:yaml.org,2002:int" and _INTEGER.fullmatch(text) is not None:
            return int(text)
        raise self._fault(PolicyCode.VALUE_AMBIGUOUS, path, f"quote {text[:40]!r}: readers of YAML disagree on it")


_RESOLVER: Any = Resolver()
