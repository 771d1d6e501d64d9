"""What `make cluster` lays out to play with: a machine that is not enrolled yet, manifests, and the lines to type."""

from __future__ import annotations

from pathlib import Path

import yaml

from tests.e2e.governed import ACCOUNT, API_VERSION, IMAGE, a_policy
from tests.e2e.machines import Machine
from tests.e2e.pods import a_pod
from tests.e2e.real_node import RealNode
from tests.e2e.system import System

_LINES = """\
  export NODEWARDEN_URL={url}
  export NODEWARDEN_CA={ca} NODEWARDEN_TOKEN_FILE={token}
  kubectl apply -f {folder}/rules.yaml
  nodewarden inventory add {node} --tenant ml --cohort demo --certificate-sha256 {certificate}
  nodewarden attester enrol --config {config}
  nodewarden attester once --config {config}
  kubectl get nodes -L nodewarden.node-restriction.kubernetes.io/verified
  kubectl apply -f {folder}/pod.yaml && kubectl wait -n ml --for=condition=Ready pod/llm
  {python} -m tests.e2e.tamper {tcti}
  nodewarden attester once --config {config}
  kubectl get pods,events -n ml && nodewarden nodes explain {node}
"""


def lay_out(system: System, machine: Machine, real: RealNode | None, folder: Path, python: str) -> str:
    """Writes the manifests and returns the lines that enrol the machine, run a sensitive pod, tamper, and look."""
    image = IMAGE if real is None else real.app_image
    _write(folder / "rules.yaml", _rules(image))
    _write(folder / "pod.yaml", [_pod(image)])
    verifier = system.verifier
    return _LINES.format(
        url=verifier.url,
        ca=verifier.ca,
        token=verifier.token_file("operator"),
        node=machine.node_name,
        certificate=machine.certificate_sha256(),
        config=machine.config,
        folder=folder,
        tcti=machine.settings.tcti,
        python=python,
    )


def _write(path: Path, manifests: list[dict[str, object]]) -> None:
    path.write_text(yaml.safe_dump_all(manifests, sort_keys=False))


def _rules(image: str) -> list[dict[str, object]]:
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ml"}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT, "namespace": "ml"}},
        a_policy("demo", onLoss={"action": "Evict", "gracePeriod": "5s"}),
        {
            "apiVersion": API_VERSION,
            "kind": "SensitiveWorkload",
            "metadata": {"name": "llm"},
            "spec": {
                "subjects": [{"namespace": "ml", "serviceAccount": ACCOUNT}],
                "policyRef": "demo",
                "images": [image],
            },
        },
    ]


def _pod(image: str) -> dict[str, object]:
    pod = a_pod("llm", image, serviceAccountName=ACCOUNT)
    pod["metadata"]["namespace"] = "ml"
    return pod
