"""The schemas that the API server checks and the models that admission reads say the same."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from admission import kinds
from admission.trust_objects import UNGOVERNED_NAMESPACES
from tests.deploy.manifests import PLURALS, Case, right_cases, unknown_field_cases, wrong_cases
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence

CRDS = Path(__file__).parents[2] / "deploy" / "crds"
READERS: Mapping[str, Callable[[Mapping[str, Any], str], object]] = {
    "NodeTrustPolicy": kinds.parse_policy,
    "SensitiveWorkload": kinds.parse_workload,
    # Admission reads an attestation only once it holds a result.
    "NodeAttestation": lambda fields, where: kinds.parse_attestation({**fields, "status": {"result": "a.b.c"}}, where),
}
SPECS: Mapping[str, type[BaseModel]] = {
    "NodeTrustPolicy": kinds._PolicySpec,
    "SensitiveWorkload": kinds._WorkloadSpec,
    "NodeAttestation": kinds._AttestationSpec,
}


def crd(kind: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((CRDS / f"{PLURALS[kind]}.yaml").read_text())
    return loaded


def schema(kind: str) -> dict[str, Any]:
    found: dict[str, Any] = crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


@pytest.mark.parametrize("case", [*right_cases()], ids=lambda case: case.name)
def test_admission_reads_what_is_right(case: Case) -> None:
    READERS[case.manifest["kind"]](case.manifest, "test")


@pytest.mark.parametrize("case", [*wrong_cases(), *unknown_field_cases()], ids=lambda case: case.name)
def test_admission_refuses_what_is_wrong(case: Case) -> None:
    with pytest.raises(MalformedEvidence) as caught:
        READERS[case.manifest["kind"]](case.manifest, "test")
    assert caught.value.code is ReasonCode.MANIFEST_INVALID


@pytest.mark.parametrize("kind", SPECS)
def test_schema_and_model_have_the_same_fields_limits_choices_and_defaults(kind: str) -> None:
    model = SPECS[kind].model_json_schema(by_alias=True)
    spec, definitions = schema(kind)["properties"]["spec"], model.get("$defs", {})
    assert _facts(spec, {}) == _facts(model, definitions)
    # Where the model says its pattern; the others are functions, which the manifests above put to the test.
    assert dict(_patterns(model, definitions, "spec")).items() <= dict(_patterns(spec, {}, "spec")).items()


def _resolved(part: Mapping[str, Any], definitions: Mapping[str, Any]) -> Mapping[str, Any]:
    if "$ref" in part:
        part = {**definitions[part["$ref"].rpartition("/")[2]], **{k: v for k, v in part.items() if k != "$ref"}}
    if "anyOf" in part:
        part = next(choice for choice in part["anyOf"] if choice.get("type") != "null")
    return part


def _patterns(part: Mapping[str, Any], definitions: Mapping[str, Any], where: str) -> Iterator[tuple[str, str]]:
    part = _resolved(part, definitions)
    if "pattern" in part:
        yield where, re.sub(r"^\^|^\\A|\$$|\\z$|\\Z$", "", part["pattern"])
    for name, field in part.get("properties", {}).items():
        yield from _patterns(field, definitions, f"{where}.{name}")
    if "items" in part:
        yield from _patterns(part["items"], definitions, f"{where}.0")


def _facts(part: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """What both forms of schema say of a field; what only one of them can say is left to the manifests above."""
    part = _resolved(part, definitions)
    facts: dict[str, Any] = {"type": part.get("type")}
    for name in ("minItems", "maxItems", "minProperties", "maxProperties", "minLength"):
        if name in part:
            facts[name] = part[name]
    if "enum" in part:
        facts["enum"] = sorted(part["enum"])
    if part.get("type") == "object" and "properties" in part:
        facts["required"] = sorted(part.get("required", []))
        facts["fields"] = {name: _facts(field, definitions) for name, field in part["properties"].items()}
        facts["defaults"] = {
            name: field["default"]
            for name, field in part["properties"].items()
            if type(field.get("default")) in (str, bool, int)
        }
    if "items" in part:
        facts["items"] = _facts(part["items"], definitions)
    return facts


@pytest.mark.parametrize("kind", PLURALS)
def test_every_field_is_explained(kind: str) -> None:
    def unexplained(part: Mapping[str, Any], where: str) -> list[str]:
        found = []
        for name, field in part.get("properties", {}).items():
            if where.endswith("conditions") or (not where and name in ("apiVersion", "kind", "metadata")):
                continue
            if "description" not in field:
                found.append(f"{where}.{name}")
            found += unexplained(field, f"{where}.{name}")
        return found + (unexplained(part["items"], where) if "items" in part else [])

    assert "description" in schema(kind)
    assert unexplained(schema(kind), "") == []


@pytest.mark.parametrize("kind", PLURALS)
def test_every_kind_is_cluster_scoped_with_a_status_of_its_own(kind: str) -> None:
    spec = crd(kind)["spec"]
    version = spec["versions"][0]
    assert (spec["scope"], spec["names"]["kind"], version["name"]) == ("Cluster", kind, "v1alpha1")
    assert version["subresources"] == {"status": {}}
    status = version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    assert {"observedGeneration", "conditions"} <= status.keys()
    condition = status["conditions"]["items"]
    assert sorted(condition["required"]) == ["lastTransitionTime", "message", "reason", "status", "type"]


@pytest.mark.parametrize("kind", PLURALS)
def test_no_schema_lets_unknown_fields_through(kind: str) -> None:
    assert "x-kubernetes-preserve-unknown-fields" not in (CRDS / f"{PLURALS[kind]}.yaml").read_text()


def test_the_namespaces_that_are_never_governed_are_the_same_everywhere() -> None:
    rule = schema("SensitiveWorkload")["properties"]["spec"]["properties"]["subjects"]["items"]["properties"][
        "namespace"
    ]["x-kubernetes-validations"][0]["rule"]
    assert set(re.findall(r"'([^']+)'", rule)) == UNGOVERNED_NAMESPACES


def test_there_is_a_file_for_each_kind_and_no_other() -> None:
    assert {path.stem for path in CRDS.glob("*.yaml")} == set(PLURALS.values())
