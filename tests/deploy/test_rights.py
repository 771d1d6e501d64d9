"""Least privilege: what the installation grants is what tests/deploy/rights.py lists, and the code asks for no more."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import pytest

from tests.deploy.rendered import ROOT, Manifest, every_manifest, installed
from tests.deploy.rights import POLICY_REPORTS, RIGHTS, Right

ROLES = ("ClusterRole", "Role")
KNOWN_PLURALS = {
    "bindings",
    "clusterrolebindings",
    "clusterroles",
    "configmaps",
    "customresourcedefinitions",
    "daemonsets",
    "deployments",
    "endpoints",
    "endpointslices",
    "events",
    "eviction",
    "leases",
    "mutatingwebhookconfigurations",
    "namespaces",
    "nodeattestations",
    "nodes",
    "nodetrustpolicies",
    "persistentvolumeclaims",
    "policyreports",
    "pods",
    "replicasets",
    "rolebindings",
    "roles",
    "secretreleases",
    "secrets",
    "sensitiveworkloads",
    "serviceaccounts",
    "services",
    "subjectaccessreviews",
    "tokenreviews",
    "validatingadmissionpolicies",
    "validatingwebhookconfigurations",
    "verifiednodesets",
}
"""Resources that code might ask for, by the names that stand in addresses."""


def granted(account: str) -> Iterator[Right]:
    for kind in ROLES:
        for binding in installed(f"{kind}Binding").values():
            if account in {subject["name"] for subject in binding["subjects"]}:
                assert binding["roleRef"]["kind"] == kind
                yield from rights_of(installed(kind)[binding["roleRef"]["name"]])


def rights_of(role: Manifest) -> Iterator[Right]:
    """Every right that the role grants."""
    place = f"{role['metadata']['namespace']}:" if role["kind"] == "Role" else ""
    for rule in role["rules"]:
        names = rule.get("resourceNames", ["*"])
        for group, resource, verb, name in itertools.product(
            rule["apiGroups"], rule["resources"], rule["verbs"], names
        ):
            yield group, place + resource, verb, name


@pytest.mark.parametrize("account", RIGHTS)
def test_each_account_has_exactly_the_rights_that_are_listed(account: str) -> None:
    found = list(granted(account))
    assert set(found) == RIGHTS[account]
    assert len(found) == len(set(found))


def test_every_account_of_ours_is_listed() -> None:
    assert installed("ServiceAccount").keys() == RIGHTS.keys()


def test_no_rule_has_a_wildcard() -> None:
    for kind in ROLES:
        for role in installed(kind).values():
            for rule in role["rules"]:
                assert rule.keys() <= {"apiGroups", "resources", "verbs", "resourceNames"}
                assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]


@pytest.mark.parametrize("account", RIGHTS)
def test_no_account_can_read_secrets_mint_tokens_escalate_or_enter_pods(account: str) -> None:
    for group, resource, verb, name in granted(account):
        place, _, bare = resource.rpartition(":")
        assert verb not in {"escalate", "bind", "impersonate", "deletecollection"}
        assert bare not in {"pods/exec", "pods/attach", "nodes/proxy", "serviceaccounts/token"}
        assert group != "rbac.authorization.k8s.io"
        if bare in {"secrets", "configmaps"}:
            assert place == "nodewarden-system"
            assert name != "*"


def test_bindings_name_accounts_that_exist_where_they_are() -> None:
    accounts = {
        (d["metadata"]["namespace"], d["metadata"]["name"]) for d in every_manifest() if d["kind"] == "ServiceAccount"
    }
    for kind in ROLES:
        for binding in installed(f"{kind}Binding").values():
            for subject in binding["subjects"]:
                assert subject["kind"] == "ServiceAccount"
                assert (subject["namespace"], subject["name"]) in accounts


def test_rights_and_code_name_the_same_resources() -> None:
    # uninstall.py runs with an administrator's rights, none of the installation's.
    sources = [path for path in (ROOT / "admission").rglob("*.py") if path.name != "uninstall.py"]
    text = "\n".join(line for path in sources for line in path.read_text().splitlines() if "/" in line or '"' in line)
    named = {part for part in re.findall(r"[\"/{}]([a-z]{4,})(?=[\"/?])", text) if part in KNOWN_PLURALS}
    granted_resources = {
        part
        for rights in (*RIGHTS.values(), POLICY_REPORTS)
        for _, resource, _, _ in rights
        for part in resource.rpartition(":")[2].split("/")
    }
    # "namespaces" stands in every address below one, and "bindings" is what the webhook is asked about.
    assert named - {"namespaces", "bindings"} == granted_resources - {"status"}
