"""Reviews of any shape: each is decided or refused as malformed, and nothing else ever happens."""

from __future__ import annotations

import copy
import json
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admission.decision import Allow, Deny
from admission.review import answer, parse_review
from admission.webhook import Gates, mutate, validate
from tests.admission.test_webhook import BINDING, NAMESPACE, POD, a_review
from tests.admission.world import NOW, a_cluster
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence

STATE = a_cluster()
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
STEERED = copy.deepcopy(POD)
STEERED["spec"]["affinity"] = {
    "nodeAffinity": {
        REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}], "matchFields": []}]}
    }
}
EXEC = {"kind": "PodExecOptions", "apiVersion": "v1", "stdin": True, "container": "main", "command": ["sh"]}
REVIEWS = [
    a_review(STEERED),
    a_review(BINDING, sub="binding"),
    a_review(POD, operation="UPDATE", oldObject=POD),
    a_review(EXEC, sub="exec", operation="CONNECT"),
    a_review(NAMESPACE, "namespaces", operation="UPDATE", oldObject=NAMESPACE, name="ml"),
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value below `value`."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, child in inner for place in places(child, (*path, key)))]


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    changed = copy.copy(value)
    changed[path[0]] = replaced(value[path[0]], path[1:], new)
    return changed


CHANGED = st.sampled_from(REVIEWS).flatmap(
    lambda review: st.builds(lambda path, new: replaced(review, path, new), st.sampled_from(places(review)), JSON)
)


@settings(max_examples=600)
@given(CHANGED)
def test_a_review_with_any_one_value_changed_to_anything_is_decided_or_malformed(review: Any) -> None:
    try:
        parsed = parse_review(json.dumps(review).encode())
        decision = validate(STATE, parsed, NOW)
        assert isinstance(decision, Allow | Deny)
        assert orjson.loads(answer(parsed, decision))["response"]["uid"] == parsed.uid
        mutate(STATE, parsed, Gates(), NOW)
    except MalformedEvidence as error:
        assert error.code is ReasonCode.REVIEW_MALFORMED


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_malformed(body: bytes) -> None:
    with pytest.raises(MalformedEvidence) as caught:
        parse_review(body)
    assert caught.value.code is ReasonCode.REVIEW_MALFORMED


def test_a_review_cut_short_anywhere_is_malformed() -> None:
    whole = json.dumps(REVIEWS[1]).encode()
    for size in range(len(whole)):
        with pytest.raises(MalformedEvidence):
            parse_review(whole[:size])
    with pytest.raises(MalformedEvidence):
        parse_review(whole + b"}")
