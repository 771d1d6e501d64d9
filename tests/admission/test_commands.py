"""The commands: the offline test for CI, and the sealed store from the shell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner

from admission.commands import admission_app, test_manifests
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Refusal

VECTORS = Path(__file__).parent.parent / "vectors/manifests"
TRUST = "cluster.yaml"
runner = CliRunner()
app = typer.Typer()
app.command("test")(test_manifests)
app.command("other")(lambda: None)
test_manifests.__test__ = False  # type: ignore[attr-defined]  # - pytest would collect the command by its name


def run(*arguments: str | Path, expect: int = 0, text: str = "", which: typer.Typer = app) -> str:
    done = runner.invoke(which, [str(argument) for argument in arguments], input=text)
    if isinstance(done.exception, Refusal):
        raise done.exception
    assert done.exit_code == expect, done.output
    return done.stdout


def offline(*manifests: Path, nodes: Path = VECTORS / "verdicts.yaml", expect: int = 0) -> dict[str, Any]:
    flags = [flag for path in manifests for flag in ("-f", str(path))]
    found: dict[str, Any] = json.loads(run("test", *flags, "--nodes", nodes, "--json", expect=expect))
    return found


def code_of(*manifests: Path, nodes: Path = VECTORS / "verdicts.yaml") -> ReasonCode:
    with pytest.raises(Refusal) as caught:
        offline(*manifests, nodes=nodes)
    return caught.value.code


def rules(tmp_path: Path, **spec: Any) -> Path:
    """The policies and workloads of the vectors without their pod, with changes to the workload."""
    documents = [d for d in yaml.safe_load_all((VECTORS / TRUST).read_text()) if d["kind"] not in ("Pod", "Node")]
    for document in documents:
        if document["kind"] == "SensitiveWorkload":
            document["spec"] |= spec
        if document["kind"] == "NodeTrustPolicy":
            document["spec"]["exemptions"] = []
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump_all(documents))
    return path


def test_the_offline_test_says_where_each_pod_may_run_and_why_not_elsewhere(tmp_path: Path) -> None:
    found = offline(rules(tmp_path), VECTORS / "workloads.yaml")
    pods = {pod["pod"]: pod for pod in found["pods"]}
    llm = pods["ml/deployment/llm"]
    assert found["ok"] is True
    assert (llm["sensitive"], llm["nodes"], llm["policies"]) == (True, ["gpu-1"], ["h200-prod"])
    refused = {node: [failure["code"] for failure in failures] for node, failures in llm["refused"].items()}
    assert refused == {
        "gpu-2": [ReasonCode.NODE_NOT_VERIFIED.value],
        "gpu-3": [ReasonCode.BASELINE_BELOW_FLOOR.value],
        "gpu-4": [ReasonCode.BOOT_MISMATCH.value],
    }
    report = pods["ml/cronjob/report"]
    assert (report["sensitive"], len(report["nodes"])) == (False, 4)


def test_a_pod_set_onto_a_node_is_tested_on_that_node_alone() -> None:
    found = offline(VECTORS / TRUST)
    assert found["pods"][0]["nodes"] == ["gpu-1"]


def test_a_pod_that_is_denied_outright_fails_the_test(tmp_path: Path) -> None:
    path = rules(tmp_path, images=["registry.example/other@sha256:" + "b" * 64])
    found = offline(path, VECTORS / "workloads.yaml", expect=1)
    denied = next(pod for pod in found["pods"] if pod["sensitive"])["denied"]
    assert [failure["code"] for failure in denied] == [ReasonCode.WORKLOAD_IMAGE_NOT_ALLOWED.value]


def test_a_pod_that_may_run_nowhere_fails_the_test(tmp_path: Path) -> None:
    nodes = tmp_path / "verdicts.yaml"
    nodes.write_text("nodes: [{name: gpu-2, verdict: none}]")
    found = offline(rules(tmp_path), VECTORS / "workloads.yaml", nodes=nodes, expect=1)
    assert found["ok"] is False


def test_the_text_for_people_names_node_reason_and_remedy(tmp_path: Path) -> None:
    nodes = VECTORS / "verdicts.yaml"
    text = run("test", "-f", rules(tmp_path), "-f", VECTORS / "workloads.yaml", "--nodes", nodes)
    assert "may run on: gpu-1" in text
    assert "not on gpu-2: node-not-verified" in text
    assert ReasonCode.BOOT_MISMATCH.remedy in text


def test_testing_nothing_does_not_pass(tmp_path: Path) -> None:
    assert code_of(rules(tmp_path)) is ReasonCode.MANIFEST_INVALID


def test_a_test_without_any_sensitive_workload_is_refused(tmp_path: Path) -> None:
    assert code_of(VECTORS / "workloads.yaml") is ReasonCode.MANIFEST_INVALID


LLM_SPEC = {"serviceAccountName": "llm", "containers": [{"name": "c", "image": "evil:latest"}]}


def a_manifest(tmp_path: Path, api: str, kind: str, **fields: Any) -> Path:
    path = tmp_path / "more.yaml"
    path.write_text(
        yaml.safe_dump({"apiVersion": api, "kind": kind, "metadata": {"name": "x", "namespace": "ml"}, **fields})
    )
    return path


@pytest.mark.parametrize(
    ("api", "kind", "fields"),
    [
        ("v1", "ReplicationController", {"spec": {"template": {"spec": LLM_SPEC}}}),
        ("v1", "PodTemplate", {"template": {"spec": LLM_SPEC}}),
        ("v1", "PodList", {"items": [{"metadata": {"name": "p", "namespace": "ml"}, "spec": LLM_SPEC}]}),
        (
            "apps/v1",
            "DeploymentList",
            {"items": [{"metadata": {"name": "p", "namespace": "ml"}, "spec": {"template": {"spec": LLM_SPEC}}}]},
        ),
    ],
)
def test_each_built_in_kind_that_makes_pods_is_tested(
    tmp_path: Path, api: str, kind: str, fields: dict[str, Any]
) -> None:
    found = offline(rules(tmp_path), a_manifest(tmp_path, api, kind, **fields), expect=1)
    assert [failure["code"] for pod in found["pods"] for failure in pod["denied"]] == [
        ReasonCode.WORKLOAD_IMAGE_NOT_ALLOWED.value
    ]


@pytest.mark.parametrize(
    "spec",
    [
        {"replicatedJobs": [{"name": "w", "template": {"spec": {"template": {"spec": LLM_SPEC}}}}]},
        {"templates": [{"name": "w", "container": {"image": "evil"}}]},
        {"worker": {"initContainers": [{"image": "evil"}]}},
    ],
)
def test_a_kind_that_makes_pods_in_its_own_way_is_refused_and_not_left_out(
    tmp_path: Path, spec: dict[str, Any]
) -> None:
    more = a_manifest(tmp_path, "jobset.x-k8s.io/v1alpha2", "JobSet", spec=spec)
    assert code_of(rules(tmp_path), VECTORS / "workloads.yaml", more) is ReasonCode.MANIFEST_INVALID


def test_a_kind_without_containers_is_left_out(tmp_path: Path) -> None:
    more = a_manifest(tmp_path, "example.com/v1", "Other", spec={"containers": ["a"], "image": "b"})
    assert offline(rules(tmp_path), VECTORS / "workloads.yaml", more)["ok"] is True


def test_manifests_with_the_account_that_they_make_are_tested(tmp_path: Path) -> None:
    account = a_manifest(tmp_path, "v1", "ServiceAccount")
    assert offline(rules(tmp_path), VECTORS / "workloads.yaml", account)["ok"] is True


def test_two_templates_of_one_name_are_refused(tmp_path: Path) -> None:
    one = a_manifest(tmp_path, "apps/v1", "Deployment", spec={"template": {"spec": LLM_SPEC}})
    one.write_text(one.read_text() + "---\n" + one.read_text())
    assert code_of(rules(tmp_path), one) is ReasonCode.MANIFEST_INVALID


def test_a_pod_that_cannot_be_read_is_refused_and_not_left_out(tmp_path: Path) -> None:
    more = a_manifest(tmp_path, "v1", "Pod", spec={"containers": []})
    assert code_of(rules(tmp_path), VECTORS / "workloads.yaml", more) is ReasonCode.MANIFEST_INVALID


def test_names_with_line_breaks_forge_no_line_of_the_report(tmp_path: Path) -> None:
    spec = {**LLM_SPEC, "nodeName": "n\nok   pod ml/other: not sensitive"}
    more = a_manifest(tmp_path, "v1", "Pod", spec=spec)
    document = yaml.safe_load(more.read_text())
    document["metadata"]["name"] = "x: not sensitive\nok   pod ml/forged\x1b[2K"
    more.write_text(json.dumps(document))
    nodes = VECTORS / "verdicts.yaml"
    text = run("test", "-f", rules(tmp_path), "-f", more, "--nodes", nodes, expect=1)
    assert not any(line.startswith("ok ") for line in text.splitlines())
    assert "\x1b" not in text


def test_half_a_character_is_refused(tmp_path: Path) -> None:
    more = tmp_path / "half.yaml"
    more.write_text('apiVersion: v1\nkind: Pod\nmetadata: {name: "\\ud800"}\nspec: {containers: [{name: c}]}')
    assert code_of(rules(tmp_path), more) is ReasonCode.MANIFEST_INVALID


@pytest.mark.parametrize(
    "text",
    [
        "nodes: []",
        "{}",
        "nodes: [{name: a}]",
        "nodes: [{name: a, verdict: good}]",
        "nodes: [{name: a, verdict: affirming, trust: me}]",
        "nodes: [{name: a, verdict: none}, {name: a, verdict: none}]",
        "nodes: [{name: a, verdict: none}]\n---\nnodes: []",
    ],
)
def test_verdicts_without_the_documented_form_are_refused(tmp_path: Path, text: str) -> None:
    nodes = tmp_path / "verdicts.yaml"
    nodes.write_text(text)
    assert code_of(VECTORS / TRUST, nodes=nodes) is ReasonCode.MANIFEST_INVALID


# --- the sealed store ---


def secrets(tmp_path: Path, *arguments: str, text: str = "") -> str:
    place = ["--store", str(tmp_path / "secrets"), "--key", str(tmp_path / "key")]
    return run("secrets", *arguments, *place, text=text, which=admission_app)


def test_a_secret_is_put_from_standard_input_or_a_file_and_listed_by_name_only(tmp_path: Path) -> None:
    assert secrets(tmp_path, "put", "llm/key", "--from-file", "-", text="hush") == "llm/key version 1\n"
    (tmp_path / "content").write_text("hush again")
    assert secrets(tmp_path, "put", "llm/key", "--from-file", str(tmp_path / "content")) == "llm/key version 2\n"
    listed = secrets(tmp_path, "list", "--json")
    assert json.loads(listed) == {"secrets": [{"name": "llm/key", "version": 2}]}
    assert "hush" not in listed + secrets(tmp_path, "list")
    secrets(tmp_path, "delete", "llm/key")
    assert json.loads(secrets(tmp_path, "list", "--json")) == {"secrets": []}


def test_a_secret_name_that_is_a_path_trick_is_refused(tmp_path: Path) -> None:
    for name in ("../key", "/key", "a b", "key/"):
        with pytest.raises(Refusal) as caught:
            secrets(tmp_path, "put", name, "--from-file", "-", text="hush")
        assert caught.value.code is ReasonCode.SETTING_INVALID
    assert list(tmp_path.iterdir()) == []


def test_a_refused_first_secret_leaves_no_store_behind(tmp_path: Path) -> None:
    for text in ("", "x" * 70_000):
        with pytest.raises(Refusal) as caught:
            secrets(tmp_path, "put", "a", "--from-file", "-", text=text)
        assert caught.value.code is ReasonCode.BODY_TOO_LARGE
    assert list(tmp_path.iterdir()) == []


def test_a_store_whose_key_is_gone_is_not_made_anew(tmp_path: Path) -> None:
    secrets(tmp_path, "put", "a", "--from-file", "-", text="hush")
    (tmp_path / "key").unlink()
    with pytest.raises(Refusal) as caught:
        secrets(tmp_path, "put", "a", "--from-file", "-", text="hush")
    assert caught.value.code is ReasonCode.FILE_UNREADABLE
