"""Namespaces whose pods are sensitive, and machines behind nodes, verified ones and one that is not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nodewarden_demo.stage import OTHER_CMDLINE
from tests.e2e.client import Client
from tests.e2e.control_plane import REAL_NODE
from tests.e2e.machines import Machine, machine
from tests.e2e.pods import a_pod, pods_path
from tests.e2e.programs import wait_until
from tests.e2e.real_node import RealNode
from tests.e2e.system import SECRET, System
from verifier.wire.codes import ReasonCode

GROUP = "/apis/nodewarden.dev/v1alpha1"
API_VERSION = "nodewarden.dev/v1alpha1"
POLICY, UNREACHABLE_POLICY = "e2e", "e2e-future"
IMAGE = "registry.example/llm@sha256:" + "a" * 64
ACCOUNT = "llm"
VERIFIED_LABEL = "nodewarden.node-restriction.kubernetes.io/verified"
GATE = "nodewarden.dev/attestation"
GOOD_NODES, BAD_NODE, UNKNOWN_NODE = ("fake-0", "fake-1"), "fake-2", "fake-9"


def a_policy(name: str, **changes: Any) -> dict[str, Any]:
    spec = {"baselines": [{"name": "demo-node", "floor": "1.0.0"}], **changes}
    return {
        "apiVersion": API_VERSION,
        "kind": "NodeTrustPolicy",
        "metadata": {"name": name},
        "spec": spec,
    }


@dataclass(frozen=True)
class Governed:
    """A namespace whose ServiceAccount `llm` runs sensitive pods only."""

    namespace: str
    admin: Client

    def pod(self, name: str, image: str = IMAGE, **spec: Any) -> dict[str, Any]:
        return a_pod(name, image, **{"serviceAccountName": ACCOUNT, **spec})

    def path(self, name: str = "", subresource: str = "") -> str:
        return pods_path(self.namespace, name, subresource)

    def binding(self, pod: str, node: str, **changes: Any) -> dict[str, Any]:
        """A Binding of the pod as the scheduler would post it."""
        uid = self.admin.must_get(self.path(pod))["metadata"]["uid"]
        metadata = {"name": pod, "namespace": self.namespace, "uid": uid, **changes}
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        return {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}

    def ungated(self, pod: str) -> None:
        """Returns once the controller has let the pod go to the scheduler, and the webhook knows the pod."""
        path = self.path(pod)
        wait_until(f"{pod} is not gated", lambda: not self.admin.must_get(path)["spec"].get("schedulingGates"), 15)
        body = self.binding(pod, UNKNOWN_NODE)

        def unknown() -> bool:
            answer = self.admin.create(self.path(pod, "binding"), body, dry_run=True)
            return answer.denies(ReasonCode.POD_UNKNOWN)

        wait_until(f"the webhook knows {pod}", lambda: not unknown(), 15)


@contextmanager
def governed_namespace(
    system: System, namespace: str, *, policy: str = POLICY, images: tuple[str, ...] = (IMAGE,), **spec: Any
) -> Iterator[Governed]:
    """`namespace` under a SensitiveWorkload of its own name, which the webhook knows of."""
    admin = system.plane.admin
    admin.must_create(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": ACCOUNT}})
    workload = {
        "apiVersion": API_VERSION,
        "kind": "SensitiveWorkload",
        "metadata": {"name": namespace},
        "spec": {
            "subjects": [{"namespace": namespace, "serviceAccount": ACCOUNT}],
            "policyRef": policy,
            "images": list(images),
            "secrets": [{"name": SECRET, "path": "key.bin"}],
            **spec,
        },
    }
    admin.must_create(f"{GROUP}/sensitiveworkloads", workload)
    made = Governed(namespace, admin)
    try:
        # Another image is refused as soon as the webhook has the workload.
        probe = made.pod("probe", "registry.example/other:1")
        wait_until("the webhook knows the workload", lambda: _knows(made, probe), 20)
        yield made
    finally:
        admin.delete(f"{GROUP}/sensitiveworkloads/{namespace}")


def _knows(made: Governed, probe: dict[str, Any]) -> bool:
    answer = made.admin.create(made.path(), probe, dry_run=True)
    return answer.denies(ReasonCode.WORKLOAD_IMAGE_NOT_ALLOWED)


@dataclass(frozen=True)
class Fleet:
    """Machines that attest by themselves."""

    good: tuple[Machine, ...]
    bad: Machine


@contextmanager
def attested_fleet(system: System, folder: Path, real: RealNode | None) -> Iterator[Fleet]:
    """The nodes in GOOD_NODES, and the real one where there is one, are verified and labelled; BAD_NODE attests what
    no baseline accepts."""
    plane = system.plane
    for name, changes in (
        (POLICY, {}),
        (UNREACHABLE_POLICY, {"baselines": [{"name": "demo-node", "floor": "99.0.0"}]}),
    ):
        plane.admin.must_create(f"{GROUP}/nodetrustpolicies", a_policy(name, **changes))
    nodes = [*GOOD_NODES, BAD_NODE, *(() if real is None else (REAL_NODE,))]
    with ExitStack() as stack:
        machines = {}
        for name in nodes:
            image = {"containers": [{"name": "main", "image": real.app_image}]} if real and name == REAL_NODE else None
            opened = machine(
                plane,
                system.verifier,
                system.maker,
                folder / name,
                name,
                broker_url=system.broker.url,
                broker_ca=system.broker.ca,
                pod_spec=image,
            )
            machines[name] = stack.enter_context(opened)
        bad = machines.pop(BAD_NODE)
        bad.boot(OTHER_CMDLINE)
        for each in (*machines.values(), bad):
            each.attest()
            each.keep_attesting()
        for name in machines:
            wait_until(f"{name} is labelled", lambda name=name: is_labelled(plane.admin, name), 20)  # type: ignore[misc]
        yield Fleet(tuple(machines.values()), bad)


def is_labelled(admin: Client, node: str) -> bool:
    """Whether the controller says by its label that the node is verified."""
    labels = admin.must_get(f"/api/v1/nodes/{node}")["metadata"].get("labels", {})
    return bool(labels.get(VERIFIED_LABEL) == "true")
