"""Pods for tests, and waiting for what becomes of them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.e2e.client import Client
from tests.e2e.control_plane import ControlPlane
from tests.e2e.programs import wait_until


def a_pod(name: str, image: str = "registry.example/plain:1", **spec: Any) -> dict[str, Any]:
    """A pod of one container; keywords are fields of its spec, which win."""
    container = {"name": "main", "image": image, "imagePullPolicy": "Never"}
    fields = {"containers": [container], "terminationGracePeriodSeconds": 1, **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": fields}


def pods_path(namespace: str, name: str = "", subresource: str = "") -> str:
    return "/".join(part for part in (f"/api/v1/namespaces/{namespace}/pods", name, subresource) if part)


def wait_for_phase(
    client: Client, namespace: str, name: str, phase: str = "Running", seconds: float = 60
) -> dict[str, Any]:
    """The pod, once it has `phase`."""
    path = pods_path(namespace, name)
    wait_until(f"{namespace}/{name} is {phase}", lambda: client.must_get(path)["status"].get("phase") == phase, seconds)
    pod: dict[str, Any] = client.must_get(path)
    return pod


def kubectl_command(plane: ControlPlane, *arguments: str, kubeconfig: Path | None = None) -> list[str]:
    """The command line of kubectl, as the admin unless another kubeconfig is given."""
    program = Path(sys.executable).with_name("kubectl")
    return [str(program), f"--kubeconfig={kubeconfig or plane.kubeconfigs['admin']}", *arguments]


def kubectl(
    plane: ControlPlane,
    *arguments: str,
    kubeconfig: Path | None = None,
    typed: str = "",
    environment: Mapping[str, str] | None = None,
    timeout: float = 60,
) -> subprocess.CompletedProcess[str]:
    """What kubectl did, as the admin unless another kubeconfig is given; `typed` is its standard input."""
    command = kubectl_command(plane, *arguments, kubeconfig=kubeconfig)
    return subprocess.run(
        command, input=typed, capture_output=True, text=True, timeout=timeout, check=False, env=environment
    )
