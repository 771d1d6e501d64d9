"""Release and revocation of secrets by one real broker on a real API server, under the installed rights.

Revocation: a node that holds 1,000 leases falls by the verifier's word; until every record has `revokedAt`, which takes
one order by the controller and one answer by the broker for each. When its label went is told beside it: that waits
for one second at most, however many leases there are.

Release: requests for leases that run already, signed and counted once each; the first one of each pod, which also
records the lease, is told beside it. The node's keys are software keys, so no TPM's time is in it.
"""

from __future__ import annotations

import ssl
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx

from admission.informers import Informer
from admission.kube import KubeClient
from admission.lease_records import LeaseRecord, instant, read_record
from admission.leases import lease_key
from admission.trust_objects import API_VERSION
from tests.admission.world import envelope
from tests.e2e.brokers import RELEASES, SECRETS, Broker, NodeKeys, a_broker
from tests.e2e.control_plane import BROKER_AUDIENCE, ControlPlane, Options, control_plane, require_programs
from tests.e2e.controllers import IMAGE, OURS, POLICY, Controllers, controllers, until
from tests.e2e.install import NAMESPACE, install
from tests.e2e.programs import HarnessError
from tests.e2e.verifier_stream import verifier_stream
from verifier.wire.codes import ReasonCode
from verifier.wire.result import Verdict

NAMES: tuple[str, ...] = ("revoke_1000_leases_s", "secret_releases_per_s", "secret_release_p99_ms")

LEASES = 1000
PODS = 20
ROUNDS = 30
AT_ONCE = 4
NAMESPACE_OF_PODS = "ml"

try:
    require_programs()
except HarnessError:
    NAMES = ()


def run() -> dict[str, dict[str, Any]]:
    """The figures, from a control plane of their own; none where no control plane is built."""
    if not NAMES:
        return {}
    with tempfile.TemporaryDirectory(prefix="nw-", dir="/tmp") as made:
        folder = Path(made)
        with control_plane(folder / "cp", Options(nodes=0)) as plane:
            install(plane)
            with (
                verifier_stream(folder, plane.authority) as stream,
                controllers(plane, stream, folder) as cluster,
                a_broker(plane, stream, folder) as broker,
            ):
                cluster.policy(onLoss={"action": "None"})
                cluster.start()
                broker.start()
                return {**_releases(plane, cluster, broker), **_revocation(plane, cluster)}


def _figure(value: float, unit: str, n: int, how: str) -> dict[str, Any]:
    return {"value": value, "unit": unit, "n": n, "how": how}


# --- revocation ---


def _revocation(plane: ControlPlane, cluster: Controllers) -> dict[str, dict[str, Any]]:
    keys, name = NodeKeys(), "falls"
    node = cluster.node(name)
    keys.publish(cluster.stream, node)
    cluster.wait_labelled(name)
    with plane.as_service_account(NAMESPACE, "nodewarden-broker") as client, ThreadPoolExecutor(AT_ONCE) as pool:
        made = [_record(name, node["metadata"]["uid"], number) for number in range(LEASES)]
        list(pool.map(lambda body: client.must_create(RELEASES, body), made))
    # By a watch: to list them again and again would be more work for the API server than what is measured.
    told: Informer[LeaseRecord] = Informer(
        KubeClient.from_kubeconfig(plane.kubeconfigs["admin"]), RELEASES, read_record
    )
    told.start()
    until("all are known", lambda: _of(told, name) == LEASES, 60)
    time.sleep(2)  # controller and broker have heard of them too
    began = time.monotonic()
    keys.publish(cluster.stream, node, Verdict.CONTRAINDICATED)
    unlabelled = cluster.wait_unlabelled(name)
    until("all are revoked", lambda: _of(told, name, revoked=True) == LEASES, 120)
    took = time.monotonic() - began
    told.stop()
    how = (
        f"a node falls that holds {LEASES} leases; its label went after {unlabelled * 1000:.0f} ms; sealed store, "
        "controller, broker, API server and benchmark on the same machine"
    )
    return {"revoke_1000_leases_s": _figure(round(took, 2), "s", LEASES, how)}


