"""An API server that lists a large cluster and keeps changing it, for benchmarks of what watches it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

from admission.kinds import attestation_manifest
from tests.admission.scripted_api import Asked, Said, a_list, a_status
from tests.admission.world import AUDIENCE, IMAGE, ISSUER, Signer, a_result

PAGE = 500
CHANGES_PER_S = 50
"""Pods that come, move on or go, each second, while decisions are made."""
_GROUP = "/apis/nodewarden.dev/v1alpha1"
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/nodewarden-system/leases"


class LargeCluster:
    """Sensitive pods `llm-N` of namespace `ml`, on nodes `gpu-N` with results that `signer` signed at `now`."""

    def __init__(self, nodes: int, pods: int, signer: Signer, now: int) -> None:
        self._nodes, self._pods = nodes, pods
        names = [f"gpu-{n}" for n in range(nodes)]
        self._items: dict[str, list[dict[str, Any]]] = {
            "/api/v1/nodes": [_node(name) for name in names],
            "/api/v1/namespaces/ml/pods": [a_pod_object(f"llm-{n}") for n in range(pods)],
            f"{_GROUP}/nodetrustpolicies": [_ours("NodeTrustPolicy", "h200-prod", _POLICY)],
            f"{_GROUP}/sensitiveworkloads": [_ours("SensitiveWorkload", "llm", _WORKLOAD)],
            f"{_GROUP}/nodeattestations": [
                attestation_manifest(name, f"uid-{name}", signer.result(_result(name, now))) for name in names
            ],
            _LEASES: [_lease("0")],
        }

    def __call__(self, asked: Asked) -> Said:
        items = self._items.get(asked.path)
        if items is None:
            return Said(a_status(404, "NotFound"), 404)
        if asked.watching:
            return Said(parts=self._changes(asked.path, float(asked.query["timeoutSeconds"])))
        start = int(asked.query.get("continue", "0"))
        proceed = str(start + PAGE) if start + PAGE < len(items) else ""
        return a_list(*items[start : start + PAGE], proceed=proceed)

    def _changes(self, path: str, seconds: float) -> Iterator[bytes]:
        until, turn = time.monotonic() + seconds, 0
        while time.monotonic() < until:
            turn += 1
            if path == _LEASES:
                yield _event(_lease(f"{time.monotonic()}"))
                time.sleep(1)
            elif path.endswith("/pods"):
                pod = a_pod_object(f"llm-{turn % self._pods}")
                pod["metadata"]["labels"]["turn"] = str(turn)
                yield _event(pod)
                time.sleep(1 / CHANGES_PER_S)
            else:
                threading.Event().wait(seconds)


def _event(fields: dict[str, Any]) -> bytes:
    return json.dumps({"type": "MODIFIED", "object": fields}).encode() + b"\n"


def a_pod_object(name: str) -> dict[str, Any]:
    """A pod as an API server stores it, with the volumes, conditions and field owners that one has."""
    container = {
        "name": "main",
        "image": IMAGE,
        "resources": {"limits": {"nvidia.com/gpu": "8"}},
        "volumeMounts": [{"name": f"v{n}", "mountPath": f"/mnt/{n}"} for n in range(4)],
        "env": [{"name": f"SETTING_{n}", "value": "x" * 40} for n in range(12)],
    }
    return {
        "metadata": {
            "name": name,
            "namespace": "ml",
            "uid": f"uid-{name}",
            "resourceVersion": "2",
            "labels": {"app": "llm", "pod-template-hash": "7d4b9c6f55"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "llm", "uid": "rs"}],
            "managedFields": [{"manager": "kubelet", "fieldsV1": {f"f:field-{n}": {} for n in range(40)}}],
        },
        "spec": {
            "serviceAccountName": "llm",
            "schedulerName": "default-scheduler",
            "containers": [container],
            "volumes": [{"name": f"v{n}", "emptyDir": {}} for n in range(4)],
            "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}],
        },
        "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False"}]},
    }


def _node(name: str) -> dict[str, Any]:
    metadata = {"name": name, "uid": f"uid-{name}", "resourceVersion": "2"}
    return {"metadata": metadata, "status": {"nodeInfo": {"bootID": f"boot-{name}"}}}


def _result(name: str, now: int) -> Any:
    return a_result(
        node_name=name,
        node_id=name.encode().hex().rjust(64, "0"),
        kubernetes_node_uid=f"uid-{name}",
        linux_boot_id=f"boot-{name}",
        issued_at=now,
        expires_at=now + 600,
        issuer=ISSUER,
        audience=AUDIENCE,
    )


def _lease(renewed: str) -> dict[str, Any]:
    metadata = {"name": "nodewarden-results", "namespace": "nodewarden-system", "resourceVersion": "2"}
    return {"metadata": metadata, "spec": {"renewTime": renewed}}


def _ours(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "nodewarden.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


_POLICY: dict[str, Any] = {"baselines": [{"name": "h200-prod", "floor": "4.1.0"}]}
_WORKLOAD: dict[str, Any] = {
    "subjects": [{"namespace": "ml", "serviceAccount": "llm"}],
    "policyRef": "h200-prod",
    "images": [IMAGE],
}
