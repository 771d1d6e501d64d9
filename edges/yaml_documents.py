"""Strict YAML documents: the subset that equals JSON, within limits.

Left out on purpose: anchors and aliases (expansion bombs), tags, duplicate keys (two readers, two meanings), and the
words that YAML 1.1 turns into booleans, dates or sexagesimal numbers (`on`, `2026-12-31`, `1:30`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import yaml

from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence, printable

MAX_FILE_BYTES = 8 * 1024 * 1024
MAX_DOCUMENTS = 20_000
MAX_DEPTH = 32
"""Kubernetes objects nest to about 12 levels."""


_HALF = re.compile(r"[\ud800-\udfff]")
"""A surrogate alone is no character: nothing can write it out again."""


class _StrictLoader(yaml.SafeLoader):
    """Builds only maps with distinct text keys, lists, text, integers, floats, true, false and null."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("an alias")
        event = self.peek_event()  # type: ignore[no-untyped-call]  # - untyped in the stubs
        if getattr(event, "anchor", None) is not None:
            raise yaml.YAMLError("an anchor")
        if getattr(event, "tag", None) is not None:
            raise yaml.YAMLError("a tag")
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise yaml.YAMLError(f"nesting deeper than {MAX_DEPTH}")
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> str:
        value = super().construct_scalar(node)
        if _HALF.search(value):
            raise yaml.YAMLError(f"half a character, line {node.start_mark.line + 1}")
        return value

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - the base class's signature
        seen: set[str] = set()
        for key, _ in node.value:
            if key.tag != "tag:yaml.org,2002:str":
                raise yaml.YAMLError(f"a key that is no text, line {key.start_mark.line + 1}")
            if key.value in seen:
                raise yaml.YAMLError(f"the key {key.value!r} twice, line {key.start_mark.line + 1}")
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


_StrictLoader.yaml_implicit_resolvers = {}
_StrictLoader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"\A(?:null|)\Z"), ["n", ""])
_StrictLoader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"\A(?:true|false)\Z"), ["t", "f"])
_StrictLoader.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(r"\A-?(?:0|[1-9][0-9]{0,17})\Z"), list("-0123456789")
)
_StrictLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"\A-?(?:0|[1-9][0-9]*)\.[0-9]+\Z"), list("-0123456789")
)


def json_documents(text: str, source: str, invalid: ReasonCode) -> Iterator[Any]:
    """The one document of the JSON `text`, as `documents` gives it. Raises MalformedEvidence `invalid`."""
    _require_size(text, source, invalid)
    try:
        document = json.loads(text, object_pairs_hook=_once, parse_constant=_refused)
        # Half of a surrogate pair has no UTF-8.
        json.dumps(document, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise MalformedEvidence(invalid, source, printable(str(error))) from error
    if document is not None:
        yield document


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key twice")
    return result


def _refused(name: str) -> None:
    raise ValueError(name)


def _require_size(text: str, source: str, invalid: ReasonCode) -> None:
    if len(text) > MAX_FILE_BYTES:
        raise MalformedEvidence(invalid, source, f"{len(text)} characters", f"at most {MAX_FILE_BYTES}")


def documents(text: str, source: str, invalid: ReasonCode) -> Iterator[Any]:
    """Each document of `text` as plain values, empty ones left out. `source` names the file in refusals.

    Raises MalformedEvidence with the code `invalid`: what the text was meant to be, a setting or a manifest.
    """
    _require_size(text, source, invalid)
    try:
        for number, document in enumerate(yaml.load_all(text, Loader=_StrictLoader)):
            if number >= MAX_DOCUMENTS:
                raise MalformedEvidence(invalid, source, f"more than {MAX_DOCUMENTS} documents")
            if document is not None:
                yield document
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        detail = " ".join(printable(str(error)).split())
        raise MalformedEvidence(invalid, source, detail) from error
