"""The chart with other values than its own; skips where helm is not built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from admission.controller.settings import ControllerSettings
from admission.settings import BrokerSettings, WebhookSettings
from tests.admission.served import make_certificate
from tests.deploy.rendered import RenderRefusedError, render
from tests.deploy.rights import POLICY_REPORTS, RIGHTS
from tests.deploy.test_rights import rights_of


def rendered(*arguments: str) -> dict[tuple[str, str], dict[str, Any]]:
    documents = yaml.safe_load_all(render(*arguments))
    return {(d["kind"], d["metadata"]["name"]): d for d in documents if d}


@pytest.mark.parametrize(
    "value",
    [
        "breakGlassGroup=system:masters",
        "breakGlassGroup=system:authenticated",
        "breakGlassGroup=",
        "breakGlassGroup=it's",
        "image.tag=latest",
        "image.digests.verifier=sha256:short",
        "privilegedAllowList[0]=*/*",
        "privilegedAllowList[0]=gpu-operator",
        "verifier.admission=anyone",
        "verifier.intervalSeconds=301",
        "webhook.replicas=0",
        "webhook.failurePolicy=Ignore",
        "webhook.clientCA=ca.pem",
        "webhook.clientCA=-----BEGIN PRIVATE KEY-----",
        "trustedNodes.nodeSelector=null",
        "certManager.injectorUser=somebody",
        "unknown=1",
    ],
)
def test_values_that_would_weaken_or_mean_nothing_are_refused(value: str) -> None:
    with pytest.raises(RenderRefusedError):
        render("--set", value)


def test_listed_namespaces_and_accounts_fit_a_real_clusters_drivers() -> None:
    entries = ["calico-system/calico-node", "gpu-operator/*", "rook-ceph/rook-csi-rbd-plugin-sa"]
    found = rendered(*(part for n, e in enumerate(entries) for part in ("--set", f"privilegedAllowList[{n}]={e}")))
    text = found["ConfigMap", "nodewarden-privileged-allow-list"]["data"]["allow"]
    assert text.splitlines() == ["nodewarden-attester/attester", *entries]


def test_excluded_namespaces_add_to_those_that_must_come_up() -> None:
    found = rendered("--set", "webhook.excludedNamespaces={calico-system}")
    hooks = found["ValidatingWebhookConfiguration", "nodewarden"]["webhooks"]
    values = hooks[0]["namespaceSelector"]["matchExpressions"][0]["values"]
    assert values[-1] == "calico-system"
    assert {"kube-system", "nodewarden-system"} < set(values)


def test_images_by_digest_leave_the_tag_out() -> None:
    digest = "sha256:" + "a" * 64
    found = rendered("--set", f"image.digests.attester={digest}")
    containers = found["DaemonSet", "nodewarden-attester"]["spec"]["template"]["spec"]["containers"]
    assert containers[0]["image"].endswith(f"/nodewarden-attester@{digest}")


def test_a_device_plugin_takes_the_privileges_off_the_attester() -> None:
    spec = rendered("--set", "attester.tpmResource=example.org/tpm")["DaemonSet", "nodewarden-attester"]["spec"]
    pod = spec["template"]["spec"]
    assert not any(v.get("hostPath", {}).get("path") == "/dev/tpmrm0" for v in pod["volumes"])
    for container in (*pod["containers"], *pod["initContainers"]):
        assert "privileged" not in container["securityContext"]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["limits"]["example.org/tpm"] == 1


def test_cert_manager_may_fill_in_the_bundle_and_the_webhook_then_may_not_touch_secrets() -> None:
    found = rendered("--set", "certManager.enabled=true")
    for kind in ("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"):
        annotations = found[kind, "nodewarden"]["metadata"]["annotations"]
        assert annotations == {"cert-manager.io/inject-ca-from": "nodewarden-system/nodewarden-webhook"}
    ca, serving = (found["Certificate", name]["spec"] for name in ("nodewarden-webhook-ca", "nodewarden-webhook"))
    assert found["Issuer", serving["issuerRef"]["name"]]["spec"] == {"ca": {"secretName": ca["secretName"]}}
    # What the CA signed ends before the CA does, and a renewed CA has the key that signed it.
    assert int(ca["renewBefore"].removesuffix("h")) > int(serving["duration"].removesuffix("h"))
    assert (ca["privateKey"]["rotationPolicy"], serving["privateKey"]["rotationPolicy"]) == ("Never", "Always")
    assert ("Secret", "nodewarden-webhook-tls") not in found
    rules = found["Role", "nodewarden-webhook"]["rules"] + found["ClusterRole", "nodewarden-webhook"]["rules"]
    assert not any({"secrets", "validatingwebhookconfigurations"} & set(rule["resources"]) for rule in rules)
    hooks = found["ValidatingWebhookConfiguration", "nodewarden"]["webhooks"]
    # Else neither could start while the other is down.
    assert "cert-manager" in hooks[0]["namespaceSelector"]["matchExpressions"][0]["values"]
    (guard,) = [
        v["expression"]
        for v in found["ValidatingAdmissionPolicy", "nodewarden-webhooks"]["spec"]["variables"]
        if v["name"] == "writesBundle"
    ]
    assert "system:serviceaccount:cert-manager:cert-manager-cainjector" in guard
    settings = yaml.safe_load(found["ConfigMap", "nodewarden-webhook"]["data"]["webhook.yaml"])
    assert "managed_tls" not in settings
    assert settings["tls"]["key"] == "/run/nodewarden/tls/tls.key"
    (copier,) = found["Deployment", "nodewarden-webhook"]["spec"]["template"]["spec"]["initContainers"]
    # It goes on, since a renewed certificate has to be copied as well.
    assert copier["restartPolicy"] == "Always"
    assert "/run/nodewarden/tls/tls.key" in copier["startupProbe"]["exec"]["command"]


@pytest.mark.parametrize(("manager", "section"), [("false", "managed_tls"), ("true", "tls")])
def test_with_a_client_ca_the_webhook_serves_the_api_server_alone_and_probes_ask_for_no_handshake(
    tmp_path: Path, manager: str, section: str
) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_bytes(make_certificate(tmp_path).certificate.read_bytes())
    found = rendered("--set", f"certManager.enabled={manager}", "--set-file", f"webhook.clientCA={ca}")
    config = found["ConfigMap", "nodewarden-webhook"]["data"]
    settings = WebhookSettings.model_validate(yaml.safe_load(config["webhook.yaml"]))
    assert str(getattr(settings, section).client_ca) == "/etc/nodewarden/client-ca.pem"
    assert config["client-ca.pem"] == ca.read_text()
    (container,) = found["Deployment", "nodewarden-webhook"]["spec"]["template"]["spec"]["containers"]
    mounts = {mount["mountPath"]: mount["subPath"] for mount in container["volumeMounts"] if "subPath" in mount}
    assert mounts["/etc/nodewarden/client-ca.pem"] == "client-ca.pem"
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["tcpSocket"] == {"port": "https"}
        assert "httpGet" not in container[probe]


def test_by_default_nobody_needs_a_client_certificate() -> None:
    config = rendered()["ConfigMap", "nodewarden-webhook"]["data"]
    assert config.keys() == {"webhook.yaml"}
    settings = WebhookSettings.model_validate(yaml.safe_load(config["webhook.yaml"]))
    assert settings.managed_tls is not None
    assert settings.managed_tls.client_ca is None


def test_without_a_broker_nothing_of_it_is_left() -> None:
    found = rendered("--set", "broker.enabled=false")
    assert not [name for _, name in found if name == "nodewarden-broker"]
    settings = yaml.safe_load(found["ConfigMap", "nodewarden-attester"]["data"]["attester.yaml"])
    assert "broker_url" not in settings


def test_without_the_attester_only_its_namespace_remains() -> None:
    found = rendered("--set", "attester.enabled=false")
    left = [kind for kind, name in found if name in {"attester", "nodewarden-attester"}]
    assert left == ["Namespace"]


PARTS = (("webhook", WebhookSettings), ("controller", ControllerSettings), ("broker", BrokerSettings))


@pytest.mark.parametrize(("part", "model"), PARTS)
def test_figures_are_served_on_a_port_that_is_declared_and_let_through(part: str, model: type[BaseModel]) -> None:
    name = f"nodewarden-{part}"
    for value, ports in (("true", [9445]), ("false", [])):
        found = rendered("--set", f"metrics.enabled={value}")
        config = yaml.safe_load(found["ConfigMap", name]["data"][f"{part}.yaml"])
        listen = model.model_validate(config).model_dump()["metrics"]
        assert ([] if listen is None else [listen["port"]]) == ports
        (container,) = found["Deployment", name]["spec"]["template"]["spec"]["containers"]
        assert [port["containerPort"] for port in container["ports"] if port["name"] == "metrics"] == ports
        (rule,) = found["NetworkPolicy", name]["spec"]["ingress"]
        assert [port["port"] for port in rule["ports"]][1:] == ports


def test_policy_reports_bring_the_setting_and_just_the_rights_that_they_need() -> None:
    off, on = (rendered("--set", f"policyReports.enabled={value}") for value in ("false", "true"))
    settings = [
        yaml.safe_load(one["ConfigMap", "nodewarden-controller"]["data"]["controller.yaml"]) for one in (off, on)
    ]
    assert [ControllerSettings.model_validate(fields).policy_reports for fields in settings] == [False, True]
    before, after = (set(rights_of(one["ClusterRole", "nodewarden-controller"])) for one in (off, on))
    assert before == {right for right in RIGHTS["nodewarden-controller"] if ":" not in right[1]}
    assert after - before == POLICY_REPORTS
    assert before < after
