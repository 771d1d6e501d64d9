"""What `make cluster` lays out to play with, under `.cluster` in this checkout: settings for the shell, machines that
are not enrolled yet, manifests. README.md and docs/audit-to-deny.md say what to type.
"""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from nodewarden_demo.stage import GOOD_BOOT, OTHER_CMDLINE
from tests.e2e.control_plane import ControlPlane
from tests.e2e.governed import ACCOUNT, API_VERSION, IMAGE, a_policy
from tests.e2e.machines import Machine, booted_machine
from tests.e2e.pods import a_pod
from tests.e2e.programs import HarnessError
from tests.e2e.real_node import RealNode
from tests.e2e.system import System

ROOT = Path(__file__).parent.parent.parent
LINK = ROOT / ".cluster"
GUIDE_MACHINES = {"fake-0": GOOD_BOOT, "fake-1": OTHER_CMDLINE}
"""The machines of docs/audit-to-deny.md and how they booted: the second as no baseline accepts it."""
GUIDE_NODES = ("fake-0", "fake-1", "fake-2")
STAND_IN = "fake-3"
"""The node of README.md where no node is real."""


@contextmanager
def linked(folder: Path) -> Iterator[None]:
    """`.cluster` in this checkout is `folder` while the block runs. Raises HarnessError where a cluster runs."""
    with (folder / "running").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with suppress(FileNotFoundError), (LINK / "running").open() as other:
            try:
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise HarnessError(
                    f"a cluster of this checkout runs already, in {LINK.resolve()}: stop it first"
                ) from None
        LINK.unlink(missing_ok=True)
        LINK.symlink_to(folder)
        try:
            yield
        finally:
            LINK.unlink(missing_ok=True)


@contextmanager
def laid_out(plane: ControlPlane, system: System, real: RealNode | None, folder: Path) -> Iterator[None]:
    """`folder` holds all that the documents name, and the machines are up while the block runs."""
    name, image = (STAND_IN, IMAGE) if real is None else (real.name, real.app_image)
    spec = None if real is None else {"containers": [{"name": "main", "image": image}]}
    with ExitStack() as stack:
        opened = booted_machine(plane, system.verifier, system.maker, folder / name, name, pod_spec=spec)
        _prepare(stack.enter_context(opened))
        for node, case in GUIDE_MACHINES.items():
            opened = booted_machine(plane, system.verifier, system.maker, folder / node, node)
            machine = stack.enter_context(opened)
            if case != GOOD_BOOT:
                machine.boot(case)
            _prepare(machine)
        _write(
            folder / "rules.yaml",
            [*_namespace("ml"), a_policy("demo", onLoss=_SOON), _workload("llm", "ml", "demo", image)],
        )
        _write(folder / "pod.yaml", [_pod(image)])
        guide = folder / "guide"
        guide.mkdir()
        _write(guide / "service.yaml", [*_namespace("inference"), _service()])
        workload = _workload("inference", "inference", "prod", IMAGE)
        _write(guide / "rules.yaml", [a_policy("prod", enforcementAction="audit", onLoss=_SOON), workload])
        (guide / "verdicts.yaml").write_text(_VERDICTS)
        (folder / "env").write_text(_environment(plane, system, name))
        yield


_SOON = {"action": "Evict", "gracePeriod": "5s"}
_VERDICTS = """# What if the nodes had these results?
nodes:
  - {name: fake-0, verdict: affirming, baseline: {name: demo-node, version: 1.0.0}}
  - {name: fake-1, verdict: contraindicated}
  - {name: fake-2, verdict: none}
"""


def _environment(plane: ControlPlane, system: System, node: str) -> str:
    verifier = system.verifier
    settings = {
        "KUBECONFIG": plane.kubeconfigs["admin"],
        "NODEWARDEN_URL": verifier.url,
        "NODEWARDEN_CA": verifier.ca,
        "NODEWARDEN_TOKEN_FILE": verifier.token_file("operator"),
        "NODE": node,
    }
    return shell_settings({name: str(value) for name, value in settings.items()})


def shell_settings(settings: Mapping[str, str]) -> str:
    """What a shell reads to have `settings`, kubectl and nodewarden."""
    lines = [f"export {name}='{value}'" for name, value in settings.items()]
    return "\n".join([*lines, f"export PATH='{Path(sys.executable).parent}':\"$PATH\"", ""])


def _prepare(machine: Machine) -> None:
    """The machine's settings, what its delivery note says of its TPM, and the ways to lay hands on it."""
    folder = machine.config.parent
    (folder / "tpm.sha256").write_text(machine.certificate_sha256() + "\n")
    for action in ("tamper", "reboot"):
        script = folder / action
        command = f"cd '{ROOT}' && exec '{sys.executable}' -m tests.e2e.hands {action} '{folder}'"
        script.write_text(f"#!/bin/sh\n{command}\n")
        script.chmod(0o755)


class _WithoutAnchors(yaml.SafeDumper):
    """What people read and `nodewarden test` takes: parts that are alike are written twice."""

    def ignore_aliases(self, _: object) -> bool:
        return True


def _write(path: Path, manifests: list[dict[str, Any]]) -> None:
    path.write_text(yaml.dump_all(manifests, Dumper=_WithoutAnchors, sort_keys=False))


def _namespace(name: str) -> list[dict[str, Any]]:
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT, "namespace": name}},
    ]


def _workload(name: str, namespace: str, policy: str, image: str) -> dict[str, Any]:
    subjects = [{"namespace": namespace, "serviceAccount": ACCOUNT}]
    spec = {"subjects": subjects, "policyRef": policy, "images": [image]}
    return {"apiVersion": API_VERSION, "kind": "SensitiveWorkload", "metadata": {"name": name}, "spec": spec}


def _pod(image: str) -> dict[str, Any]:
    pod = a_pod("llm", image, serviceAccountName=ACCOUNT, dnsPolicy="Default")
    pod["metadata"]["namespace"] = "ml"
    return pod


def _service() -> dict[str, Any]:
    """Three replicas, one on each node of the guide as long as those may have them."""
    labels = {"app": "llm"}
    nodes = [{"key": "kubernetes.io/hostname", "operator": "In", "values": list(GUIDE_NODES)}]
    required = {"nodeSelectorTerms": [{"matchExpressions": nodes}]}
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": labels},
        "matchLabelKeys": ["pod-template-hash"],
    }
    spec = {
        **a_pod("llm", IMAGE, serviceAccountName=ACCOUNT)["spec"],
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}},
        "topologySpreadConstraints": [spread],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "llm", "namespace": "inference"},
        "spec": {
            "replicas": len(GUIDE_NODES),
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


def require_room() -> None:
    """Raises HarnessError where `.cluster` is something of the user's."""
    if os.path.lexists(LINK) and not LINK.is_symlink():
        raise HarnessError(f"{LINK} is in the way: it is not the link that a cluster leaves")
