"""The installation on a real API server: schemas, rights and policies as the API server itself judges them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from tests.deploy.manifests import PLURALS, Case, right_cases, unknown_field_cases, wrong_cases
from tests.deploy.rendered import INSTALL, every_manifest, render
from tests.deploy.rights import RIGHTS
from tests.e2e.client import Answer, Client
from tests.e2e.control_plane import ControlPlane

OURS = "/apis/nodewarden.dev/v1alpha1"


def tried(client: Client, case: Case) -> Answer:
    """The API server's answer to the manifest, which it does not store."""
    parameters = {"dryRun": "All", "fieldValidation": "Strict"}
    return client.request("POST", f"{OURS}/{PLURALS[case.manifest['kind']]}", case.manifest, parameters=parameters)


@pytest.fixture(scope="module")
def writers(bare: ControlPlane, controller: Client) -> dict[str, Client]:
    """Who may write each kind."""
    return {"NodeTrustPolicy": bare.admin, "SensitiveWorkload": bare.admin, "NodeAttestation": controller}


@pytest.mark.parametrize("case", [*right_cases()], ids=lambda case: case.name)
def test_the_api_server_takes_what_admission_reads(writers: dict[str, Client], case: Case) -> None:
    answer = tried(writers[case.manifest["kind"]], case)
    assert answer.accepted, answer.message


@pytest.mark.parametrize("case", [*wrong_cases()], ids=lambda case: case.name)
def test_the_api_server_refuses_what_admission_refuses(writers: dict[str, Client], case: Case) -> None:
    assert tried(writers[case.manifest["kind"]], case).status == 422


@pytest.mark.parametrize("case", [*unknown_field_cases()], ids=lambda case: case.name)
def test_a_field_that_no_one_knows_is_refused_under_strict_validation(writers: dict[str, Client], case: Case) -> None:
    assert tried(writers[case.manifest["kind"]], case).status == 400


def test_no_expression_of_a_policy_is_suspicious_to_the_type_checker(bare: ControlPlane) -> None:
    listed = bare.admin.must_get("/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies")["items"]
    ours = [item for item in listed if item["metadata"]["name"].startswith("nodewarden-")]
    wanted = {d["metadata"]["name"] for d in every_manifest() if d["kind"] == "ValidatingAdmissionPolicy"}
    assert {item["metadata"]["name"] for item in ours} == wanted
    assert [item["status"]["typeChecking"] for item in ours if item.get("status", {}).get("typeChecking")] == []


@pytest.mark.parametrize("account", RIGHTS)
def test_the_api_server_grants_each_account_the_listed_rights_and_no_other(bare: ControlPlane, account: str) -> None:
    allowed = {right for right in _every_right() if _may(bare.admin, account, right)}
    assert allowed == RIGHTS[account]


def _every_right() -> set[tuple[str, str, str, str]]:
    listed = set().union(*RIGHTS.values())
    tempting = {
        ("", "secrets", "list", "*"),
        ("", "secrets", "get", "*"),
        ("", "nodewarden-system:secrets", "create", "*"),
        ("", "nodes", "create", "*"),
        ("", "nodes", "delete", "*"),
        ("", "nodes/status", "patch", "*"),
        ("", "nodes/proxy", "get", "*"),
        ("", "pods", "create", "*"),
        ("", "pods/exec", "create", "*"),
        ("", "pods/binding", "create", "*"),
        ("", "serviceaccounts/token", "create", "*"),
        ("nodewarden.dev", "nodetrustpolicies", "update", "*"),
        ("nodewarden.dev", "sensitiveworkloads", "update", "*"),
        ("nodewarden.dev", "secretreleases", "create", "*"),
        ("rbac.authorization.k8s.io", "clusterroles", "update", "*"),
        ("admissionregistration.k8s.io", "validatingadmissionpolicies", "delete", "*"),
        ("admissionregistration.k8s.io", "validatingwebhookconfigurations", "delete", "nodewarden"),
        ("admissionregistration.k8s.io", "validatingwebhookconfigurations", "update", "another"),
        ("coordination.k8s.io", "leases", "update", "*"),
    }
    return listed | tempting


def _may(admin: Client, account: str, right: tuple[str, str, str, str]) -> bool:
    group, place, verb, name = right
    namespace, _, resource = place.rpartition(":")
    resource, _, part = resource.partition("/")
    home = "nodewarden-attester" if account == "attester" else "nodewarden-system"
    asked = {
        "group": group,
        "resource": resource,
        "subresource": part,
        "verb": verb,
        "name": "" if name == "*" else name,
        "namespace": namespace,
    }
    user = {
        "user": f"system:serviceaccount:{home}:{account}",
        "groups": ["system:serviceaccounts", f"system:serviceaccounts:{home}", "system:authenticated"],
        "resourceAttributes": asked,
    }
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": user}
    answer = admin.must_create("/apis/authorization.k8s.io/v1/subjectaccessreviews", body)
    return bool(answer["status"]["allowed"])


def test_explain_has_text_for_every_kind(bare: ControlPlane) -> None:
    document = bare.admin.must_get("/openapi/v3/apis/nodewarden.dev/v1alpha1")
    described = {
        schema["x-kubernetes-group-version-kind"][0]["kind"]: schema.get("description", "")
        for schema in document["components"]["schemas"].values()
        if schema.get("x-kubernetes-group-version-kind", [{}])[0].get("group") == "nodewarden.dev"
    }
    assert all(described[kind] for kind in PLURALS)


def test_the_committed_kinds_are_those_of_the_installation() -> None:
    root = Path(__file__).parents[3] / "deploy" / "crds"
    files = {path.stem: yaml.safe_load(path.read_text()) for path in root.glob("*.yaml")}
    applied = {d["spec"]["names"]["plural"]: d for d in every_manifest() if d["kind"] == "CustomResourceDefinition"}
    assert applied == files


def test_the_committed_rendering_is_the_charts() -> None:
    assert render(required=os.environ.get("CI") == "true") == INSTALL.read_text()
