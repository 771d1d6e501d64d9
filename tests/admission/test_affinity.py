"""Steering: for every pod and every node, the new affinity matches exactly the old nodes that carry our label."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from admission.affinity import steered_affinity
from admission.decision import steer
from tests.admission.world import NODE, NOW, a_cluster, a_pod

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
LABEL = "nodewarden.node-restriction.kubernetes.io/h200-prod"

KEYS = st.sampled_from(["zone", "gpu", LABEL])
VALUES = st.sampled_from(["a", "b", "true"])
REQUIREMENT = st.one_of(
    st.fixed_dictionaries(
        {"key": KEYS, "operator": st.sampled_from(["In", "NotIn"]), "values": st.lists(VALUES, min_size=1, max_size=2)}
    ),
    st.fixed_dictionaries({"key": KEYS, "operator": st.sampled_from(["Exists", "DoesNotExist"])}),
)
FIELD = st.fixed_dictionaries(
    {"key": st.just("metadata.name"), "operator": st.just("In"), "values": st.lists(st.just(NODE), min_size=1)}
)
TERM = st.fixed_dictionaries(
    {}, optional={"matchExpressions": st.lists(REQUIREMENT, max_size=3), "matchFields": st.lists(FIELD, max_size=1)}
)
AFFINITY = st.one_of(
    st.just({}),
    st.just({"podAntiAffinity": {"x": []}}),
    st.builds(lambda terms: {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}, st.lists(TERM, max_size=4)),
)
LABELS = st.dictionaries(KEYS, VALUES, max_size=3)


def holds(requirement: dict[str, Any], labels: dict[str, str]) -> bool:
    value = labels.get(requirement["key"])
    match requirement["operator"]:
        case "In":
            return value in requirement["values"]
        case "NotIn":
            return value not in requirement["values"]
        case "Exists":
            return value is not None
        case _:
            return value is None


def matches(affinity: dict[str, Any], name: str, labels: dict[str, str]) -> bool:
    """What the scheduler's NodeAffinity plugin decides for the required part."""
    required = affinity.get("nodeAffinity", {}).get(REQUIRED)
    if required is None:
        return True
    for term in required["nodeSelectorTerms"]:
        expressions, fields = term.get("matchExpressions", []), term.get("matchFields", [])
        alike = all(holds(e, labels) for e in expressions) and all(holds(f, {"metadata.name": name}) for f in fields)
        if (expressions or fields) and alike:
            return True
    return False


@given(AFFINITY, LABELS, st.sampled_from([NODE, "gpu-2"]))
def test_the_steered_affinity_matches_exactly_the_old_nodes_that_carry_the_label(
    affinity: dict[str, Any], labels: dict[str, str], name: str
) -> None:
    steered = steered_affinity(affinity, ("h200-prod",))
    wanted = matches(affinity, name, labels) and labels.get(LABEL) == "true"
    assert matches(affinity if steered is None else steered, name, labels) == wanted


@given(AFFINITY)
def test_steering_twice_changes_nothing_more(affinity: dict[str, Any]) -> None:
    steered = steered_affinity(affinity, ("h200-prod", "h200-gold"))
    assert steered is None or steered_affinity(steered, ("h200-prod", "h200-gold")) is None


def test_every_alternative_term_gets_the_requirement_because_one_without_it_would_let_the_pod_anywhere() -> None:
    terms = [{"matchExpressions": [{"key": "zone", "operator": "Exists"}]}, {"matchFields": [{"key": "metadata.name"}]}]
    steered = steered_affinity({"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}, ("h200-prod",))
    assert steered is not None
    wanted = {"key": LABEL, "operator": "In", "values": ["true"]}
    for term in steered["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]:
        assert wanted in term["matchExpressions"]


def test_an_empty_term_stays_empty_because_it_matches_no_node() -> None:
    affinity: dict[str, Any] = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{}]}}}
    assert steered_affinity(affinity, ("h200-prod",)) is None


def test_preferences_and_other_affinities_are_kept() -> None:
    affinity = {"podAffinity": {"a": 1}, "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [1]}}
    steered = steered_affinity(affinity, ("h200-prod",))
    assert steered is not None
    assert steered["podAffinity"] == {"a": 1}
    assert steered["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"] == [1]


def test_a_pod_with_a_node_name_is_not_steered_because_no_scheduler_will_place_it() -> None:
    assert steer(a_cluster(), a_pod(), {}, NOW) is not None
    assert steer(a_cluster(), a_pod(node_name=NODE), {}, NOW) is None
