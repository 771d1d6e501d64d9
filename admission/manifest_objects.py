"""The objects that manifests hold, each once: read from plain documents, results unverified."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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
from admission.kinds import API_VERSION, parse_attestation, parse_policy, parse_workload
from admission.trust_objects import NodeAttestation, NodeTrustPolicy, SensitiveWorkload
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure, MalformedEvidence

MAX_ITEMS = 100_000
OUR_KINDS = frozenset({"NodeTrustPolicy", "SensitiveWorkload", "NodeAttestation"})
_LIST = "List"
_NO_OBJECT = "an object of Kubernetes or of nodewarden.dev/v1alpha1"


@dataclass(slots=True)
class ManifestObjects:
    """Objects by name; `others` are kinds that we do not read.

    A pod that does not parse is kept as the reason why: it denies itself, and not everything else with it.
    """

    pods: dict[tuple[str, str], Pod | Failure] = field(default_factory=dict)
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
        version, kind = document.get("apiVersion"), document.get("kind")
        if type(version) is not str or type(kind) is not str or not version or not kind:
            if document.keys() == {"nodes"}:
                raise reader.fault("document", "supposed verdicts", f"{_NO_OBJECT}; verdicts belong to --nodes alone")
            raise reader.fault("kind", f"{version} {kind}", _NO_OBJECT)
        if kind.endswith(_LIST) and isinstance(document.get("items"), list):
            self._add_items(document, version, kind, reader, where)
        elif kind in OUR_KINDS or version.startswith("nodewarden.dev/"):
            # Attack, or a typing error: a rule under another group's name would silently be no rule.
            if version != API_VERSION:
                raise reader.fault("apiVersion", version, API_VERSION)
            self._add_ours(document, kind, reader, where)
        else:
            self._add_core(document, (version, kind), reader, where)

    def _add_items(self, document: Mapping[str, Any], version: str, kind: str, reader: Reader, where: str) -> None:
        for index, item in enumerate(reader.objects(document, "items", MAX_ITEMS)):
            # The items of a PodList and its like need not repeat what they are.
            named = {} if kind == _LIST else {"apiVersion": version, "kind": kind.removesuffix(_LIST)}
            self.add({**named, **item}, f"{where}.items[{index}]")

    def _add_core(self, document: Mapping[str, Any], kind: tuple[str, str], reader: Reader, where: str) -> None:
        match kind:
            case ("v1", "Pod"):
                metadata = reader.object(document, "metadata")
                namespace = reader.text(metadata, "namespace") or "default"
                name = reader.text(metadata, "name") or reader.text(metadata, "generateName")
                pod: Pod | Failure
                try:
                    pod = parse_pod(document, namespace, reader)
                except MalformedEvidence as refusal:
                    # Attack: one tenant's odd pod that keeps every new rule and revocation from being read.
                    pod = refusal.failure
                _once(self.pods, (namespace, name), pod, where)
            case ("v1", "Node"):
                node = parse_node(document, reader)
                _once(self.nodes, node.name, node, where)
            case ("v1", "ServiceAccount"):
                account = parse_service_account(document, reader)
                _once(self.service_accounts, (account.namespace, account.name), account, where)
            case _:
                self.others.append(document)

    def _add_ours(self, document: Mapping[str, Any], kind: str, reader: Reader, where: str) -> None:
        match kind:
            case "NodeTrustPolicy":
                policy = parse_policy(document, where)
                _once(self.policies, policy.name, policy, where)
            case "SensitiveWorkload":
                workload = parse_workload(document, where)
                _once(self.workloads, workload.name, workload, where)
            case "NodeAttestation":
                attestation = parse_attestation(document, where)
                _once(self.attestations, attestation.node_name, attestation, where)
            case _:
                raise reader.fault("kind", kind, " or ".join(sorted(OUR_KINDS)))

    def merge(self, other: ManifestObjects, where: str) -> None:
        """Takes the objects of another file in. Raises MalformedEvidence `manifest-invalid` for one that is there."""
        for known, more in (
            (self.pods, other.pods),
            (self.nodes, other.nodes),
            (self.service_accounts, other.service_accounts),
            (self.policies, other.policies),
            (self.workloads, other.workloads),
            (self.attestations, other.attestations),
        ):
            for key, value in more.items():
                _once(known, key, value, where)
        self.others += other.others


def _once(known: dict[Any, Any], key: Any, value: Any, where: str) -> None:
    if key in known:
        name = "/".join(key) if isinstance(key, tuple) else key
        raise MalformedEvidence(ReasonCode.MANIFEST_INVALID, where, f"{name} a second time", "each object once")
    known[key] = value
