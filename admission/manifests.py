"""The cluster as manifests describe it: a `ClusterView` over YAML files, reloaded when they change.

The first load must succeed. Later, a set of files that does not load as a whole leaves the last good state in force
and is reported: what it shows only ages, and every result in it expires by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from admission.cluster_objects import (
    Node,
    Pod,
    Reader,
    ServiceAccount,
    parse_node,
    parse_pod,
    parse_service_account,
)
from admission.cluster_view import PodIdentity, Snapshot
from admission.kinds import API_VERSION, parse_attestation, parse_policy, parse_workload
from admission.pod_tokens import PodTokenVerifier
from admission.private_files import read_bounded
from admission.results import ResultVerifier
from admission.trust_objects import NodeAttestation, NodeTrustPolicy, SensitiveWorkload
from admission.yaml_documents import MAX_FILE_BYTES, documents
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure, MalformedEvidence, Refusal, Rejection, Unavailable
from verifier.wire.result import AttestationResult

MAX_FILES = 4096


@dataclass(slots=True)
class ManifestObjects:
    """The objects of a set of manifests, each once; results unverified. `others` are kinds that we do not read."""

    pods: dict[tuple[str, str], Pod] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    service_accounts: dict[tuple[str, str], ServiceAccount] = field(default_factory=dict)
    policies: dict[str, NodeTrustPolicy] = field(default_factory=dict)
    workloads: dict[str, SensitiveWorkload] = field(default_factory=dict)
    attestations: dict[str, NodeAttestation] = field(default_factory=dict)
    others: list[Mapping[str, Any]] = field(default_factory=list)

    def add(self, document: Any, where: str) -> None:
        """Takes one document in. Raises MalformedEvidence `manifest-invalid`, also for an object given twice."""
        reader = Reader(ReasonCode.MANIFEST_INVALID, where)
        if not isinstance(document, dict):
            raise reader.fault("document", type(document).__name__, "an object")
        kind = (document.get("apiVersion"), document.get("kind"))
        match kind:
            case ("v1", "List"):
                for index, item in enumerate(reader.objects(document, "items", 100_000)):
                    self.add(item, f"{where}.items[{index}]")
            case ("v1", "Pod"):
                namespace = reader.text(reader.object(document, "metadata"), "namespace") or "default"
                pod = parse_pod(document, namespace, reader)
                _once(self.pods, (namespace, pod.name), pod, where)
            case ("v1", "Node"):
                node = parse_node(document, reader)
                _once(self.nodes, node.name, node, where)
            case ("v1", "ServiceAccount"):
                account = parse_service_account(document, reader)
                _once(self.service_accounts, (account.namespace, account.name), account, where)
            case (_, "NodeTrustPolicy") if kind[0] == API_VERSION:
                policy = parse_policy(document, where)
                _once(self.policies, policy.name, policy, where)
            case (_, "SensitiveWorkload") if kind[0] == API_VERSION:
                workload = parse_workload(document, where)
                _once(self.workloads, workload.name, workload, where)
            case (_, "NodeAttestation") if kind[0] == API_VERSION:
                attestation = parse_attestation(document, where)
                _once(self.attestations, attestation.node_name, attestation, where)
            case (str(version), str()) if not version.startswith("nodewarden.dev/"):
                self.others.append(document)
            case _:
                raise reader.fault("kind", f"{kind[0]} {kind[1]}", "a kind of Kubernetes or of nodewarden.dev/v1alpha1")


def load_manifests(paths: Iterable[Path]) -> ManifestObjects:
    """The objects in the files and directories `paths` (`*.yaml`, `*.yml`; directories without their subdirectories).

    Raises MalformedEvidence `manifest-invalid`, Unavailable `file-unreadable`. No file at all is a fault.
    """
    objects = ManifestObjects()
    for path in manifest_files(paths):
        try:
            text = read_bounded(path, MAX_FILE_BYTES).decode("utf-8")
        except UnicodeDecodeError as error:
            raise MalformedEvidence(ReasonCode.MANIFEST_INVALID, str(path), "not UTF-8") from error
        for number, document in enumerate(documents(text, str(path))):
            objects.add(document, f"{path}#{number}")
    return objects


def manifest_files(paths: Iterable[Path]) -> tuple[Path, ...]:
    """The manifest files under `paths`, sorted. Raises Unavailable `file-unreadable`, `manifest-invalid` when none."""
    files: set[Path] = set()
    for path in paths:
        try:
            files |= {p for p in path.iterdir() if p.suffix in (".yaml", ".yml")} if path.is_dir() else {path}
        except OSError as error:
            raise Unavailable(ReasonCode.FILE_UNREADABLE, str(path), type(error).__name__) from error
    if not 0 < len(files) <= MAX_FILES:
        raise MalformedEvidence(ReasonCode.MANIFEST_INVALID, "manifests", f"{len(files)} files", f"1 to {MAX_FILES}")
    return tuple(sorted(files))


def _once(known: dict[Any, Any], key: Any, value: Any, where: str) -> None:
    if key in known:
        raise MalformedEvidence(ReasonCode.MANIFEST_INVALID, where, f"{key} a second time", "each object once")
    known[key] = value


def snapshot_of(objects: ManifestObjects, results: Mapping[str, AttestationResult | Failure]) -> Snapshot:
    """The cluster state that `objects` describe, with `results` by node name."""
    return Snapshot(
        pods=objects.pods,
        nodes=objects.nodes,
        service_accounts=objects.service_accounts,
        policies=objects.policies,
        workloads=tuple(objects.workloads.values()),
        results=results,
    )


class ManifestClusterView:
    """A `ClusterView` whose cluster is the files at `paths`. Safe to read from any thread."""

    def __init__(
        self,
        paths: tuple[Path, ...],
        results: ResultVerifier,
        tokens: PodTokenVerifier | None,
        report: Callable[[Failure], None],
    ) -> None:
        """Loads once. Raises as `load_manifests`. `report` hears of reloads and results that were refused later."""
        self._paths, self._verifier, self._tokens, self._report = paths, results, tokens, report
        self._verified: dict[str, AttestationResult] = {}
        self._stamp = self._fingerprint()
        self._snapshot = self._load()

    def state(self) -> Snapshot:
        return self._snapshot

    def check_token(self, token: str, now: int) -> PodIdentity:
        """Who `token` speaks for; its ServiceAccount exists under the same UID. Raises as `PodTokenVerifier`."""
        if self._tokens is None:
            raise Rejection(ReasonCode.TOKEN_INVALID, "token", "no issuer is configured")
        identity = self._tokens.verify(token, now)
        account = self._snapshot.service_accounts.get((identity.namespace, identity.service_account))
        if account is None or account.uid != identity.service_account_uid:
            raise Rejection(ReasonCode.TOKEN_INVALID, "token.serviceaccount", "deleted or re-created")
        return identity

    def reload_if_changed(self) -> None:
        """The state is that of the files now; or still the last good one, and `report` has heard why."""
        try:
            stamp = self._fingerprint()
            if stamp == self._stamp:
                return
            # A set that does not load is not tried again before it changes, or each round would report it.
            self._stamp = stamp
            self._snapshot = self._load()
        except Refusal as refusal:
            self._report(refusal.failure)

    def _fingerprint(self) -> tuple[object, ...]:
        stamps: list[object] = [self._verifier.key_ids()]
        for path in manifest_files(self._paths):
            try:
                facts = path.stat()
            except OSError as error:
                raise Unavailable(ReasonCode.FILE_UNREADABLE, str(path), type(error).__name__) from error
            stamps.append((str(path), facts.st_mtime_ns, facts.st_size, facts.st_ino))
        return tuple(stamps)

    def _load(self) -> Snapshot:
        objects = load_manifests(self._paths)
        results = {name: self._result(attestation) for name, attestation in objects.attestations.items()}
        self._verified = {
            objects.attestations[name].claimed_result: result
            for name, result in results.items()
            if isinstance(result, AttestationResult)
        }
        return snapshot_of(objects, results)

    def _result(self, attestation: NodeAttestation) -> AttestationResult | Failure:
        # One bad result must not blind admission to all the other nodes: it denies its own node, by name.
        try:
            known = self._verified.get(attestation.claimed_result)
            result = self._verifier.verify(attestation.claimed_result) if known is None else known
        except Refusal as refusal:
            self._report(refusal.failure)
            return refusal.failure
        if (result.node_name, result.kubernetes_node_uid) != (attestation.node_name, attestation.node_uid):
            seen = f"{result.node_name} {result.kubernetes_node_uid}"
            wanted = f"{attestation.node_name} {attestation.node_uid}"
            return Failure(ReasonCode.RESULT_NODE_MISMATCH, f"nodes.{attestation.node_name}.uid", seen, wanted)
        return result
