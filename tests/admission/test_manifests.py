"""Manifests: accepted as written in the vectors, refused for each change that would leave a rule unsaid."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from admission import manifests
from admission.cluster_objects import Pod
from admission.decision import Allow, BindingRequest, Deny, decide_binding, decide_pod_create
from admission.durable_state import DurableSequences, DurableState
from admission.kinds import attestation_manifest, parse_attestation, parse_policy, parse_workload
from admission.manifest_objects import ManifestObjects
from admission.manifests import ManifestClusterView, load_manifests
from admission.pod_tokens import PodTokenVerifier
from admission.results import InMemorySequences, ResultVerifier
from admission.trust_objects import Access, OnLoss
from edges import setting_files
from tests.admission.world import (
    ACCOUNT_UID,
    AUDIENCE,
    ISSUER,
    NODE,
    NODE_UID,
    NOW,
    POD_UID,
    TOKEN_ISSUER,
    Signer,
    a_node,
    a_pod,
    a_policy,
    a_result,
    a_workload,
    token_claims,
)
from verifier.wire.codes import ReasonCode
from verifier.wire.encoding import encode_base64url
from verifier.wire.failures import Failure, MalformedEvidence, Refusal, Unavailable
from verifier.wire.result import AttestationResult, Verdict

VECTORS = Path(__file__).parent.parent / "vectors/manifests"
CLUSTER = (VECTORS / "cluster.yaml").read_text()
Change = Callable[[dict[str, Any]], object]


def document(kind: str) -> dict[str, Any]:
    found: dict[str, Any] = next(d for d in yaml.safe_load_all(CLUSTER) if d["kind"] == kind)
    if kind == "NodeTrustPolicy":
        found["spec"]["exemptions"][0]["expires"] = "2026-12-31T00:00:00Z"
    return found


def test_the_manifests_of_the_vectors_say_what_they_say() -> None:
    objects = load_manifests([VECTORS / "cluster.yaml"])
    policy = objects.policies["h200-prod"]
    assert policy.baselines == {"h200-prod": (4, 1, 0)}
    assert (policy.max_evidence_age_seconds, policy.min_remaining_seconds) == (300, 60)
    assert policy.exemptions[0].expires_at == 1_798_675_200
    workload = objects.workloads["llm"]
    assert workload.images == a_workload().images
    assert [(grant.path, grant.ttl_seconds) for grant in workload.secrets.values()] == [
        ("key.bin", 900),
        ("other", 900),
    ]
    assert objects.nodes[NODE] == a_node()
    pod = objects.pods[("ml", "llm-0")]
    assert isinstance(pod, Pod)
    assert pod.node_name == NODE


def _set(*path: str | int, value: Any) -> Change:
    def change(fields: Any) -> None:
        for step in path[:-1]:
            fields = fields[step]
        fields[path[-1]] = value

    return change


def _drop(*path: str | int) -> Change:
    def change(fields: Any) -> None:
        for step in path[:-1]:
            fields = fields[step]
        del fields[path[-1]]

    return change


@pytest.mark.parametrize(
    "change",
    [
        _set("spec", "accept", value=[]),
        _set("spec", "accept", value=["contraindicated"]),
        _set("spec", "accept", value=["none"]),
        _set("spec", "baselines", value=[]),
        _drop("spec", "baselines"),
        _set("spec", "baselines", 0, "floor", value=4.1),
        _set("spec", "baselines", 0, "floor", value="4.1"),
        _set("spec", "baselines", 0, "floor", value="v4.1.0"),
        _drop("spec", "baselines", 0, "floor"),
        _set("spec", "baselines", value=[{"name": "a", "floor": "1.0.0"}, {"name": "a", "floor": "0.0.1"}]),
        _set("spec", "maxEvidenceAge", value="11m"),
        _set("spec", "maxEvidenceAge", value="0s"),
        _set("spec", "maxEvidenceAge", value=300),
        _set("spec", "minRemainingValidity", value="5m"),
        _set("spec", "enforcementAction", value="dryrun"),
        _set("spec", "exemptions", 0, "expires", value="2026-12-31T00:00:00"),
        _set("spec", "exemptions", 0, "expires", value="never"),
        _drop("spec", "exemptions", 0, "expires"),
        _set("spec", "exemptions", 0, "reason", value=""),
        _set("spec", "onLoss", value={"action": "Ignore"}),
        _set("spec", "onLoss", value={"maxUnverified": "25h"}),
        _set("spec", "onLoss", value={"maxUnverified": "0s"}),
        _set("spec", "onLoss", value={"taint": "yes"}),
        _set("spec", "onLoss", value={"gracePeriodSeconds": 30}),
        _set("spec", "acccept", value=["affirming"]),
        _set("metadata", "name", value="verified"),
        _set("metadata", "name", value="Not-A-Label"),
        _set("apiVersion", value="nodewarden.dev/v1"),
        _drop("spec"),
    ],
)
def test_a_policy_that_leaves_a_rule_unsaid_or_says_an_unknown_one_is_refused(change: Change) -> None:
    fields = document("NodeTrustPolicy")
    parse_policy(fields, "x")
    change(fields)
    with pytest.raises(MalformedEvidence) as caught:
        parse_policy(fields, "x")
    assert caught.value.code is ReasonCode.MANIFEST_INVALID


def test_a_policy_says_what_happens_on_loss_and_what_it_does_not_say_is_the_strict_way() -> None:
    fields = document("NodeTrustPolicy")
    assert parse_policy(fields, "x").on_loss == OnLoss("Evict", 30, "Delete", 1800, taint=False)
    fields["spec"]["onLoss"] = {"action": "None", "maxUnverified": "2h", "taint": True, "gracePeriod": "5s"}
    fields["status"] = {"observedGeneration": 3, "conditions": []}
    assert parse_policy(fields, "x").on_loss == OnLoss("None", 5, "Delete", 7200, taint=True)


def test_a_workload_closes_every_way_into_its_pods_that_it_does_not_open() -> None:
    fields = document("SensitiveWorkload")
    assert parse_workload(fields, "x").access == Access()
    fields["spec"]["access"] = {"portForward": "Allow", "exec": "Deny"}
    fields["status"] = {"pods": {"verified": 8}}
    assert parse_workload(fields, "x").access == Access(port_forward=True)


@pytest.mark.parametrize(
    "change",
    [
        _set("spec", "subjects", value=[]),
        _set("spec", "images", value=[]),
        _set("spec", "images", value=["registry.example/llm:latest"]),
        _set("spec", "images", value=["registry.example/llm:v1@sha256:" + "a" * 64]),
        _set("spec", "images", value=["*@sha256:" + "a" * 64]),
        _drop("spec", "policyRef"),
        _set("spec", "stricter", 0, "selector", "matchLabels", value={}),
        _set("spec", "secrets", 0, "path", value="../key"),
        _set("spec", "secrets", 0, "path", value="a/b"),
        _set("spec", "secrets", 0, "path", value=".."),
        _set("spec", "secrets", 0, "path", value="other"),
        _set("spec", "secrets", 0, "ttl", value="25h"),
        _set("spec", "secrets", 1, "name", value="llm/key"),
        _set("spec", "access", value={"exec": True}),
        _set("spec", "access", value={"exec": "allow"}),
        _set("spec", "access", value={"everything": "Allow"}),
        _set("spec", "subjects", 0, "namespace", value="kube-system"),
        _set("spec", "subjects", 0, "namespace", value="nodewarden-system"),
        _set("spec", "subjects", 0, "namespace", value="nodewarden-attester"),
        _set("spec", "subjects", 0, "serviceAccount", value="*"),
    ],
)
def test_a_workload_that_is_open_or_ambiguous_is_refused(change: Change) -> None:
    fields = document("SensitiveWorkload")
    parse_workload(fields, "x")
    change(fields)
    with pytest.raises(MalformedEvidence) as caught:
        parse_workload(fields, "x")
    assert caught.value.code is ReasonCode.MANIFEST_INVALID


def test_an_attestation_is_read_as_it_is_written_and_names_one_node() -> None:
    fields = attestation_manifest(NODE, NODE_UID, "a.b.c")
    assert parse_attestation(fields, "x").claimed_result == "a.b.c"
    fields["metadata"]["name"] = "gpu-2"
    with pytest.raises(MalformedEvidence) as caught:
        parse_attestation(fields, "x")
    assert caught.value.code is ReasonCode.MANIFEST_INVALID


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "kind: Pod",
        "apiVersion: nodewarden.dev/v1alpha1\nkind: NodeTrustPolice\nmetadata: {name: x}",
        "apiVersion: nodewarden.dev/v2\nkind: NodeTrustPolicy\nmetadata: {name: x}",
        "apiVersion: v1\nkind: Node\nmetadata: {name: x}",
        "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: x}",
        CLUSTER + "\n---\n" + CLUSTER,
    ],
)
def test_a_file_with_an_unreadable_or_repeated_object_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(MalformedEvidence) as caught:
        load_manifests([tmp_path])
    assert caught.value.code is ReasonCode.MANIFEST_INVALID


@pytest.mark.parametrize("version", ["nodewarden.dev", "v1", "nodewarden.io/v1alpha1", "nodewarden.dev/v1"])
@pytest.mark.parametrize("kind", ["SensitiveWorkload", "NodeTrustPolicy"])
def test_our_kinds_under_another_api_version_are_a_fault_and_not_ignored(
    tmp_path: Path, kind: str, version: str
) -> None:
    (tmp_path / "a.yaml").write_text(yaml.safe_dump({**document(kind), "apiVersion": version}))
    with pytest.raises(MalformedEvidence) as caught:
        load_manifests([tmp_path])
    assert caught.value.code is ReasonCode.MANIFEST_INVALID


def test_a_json_file_is_read_as_strictly_as_yaml(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(document("SensitiveWorkload")))
    assert list(load_manifests([tmp_path]).workloads) == ["llm"]
    for text in ("{", '{"kind": "a", "kind": "b"}', "NaN", '"\\ud800"', "[" * 100_000, "[]"):
        path.write_text(text)
        with pytest.raises(MalformedEvidence) as caught:
            load_manifests([tmp_path])
        assert caught.value.code is ReasonCode.MANIFEST_INVALID


def test_a_list_of_one_kind_is_read_as_that_kind(tmp_path: Path) -> None:
    item = {name: value for name, value in document("SensitiveWorkload").items() if name not in ("apiVersion", "kind")}
    found = {"apiVersion": "nodewarden.dev/v1alpha1", "kind": "SensitiveWorkloadList", "items": [item]}
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(found))
    assert list(load_manifests([tmp_path]).workloads) == ["llm"]


def test_verdicts_among_the_manifests_are_named_as_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "verdicts.yaml").write_text("nodes: [{name: gpu-1, verdict: affirming}]")
    with pytest.raises(MalformedEvidence) as caught:
        load_manifests([tmp_path])
    assert caught.value.code is ReasonCode.MANIFEST_INVALID
    assert caught.value.failure.observed == "supposed verdicts"


def test_no_manifest_at_all_is_a_fault_and_so_is_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(Refusal) as caught:
        load_manifests([tmp_path])
    assert caught.value.code is ReasonCode.MANIFEST_INVALID
    with pytest.raises(Refusal) as caught:
        load_manifests([tmp_path / "absent.yaml"])
    assert caught.value.code is ReasonCode.FILE_UNREADABLE


def test_a_list_is_read_as_its_items(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": [document("Node")]}))
    assert list(load_manifests([tmp_path]).nodes) == [NODE]


class Directory:
    """A directory of manifests with its view, and what the view reported."""

    def __init__(self, path: Path) -> None:
        self.path, self.verifier, self.issuer = path, Signer(), Signer()
        self.reported: list[Failure] = []
        (path / "cluster.yaml").write_text(CLUSTER)
        self.attest(a_result())
        results = ResultVerifier(self.verifier.key_set, ISSUER, AUDIENCE, InMemorySequences())
        tokens = PodTokenVerifier(self.issuer.key_set, TOKEN_ISSUER)
        self.seconds = 0.0
        self.view = ManifestClusterView((path,), results, tokens, self.reported.append, lambda: self.seconds)

    def attest(self, result: AttestationResult) -> None:
        self.write("attestation.yaml", yaml.safe_dump(attestation_manifest(NODE, NODE_UID, self.token(result))))

    def token(self, result: AttestationResult) -> str:
        return self.verifier.result(result)

    def write(self, name: str, text: str) -> None:
        temporary = self.path / "new"
        temporary.write_text(text)
        os.replace(temporary, self.path / name)  # noqa: PTH105 - the same as Path.replace

    @property
    def result(self) -> AttestationResult | Failure:
        return self.view.state().result_of(a_node())


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return Directory(tmp_path)


def test_a_view_shows_the_verified_result_of_each_node(directory: Directory) -> None:
    assert directory.result == a_result()
    assert directory.view.state().policy("h200-prod") is not None
    assert a_policy().baselines == {"h200-prod": (4, 1, 0)}


def test_a_newer_result_is_taken_on_the_next_look(directory: Directory) -> None:
    newer = a_result(sequence=NOW * 1000 + 5, issued_at=NOW)
    directory.attest(newer)
    directory.view.reload_if_changed()
    assert directory.result == newer


def test_an_older_result_in_the_file_denies_its_node(directory: Directory) -> None:
    directory.attest(a_result(sequence=NOW * 1000 - 1))
    directory.view.reload_if_changed()
    assert isinstance(directory.result, Failure)
    assert directory.result.code is ReasonCode.RESULT_ROLLED_BACK


def test_a_result_for_another_node_object_denies_that_node(directory: Directory) -> None:
    directory.attest(a_result(sequence=NOW * 1000 + 1, kubernetes_node_uid="another"))
    directory.view.reload_if_changed()
    assert isinstance(directory.result, Failure)
    assert directory.result.code is ReasonCode.RESULT_NODE_MISMATCH


def test_a_result_signed_by_a_stranger_denies_only_its_own_node_and_is_reported(directory: Directory) -> None:
    directory.verifier = Signer()
    directory.attest(a_result(sequence=NOW * 1000 + 1))
    directory.view.reload_if_changed()
    assert isinstance(directory.result, Failure)
    assert directory.result.code is ReasonCode.RESULT_SIGNATURE_INVALID
    assert directory.reported == [directory.result]
    assert directory.view.state().pod("ml", "llm-0") is not None


def test_a_broken_file_leaves_the_last_good_state_and_is_reported_once(directory: Directory) -> None:
    directory.write("cluster.yaml", CLUSTER + "\n---\nkind: x\n")
    directory.view.reload_if_changed()
    directory.view.reload_if_changed()
    assert [failure.code for failure in directory.reported] == [ReasonCode.MANIFEST_INVALID]
    assert directory.view.state().policy("h200-prod") is not None
    directory.write("cluster.yaml", CLUSTER.replace("4.1.0", "5.0.0"))
    directory.view.reload_if_changed()
    policy = directory.view.state().policy("h200-prod")
    assert policy is not None
    assert policy.baselines == {"h200-prod": (5, 0, 0)}


ODD_PODS: list[dict[str, Any]] = [
    {"containers": []},
    {"containers": [{"name": "a", "image": 5}]},
    {"containers": {"a": "b"}},
    {"containers": [{"name": "a"}], "tolerations": [{"key": 1}]},
    {"containers": [{"name": "a"}], "tolerations": [{}] * 70_000},
]


@pytest.mark.parametrize("spec", ODD_PODS)
def test_a_pod_that_cannot_be_read_denies_itself_and_nothing_else(directory: Directory, spec: dict[str, Any]) -> None:
    odd = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", "namespace": "tenant"}, "spec": spec}
    directory.write("tenant.json", json.dumps(odd))
    directory.attest(a_result(sequence=NOW * 1000 + 1, verdict=Verdict.CONTRAINDICATED))
    directory.view.reload_if_changed()
    state = directory.view.state()
    assert state.pod("tenant", "x") is None
    assert state.pod("ml", "llm-0") is not None
    assert getattr(directory.result, "verdict", None) is Verdict.CONTRAINDICATED
    assert [failure.code for failure in directory.reported] == [ReasonCode.MANIFEST_INVALID]


def test_as_many_tolerations_as_kubernetes_stores_are_read(directory: Directory) -> None:
    tolerations = [{"key": f"k{number}", "operator": "Exists"} for number in range(20_000)]
    spec = {"containers": [{"name": "a", "image": "b"}], "tolerations": tolerations}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", "namespace": "tenant"}, "spec": spec}
    directory.write("tenant.json", json.dumps(pod))
    directory.view.reload_if_changed()
    found = directory.view.state().pod("tenant", "x")
    assert found is not None
    assert len(found.tolerations) == 20_000


def test_a_fault_that_passes_is_tried_again_although_no_file_changed(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory.attest(a_result(sequence=NOW * 1000 + 1, verdict=Verdict.CONTRAINDICATED))

    def out_of_descriptors(path: Path, max_bytes: int) -> bytes:
        raise Unavailable(ReasonCode.FILE_UNREADABLE, str(path), "EMFILE")

    with monkeypatch.context() as patch:
        patch.setattr(setting_files, "read_bounded", out_of_descriptors)
        directory.view.reload_if_changed()
        assert directory.result == a_result()
    directory.view.reload_if_changed()
    assert getattr(directory.result, "verdict", None) is Verdict.CONTRAINDICATED


def test_a_result_that_could_not_be_judged_denies_and_is_judged_again(directory: Directory, tmp_path: Path) -> None:
    state = DurableState(tmp_path / "state")
    state._connection.execute("PRAGMA busy_timeout=50")
    directory.view._verifier._sequences = DurableSequences(state)
    directory.attest(a_result(sequence=NOW * 1000 + 1))
    other = sqlite3.connect(tmp_path / "state", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    directory.view.reload_if_changed()
    assert getattr(directory.result, "code", None) is ReasonCode.STORE_UNAVAILABLE
    directory.view.reload_if_changed()
    assert [failure.code for failure in directory.reported] == [ReasonCode.STORE_UNAVAILABLE]
    other.execute("ROLLBACK")
    other.close()
    directory.view.reload_if_changed()
    assert directory.result == a_result(sequence=NOW * 1000 + 1)
    state.close()


def test_a_view_that_cannot_be_read_for_30_seconds_allows_nothing(directory: Directory) -> None:
    directory.write("broken.yaml", "kind: x")
    directory.view.reload_if_changed()
    directory.seconds = manifests.MAX_SILENCE_SECONDS - 1
    binding = BindingRequest("ml", "llm-0", POD_UID, NODE)
    assert isinstance(decide_binding(directory.view.state(), binding, NOW), Allow)
    assert directory.view.unready() is None
    directory.seconds = manifests.MAX_SILENCE_SECONDS
    denied = decide_binding(directory.view.state(), binding, NOW)
    assert isinstance(denied, Deny)
    assert [failure.code for failure in denied.failures] == [ReasonCode.VIEW_STALE]
    # Also where no rule was known: a new one may be in the file that cannot be read.
    created = decide_pod_create(directory.view.state(), a_pod(namespace="free"), NOW)
    assert isinstance(created, Deny)
    assert directory.view.unready() is not None
    (directory.path / "broken.yaml").unlink()
    directory.view.reload_if_changed()
    assert isinstance(decide_binding(directory.view.state(), binding, NOW), Allow)


def test_a_fault_that_stays_is_reported_again_after_a_while(directory: Directory) -> None:
    directory.write("broken.yaml", "kind: x")
    for directory.seconds in (0.0, 2.0, 59.0, 60.0, 61.0):
        directory.view.reload_if_changed()
    assert len(directory.reported) == 2


@pytest.mark.parametrize("key_id", ["key-1", "key-2"])
def test_what_a_withdrawn_key_signed_counts_no_more(directory: Directory, key_id: str) -> None:
    directory.view._verifier._keys = Signer(key_id).key_set
    directory.view.reload_if_changed()
    assert getattr(directory.result, "code", None) is ReasonCode.RESULT_SIGNATURE_INVALID


@pytest.mark.parametrize(
    "header",
    [
        {"typ": "eat+jwt", "alg": ["ES256"], "kid": "key-1"},
        {"typ": "eat+jwt", "alg": "ES256", "kid": ["key-1"]},
        {"typ": "eat+jwt", "alg": {}, "kid": {}},
        {"typ": ["eat+jwt"], "alg": "ES256", "kid": "key-1"},
        [],
    ],
)
def test_a_hostile_result_denies_its_own_node_alone(directory: Directory, header: Any) -> None:
    token = f"{encode_base64url(json.dumps(header).encode())}.e30.AAAA"
    directory.write("bad.yaml", yaml.safe_dump(attestation_manifest("gpu-9", "u9", token)))
    directory.attest(a_result(sequence=NOW * 1000 + 1))
    directory.view.reload_if_changed()
    assert directory.result == a_result(sequence=NOW * 1000 + 1)
    bad = directory.view.state().results["gpu-9"]
    assert isinstance(bad, Failure)
    assert bad.code is ReasonCode.RESULT_MALFORMED


def test_a_node_whose_attestation_says_that_it_runs_pods_with_host_access_is_denied(directory: Directory) -> None:
    directory.attest(a_result(sequence=NOW * 1000 + 1))
    directory.view.reload_if_changed()
    assert directory.result == a_result(sequence=NOW * 1000 + 1)
    fields = attestation_manifest(NODE, NODE_UID, directory.token(a_result(sequence=NOW * 1000 + 2)))
    against = {"type": "Labelled", "status": "False", "reason": "HostAccess", "message": "runs ml/root"}
    fields["status"]["conditions"] = [against]
    directory.write("attestation.yaml", yaml.safe_dump(fields))
    directory.view.reload_if_changed()
    assert getattr(directory.result, "code", None) is ReasonCode.NODE_RUNS_INTRUDER


def test_what_no_library_foresaw_denies_its_own_node_alone(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory.attest(a_result(sequence=NOW * 1000 + 1))
    monkeypatch.setattr(directory.view._verifier, "verify", lambda token: 1 // len(token[:0]))
    directory.view.reload_if_changed()
    assert getattr(directory.result, "code", None) is ReasonCode.RESULT_MALFORMED
    assert directory.view.state().pod("ml", "llm-0") is not None


def test_only_a_file_that_changed_is_parsed_again(directory: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    whole = manifests._read

    def noted(path: Path) -> ManifestObjects:
        read.append(path.name)
        return whole(path)

    monkeypatch.setattr(manifests, "_read", noted)
    directory.attest(a_result(sequence=NOW * 1000 + 1))
    directory.view.reload_if_changed()
    assert read == ["attestation.yaml"]


def test_a_pipe_among_the_manifests_does_not_hold_the_reload(directory: Directory) -> None:
    os.mkfifo(directory.path / "a.yaml")
    directory.view.reload_if_changed()
    assert [failure.code for failure in directory.reported] == [ReasonCode.FILE_UNREADABLE]


def test_a_first_load_that_fails_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("kind: x")
    results = ResultVerifier(Signer().key_set, ISSUER, AUDIENCE, InMemorySequences())
    with pytest.raises(MalformedEvidence) as caught:
        ManifestClusterView((tmp_path,), results, None, lambda _: None)
    assert caught.value.code is ReasonCode.MANIFEST_INVALID


def test_a_token_of_a_recreated_service_account_is_refused(directory: Directory) -> None:
    token = directory.issuer.token(token_claims())
    before, identity = directory.view.state(), directory.view.check_token(token, NOW)
    assert identity.pod_name == "llm-0"
    directory.write("cluster.yaml", CLUSTER.replace(ACCOUNT_UID, "new"))
    directory.view.reload_if_changed()
    # Each state answers for itself: that of the decision is the one that is asked.
    assert before.account_failure(identity) is None
    assert getattr(directory.view.state().account_failure(identity), "code", None) is ReasonCode.TOKEN_INVALID


def test_a_result_under_a_new_key_counts_as_soon_as_the_key_is_known(directory: Directory) -> None:
    old, new = directory.verifier, Signer("key-2")
    known = [old.key_set()]
    directory.view._verifier._keys = lambda: known[0]
    directory.verifier = new
    directory.attest(a_result(sequence=NOW * 1000 + 1))
    directory.view.reload_if_changed()
    assert getattr(directory.result, "code", None) is ReasonCode.RESULT_SIGNATURE_INVALID
    known[0] = new.key_set()
    directory.view.reload_if_changed()
    assert directory.result == a_result(sequence=NOW * 1000 + 1)
