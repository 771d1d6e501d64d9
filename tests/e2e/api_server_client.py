"""How an API server proves to a webhook who it is: the two files of docs/installing.md, for the webhook of a test."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.e2e.authority import Authority, Certificate
from tests.e2e.install import ROOT
from tests.e2e.programs import free_port

WEBHOOK = "nodewarden-webhook.nodewarden-system.svc"
"""The name by which the API server calls the webhook of an installation."""


@dataclass(frozen=True)
class ApiServerClient:
    """The API server's client certificate for the webhook at `port` of localhost, by a CA that signs nothing else."""

    authority: Authority
    certificate: Certificate
    port: int
    admission_config: Path

    @classmethod
    def create(cls, folder: Path) -> ApiServerClient:
        folder.mkdir(mode=0o700)
        authority = Authority(folder, "webhook-clients-ca")
        made = cls(authority, authority.client("client", "kube-apiserver"), free_port(), folder / "admission.yaml")
        admission, access = documented_files()
        for plugin in admission["plugins"]:
            plugin["configuration"]["kubeConfigFile"] = str(folder / "webhooks.kubeconfig")
        made.admission_config.write_text(yaml.safe_dump(admission))
        (user,) = access["users"]
        files = {"client-certificate": str(made.certificate.certificate), "client-key": str(made.certificate.key)}
        assert user["name"] == WEBHOOK
        assert user["user"].keys() == files.keys()
        access["users"] = [{"name": f"localhost:{made.port}", "user": files}]
        (folder / "webhooks.kubeconfig").write_text(yaml.safe_dump(access))
        return made


def documented_files() -> tuple[dict[str, Any], dict[str, Any]]:
    """The AdmissionConfiguration and the kubeconfig as docs/installing.md shows them."""
    text = (ROOT / "docs/installing.md").read_text()
    found = [yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```", text, re.DOTALL | re.MULTILINE)]
    by_kind = {document["kind"]: document for document in found}
    return by_kind["AdmissionConfiguration"], by_kind["Config"]
