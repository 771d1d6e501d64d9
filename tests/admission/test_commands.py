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


def test_a_store_whose_key_is_gone_is_not_made_anew(tmp_path: Path) -> None:
    secrets(tmp_path, "put", "a", "--from-file", "-", text="hush")
    (tmp_path / "key").unlink()
    with pytest.raises(Refusal) as caught:
        secrets(tmp_path, "put", "a", "--from-file", "-", text="hush")
    assert caught.value.code is ReasonCode.FILE_UNREADABLE
