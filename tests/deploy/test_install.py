"""The installation as it is committed: consistent in itself, and with the code that it starts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from admission.controller.settings import ControllerSettings
from admission.pod_tokens import BROKER_AUDIENCE
from admission.settings import BrokerSettings, WebhookSettings
from admission.trust_objects import UNGOVERNED_NAMESPACES
from attester.settings import AttesterSettings
from tests.deploy.rendered import INSTALL, Manifest, every_manifest, installed, pod_templates, render
from verifier.settings import Settings

OURS = {"nodewarden-system", "nodewarden-attester"}
SETTINGS: tuple[tuple[str, str, type[BaseModel]], ...] = (
    ("nodewarden-verifier", "verifier.yaml", Settings),
    ("nodewarden-webhook", "webhook.yaml", WebhookSettings),
    ("nodewarden-controller", "controller.yaml", ControllerSettings),
    ("nodewarden-broker", "broker.yaml", BrokerSettings),
    ("nodewarden-attester", "attester.yaml", AttesterSettings),
)


def settings_of(name: str, file: str, model: type[BaseModel]) -> Any:
    fields = yaml.safe_load(installed("ConfigMap")[name]["data"][file])
    if model is AttesterSettings:
        fields["node_name"] = "by-the-environment"
    return model.model_validate(fields)


def containers(template: Manifest) -> list[Manifest]:
    spec = template["spec"]
    return [*spec.get("initContainers", []), *spec["containers"]]


def test_the_committed_rendering_is_the_charts() -> None:
    assert render() == INSTALL.read_text()


@pytest.mark.parametrize(("name", "file", "model"), SETTINGS)
def test_every_part_reads_its_settings(name: str, file: str, model: type[BaseModel]) -> None:
    settings_of(name, file, model)


def test_everything_lives_in_our_namespaces_or_in_none() -> None:
    namespaces = {d["metadata"].get("namespace") for d in every_manifest()}
    assert namespaces == {None, *OURS}
    assert set(installed("Namespace")) == OURS


def test_ports_are_those_of_the_settings() -> None:
    verifier = settings_of(*SETTINGS[0])
    webhook, broker, controller = (settings_of(*SETTINGS[number]) for number in (1, 3, 2))
    templates = pod_templates()
    expected = {
        "nodewarden-verifier": verifier.listen_port,
        "nodewarden-webhook": webhook.listen.port,
        "nodewarden-broker": broker.listen.port,
        "nodewarden-controller": controller.health.port,
    }
    for name, port in expected.items():
        (container,) = templates[name]["spec"]["containers"]
        assert [p["containerPort"] for p in container["ports"]] == [port], name
    services = {name: service["spec"]["ports"][0]["port"] for name, service in installed("Service").items()}
    attester = settings_of(*SETTINGS[4])
    assert (
        attester.verifier_url == f"https://nodewarden-verifier.nodewarden-system.svc:{services['nodewarden-verifier']}"
    )
    assert attester.broker_url == f"https://nodewarden-broker.nodewarden-system.svc:{services['nodewarden-broker']}"
    assert controller.verifier.url == attester.verifier_url
    assert {webhook.results.jwks_url, broker.results.jwks_url, controller.results.jwks_url} == {
        f"{attester.verifier_url}/.well-known/jwks.json"
    }
    assert "nodewarden-verifier.nodewarden-system.svc" in verifier.tls_names
    assert services["nodewarden-webhook"] == 443


def test_every_part_believes_the_same_verifier_for_the_same_cluster() -> None:
    verifier, webhook, controller, broker, attester = (settings_of(*part) for part in SETTINGS)
    for part in (webhook, controller, broker):
        assert (part.results.issuer, part.results.audience) == (verifier.issuer, verifier.audience)
    assert attester.verifier_id == verifier.issuer
    template = pod_templates()["nodewarden-verifier"]
    (command,) = [" ".join(c["command"]) for c in containers(template) if c["name"] == "first-start"]
    assert f"--issuer '{verifier.issuer}'" in command
    assert f"--audience '{verifier.audience}'" in command


def test_services_and_budgets_select_their_pods() -> None:
    templates = pod_templates()
    for name, service in installed("Service").items():
        assert service["spec"]["selector"].items() <= templates[name]["metadata"]["labels"].items()
        ports = {p["name"] for c in templates[name]["spec"]["containers"] for p in c["ports"]}
        assert {p["targetPort"] for p in service["spec"]["ports"]} <= ports
    for name, budget in installed("PodDisruptionBudget").items():
        assert budget["spec"]["selector"]["matchLabels"].items() <= templates[name]["metadata"]["labels"].items()
    for name, policy in installed("NetworkPolicy").items():
        assert policy["spec"]["podSelector"]["matchLabels"].items() <= templates[name]["metadata"]["labels"].items()
        assert policy["metadata"]["namespace"] in OURS
    assert installed("NetworkPolicy").keys() == templates.keys()


@pytest.mark.parametrize(
    "name", ["nodewarden-verifier", "nodewarden-webhook", "nodewarden-controller", "nodewarden-broker"]
)
def test_pods_of_the_system_namespace_are_restricted(name: str) -> None:
    spec = pod_templates()[name]["spec"]
    pod = spec["securityContext"]
    assert pod["runAsNonRoot"] is True
    assert pod["runAsUser"] > 0
    assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
    # Without it a second mount opens keys of mode 0600 to the group, and then the code refuses them.
    assert pod["fsGroupChangePolicy"] == "OnRootMismatch"
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
    assert not any("hostPath" in volume for volume in spec["volumes"])
    for container in containers(pod_templates()[name]):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
    labels = installed("Namespace")["nodewarden-system"]["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"


def test_the_attester_reaches_the_tpm_the_logs_and_its_own_state_only() -> None:
    spec = pod_templates()["nodewarden-attester"]["spec"]
    assert {v["hostPath"]["path"] for v in spec["volumes"] if "hostPath" in v} == {
        "/dev/tpmrm0",
        "/sys/kernel/security",
        "/var/lib/nodewarden",
        "/run/nodewarden",
    }
    read_only = {
        m["mountPath"]
        for c in containers(pod_templates()["nodewarden-attester"])
        for m in c["volumeMounts"]
        if m.get("readOnly")
    }
    assert "/sys/kernel/security" in read_only
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
    settings = settings_of(*SETTINGS[4])
    mounts = {m["mountPath"] for m in spec["containers"][0]["volumeMounts"]}
    assert str(settings.boot_log_path).startswith("/sys/kernel/security/")
    for directory in (settings.state_dir, settings.runtime_dir):
        # Made by the attester itself below the mount, so that its mode is 0700.
        assert str(directory.parent) in mounts


def test_the_attesters_token_is_for_the_verifier_and_names_its_account() -> None:
    spec = pod_templates()["nodewarden-attester"]["spec"]
    (token,) = [s["serviceAccountToken"] for v in spec["volumes"] for s in v.get("projected", {}).get("sources", [])]
    verifier, attester = settings_of(*SETTINGS[0]), settings_of(*SETTINGS[4])
    assert token["audience"] == verifier.cluster.audience != BROKER_AUDIENCE
    assert (verifier.cluster.namespace, verifier.cluster.service_account) == (
        installed("DaemonSet")["nodewarden-attester"]["metadata"]["namespace"],
        spec["serviceAccountName"],
    )
    assert str(attester.node_token_path) == "/var/run/secrets/nodewarden/" + token["path"]


def test_only_parts_that_ask_the_api_server_hold_a_token_for_it() -> None:
    mounted = {name: template["spec"]["automountServiceAccountToken"] for name, template in pod_templates().items()}
    assert mounted == {
        "nodewarden-verifier": False,
        "nodewarden-attester": False,
        "nodewarden-webhook": True,
        "nodewarden-controller": True,
        "nodewarden-broker": True,
    }


def test_every_mounted_path_of_the_settings_is_mounted() -> None:
    for name, file, _ in SETTINGS:
        mounts = {m["mountPath"] for m in pod_templates()[name]["spec"]["containers"][0]["volumeMounts"]}
        text = installed("ConfigMap")[name]["data"][file]
        for path in re.findall(r"(?<![\w.])(/(?:var|run|etc)/[^\s,}\]]+)", text):
            assert any(f"{path}/".startswith(f"{m}/") or m.startswith(f"{path}/") for m in mounts), (name, path)


def test_volumes_and_mounts_belong_together() -> None:
    for name, template in pod_templates().items():
        volumes = {v["name"] for v in template["spec"]["volumes"]}
        mounted = {m["name"] for c in containers(template) for m in c["volumeMounts"]}
        assert mounted == volumes, name


def test_every_workload_has_limits_probes_and_a_priority() -> None:
    for name, template in pod_templates().items():
        assert template["spec"]["priorityClassName"] in installed("PriorityClass")
        for container in template["spec"]["containers"]:
            assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
            assert "memory" in container["resources"]["limits"]
            assert name == "nodewarden-attester" or {"livenessProbe", "readinessProbe"} <= container.keys()


def test_no_image_is_called_latest() -> None:
    for template in pod_templates().values():
        for container in containers(template):
            assert re.search(r"(:(?!latest$)[\w.-]+|@sha256:[0-9a-f]{64})$", container["image"])


def test_secrets_come_without_content() -> None:
    assert all("data" not in secret and "stringData" not in secret for secret in installed("Secret").values())


def test_the_webhook_denies_what_it_cannot_judge_and_steering_may_be_missed() -> None:
    (validating,), (mutating,) = (
        installed(kind).values() for kind in ("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration")
    )
    hooks = {hook["name"]: hook for hook in validating["webhooks"]}
    assert {hook["failurePolicy"] for hook in hooks.values()} == {"Fail"}
    assert [hook["failurePolicy"] for hook in mutating["webhooks"]] == ["Ignore"]
    for hook in (*hooks.values(), *mutating["webhooks"]):
        # The default of ten seconds breaks leases that are renewed meanwhile.
        assert hook["timeoutSeconds"] <= 3
        assert hook["matchPolicy"] == "Equivalent"
        assert hook["sideEffects"] == "NoneOnDryRun"
        assert "caBundle" not in hook["clientConfig"]
    judged = {
        (r, op)
        for rule in hooks["pods.nodewarden.dev"]["rules"]
        for r in rule["resources"]
        for op in rule["operations"]
    }
    assert judged == {
        ("pods", "CREATE"),
        ("pods", "UPDATE"),
        ("pods/ephemeralcontainers", "UPDATE"),
        ("pods/resize", "UPDATE"),
        ("pods/binding", "CREATE"),
        ("bindings", "CREATE"),
        ("pods/exec", "CONNECT"),
        ("pods/attach", "CONNECT"),
        ("pods/portforward", "CONNECT"),
        ("pods/proxy", "CONNECT"),
    }


def test_the_webhook_never_sees_what_must_come_up_without_it() -> None:
    for kind in ("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"):
        for hook in installed(kind)["nodewarden"]["webhooks"]:
            if hook["name"] == "namespaces.nodewarden.dev":
                continue
            # By the name that the API server puts there itself: no label takes a namespace out of sight.
            (term,) = hook["namespaceSelector"]["matchExpressions"]
            assert (term["key"], term["operator"]) == ("kubernetes.io/metadata.name", "NotIn")
            assert set(term["values"]) == UNGOVERNED_NAMESPACES
            assert "objectSelector" not in hook


def test_no_webhook_matches_leases_or_reviews() -> None:
    resources = {
        resource.split("/")[0]
        for kind in ("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration")
        for hook in installed(kind)["nodewarden"]["webhooks"]
        for rule in hook["rules"]
        for resource in rule["resources"]
    }
    assert resources == {"pods", "bindings", "namespaces"}


def test_every_policy_denies_and_fails_closed() -> None:
    policies, bindings = installed("ValidatingAdmissionPolicy"), installed("ValidatingAdmissionPolicyBinding")
    assert policies.keys() == bindings.keys()
    for name, policy in policies.items():
        assert policy["spec"]["failurePolicy"] == "Fail"
        assert bindings[name]["spec"]["policyName"] == name
        assert bindings[name]["spec"]["validationActions"] == ["Deny"]
        if "paramKind" in policy["spec"]:
            assert bindings[name]["spec"]["paramRef"]["parameterNotFoundAction"] == "Deny"


def test_the_bootstrap_script_names_objects_that_the_parts_wait_for() -> None:
    script = (Path(INSTALL).parent / "bootstrap.sh").read_text()
    known = {*installed("ConfigMap"), *installed("Secret"), "kube-root-ca.crt"}
    waited = set()
    for template in pod_templates().values():
        for volume in template["spec"]["volumes"]:
            for source, key in (("configMap", "name"), ("secret", "secretName")):
                if source in volume and not volume[source].get("optional"):
                    waited.add(volume[source][key])
    assert waited - known == set(re.findall(r"create (?:configmap|secret generic) (\S+)", script))