def _record(node: str, node_uid: str, number: int) -> dict[str, Any]:
    pod_uid = str(uuid4())
    now = int(time.time())  # noqa: TID251 - the API server lives in real time
    return {
        "apiVersion": API_VERSION,
        "kind": "SecretRelease",
        "metadata": {"name": lease_key(pod_uid, node_uid, "b0" * 32, "llm/key")},
        "spec": {
            "secret": "llm/key",
            "namespace": NAMESPACE_OF_PODS,
            "podName": f"pod-{number}",
            "podUID": pod_uid,
            "nodeName": node,
            "nodeUID": node_uid,
            "bootID": "b0" * 32,
            "bindingKeyThumbprint": "cb" * 32,
            "expires": instant(now + 600),
        },
    }


def _of(told: Informer[LeaseRecord], node: str, *, revoked: bool = False) -> int:
    """How many leases of the node there are, or are revoked."""
    time.sleep(0.05)
    return sum(record.node_name == node and (record.revoked or not revoked) for record in told.values())


# --- release ---


def _releases(plane: ControlPlane, cluster: Controllers, broker: Broker) -> dict[str, dict[str, Any]]:
    keys, name = NodeKeys(), "gpu-1"
    keys.publish(cluster.stream, cluster.node(name))
    cluster.wait_labelled(name)
    pods = _pods(cluster, name)
    until("the broker knows the pods", lambda: broker.denial(keys, pods[-1], "none") is ReasonCode.SECRET_NOT_ALLOWED)
    tokens = [_token(plane, pod) for pod in pods]
    context = ssl.create_default_context(cafile=str(plane.ca))
    with (
        httpx.Client(base_url=broker.url, verify=context, trust_env=False, timeout=30) as client,
        ThreadPoolExecutor(AT_ONCE) as pool,
    ):

        def ask(token: str) -> float:
            now = int(time.time())  # noqa: TID251 - the broker lives in real time
            body = envelope(keys.ak, token, ["llm/key"], iat=now, node_id=keys.node_id).model_dump_json()
            began = time.perf_counter()
            answer = client.post("/v1/secrets/release", content=body.encode())
            took = time.perf_counter() - began
            if answer.status_code != 200:
                raise HarnessError(answer.text)
            return took

        first = list(pool.map(ask, tokens))
        began = time.perf_counter()
        latencies = list(pool.map(ask, tokens * ROUNDS))
        took = time.perf_counter() - began
    count = len(latencies)
    how = (
        f"{AT_ONCE} requests at once over HTTPS for running leases of {PODS} pods, one TokenReview each; the first of "
        f"each pod, which records the lease: median {statistics.median(first) * 1000:.0f} ms; sealed store, software "
        "keys; API server, controller, broker and benchmark (which signs) on the same machine"
    )
    p99 = statistics.quantiles(latencies, n=100, method="inclusive")[98] * 1000
    return {
        "secret_releases_per_s": _figure(round(count / took, 1), "1/s", count, how),
        "secret_release_p99_ms": _figure(round(p99, 1), "ms", count, how),
    }


def _token(plane: ControlPlane, pod: dict[str, Any]) -> str:
    metadata = pod["metadata"]
    bound = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}
    return plane.token(metadata["namespace"], "default", audience=BROKER_AUDIENCE, bound_to=bound)


def _pods(cluster: Controllers, node: str) -> list[dict[str, Any]]:
    admin, namespace = cluster.admin, NAMESPACE_OF_PODS
    admin.must_create("/api/v1/namespaces", {"metadata": {"name": namespace}})
    admin.create(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "default"}})
    spec = {
        "subjects": [{"namespace": namespace, "serviceAccount": "default"}],
        "policyRef": POLICY,
        "images": [IMAGE],
        "secrets": [{"name": secret, "path": secret.replace("/", "-")} for secret in SECRETS],
    }
    workload = {"apiVersion": API_VERSION, "kind": "SensitiveWorkload", "metadata": {"name": "llm"}, "spec": spec}
    admin.must_create(f"{OURS}/sensitiveworkloads", workload)
    return [cluster.pod_on(namespace, f"llm-{number}", node) for number in range(PODS)]
