"""The cluster as manifests describe it: a `ClusterView` over YAML and JSON files, reloaded when they change.

The first load must succeed. Later, a set of files that does not load as a whole leaves the last good state in force
and is reported; it is tried again each time. Once no reload has succeeded for `MAX_SILENCE_SECONDS` nothing is allowed
any more: rules that nobody can read might forbid it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from admission.cluster_view import PodIdentity, Snapshot
from admission.manifest_objects import ManifestObjects
from admission.pod_tokens import PodTokenVerifier
from admission.results import ResultVerifier
from admission.trust_objects import NodeAttestation
from admission.view_measures import ViewMeasures, measures_of
from edges.private_files import unreadable
from edges.setting_files import read_text
from edges.yaml_documents import MAX_FILE_BYTES, documents, json_documents
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure, MalformedEvidence, Refusal, Rejection, Unavailable
from verifier.wire.result import AttestationResult

MAX_FILES = 4096
MAX_SILENCE_SECONDS = 30.0
REPORT_SECONDS = 60.0
"""One fault is reported once in this time, however often it is met."""
MAX_REMEMBERED_REPORTS = 1024
_SUFFIXES = frozenset({".yaml", ".yml", ".json"})

Stamp = tuple[int, int, int, int]


def load_manifests(paths: Iterable[Path]) -> ManifestObjects:
    """The objects in the files and directories `paths` (`*.yaml`, `*.yml`, `*.json`; no subdirectories).

    Raises MalformedEvidence `manifest-invalid`, Unavailable `file-unreadable`. No file at all is a fault.
    """
    objects = ManifestObjects()
    for path in manifest_files(paths):
        objects.merge(_read(path), str(path))
    return objects


def _read(path: Path) -> ManifestObjects:
    text = read_text(path, MAX_FILE_BYTES, ReasonCode.MANIFEST_INVALID)
    objects = ManifestObjects()
    read = json_documents if path.suffix == ".json" else documents
    for number, document in enumerate(read(text, str(path), ReasonCode.MANIFEST_INVALID)):
        objects.add(document, f"{path}#{number}")
    return objects


def manifest_files(paths: Iterable[Path]) -> tuple[Path, ...]:
    """The manifest files under `paths`, sorted. Raises Unavailable `file-unreadable`, `manifest-invalid` when none."""
    files: set[Path] = set()
    for path in paths:
        try:
            files |= {p for p in path.iterdir() if p.suffix in _SUFFIXES} if path.is_dir() else {path}
        except (OSError, ValueError) as error:
            raise unreadable(path, error) from error
    if not 0 < len(files) <= MAX_FILES:
        raise MalformedEvidence(ReasonCode.MANIFEST_INVALID, "manifests", f"{len(files)} files", f"1 to {MAX_FILES}")
    return tuple(sorted(files))


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


@dataclass(frozen=True, slots=True)
class _File:
    """What a file held when it had `stamp`: its objects, or why it has none."""

    stamp: Stamp
    content: ManifestObjects | MalformedEvidence


class ManifestClusterView:
    """A `ClusterView` whose cluster is the files at `paths`. Safe to read from any thread; one thread reloads."""

    def __init__(
        self,
        paths: tuple[Path, ...],
        results: ResultVerifier,
        tokens: PodTokenVerifier | None,
        report: Callable[[Failure], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Loads once. Raises as `load_manifests`. `report` hears of reloads and results that were refused later.

        `clock` counts seconds and never goes back.
        """
        self._paths, self._verifier, self._tokens, self._clock = paths, results, tokens, clock
        self._report, self._reported_at = report, dict[Failure, float]()
        self._files: dict[Path, _File] = {}
        self._verified: dict[str, AttestationResult] = {}
        self._verified_keys: object = None
        self._stamp: object = None
        self._untold = False
        self._snapshot = Snapshot({}, {}, {}, {}, (), {})
        self._stale: Snapshot | None = None
        self._load(self._fingerprint())
        self._loaded_at = clock()

    def state(self) -> Snapshot:
        """The newest state; one that allows nothing once no reload has succeeded for `MAX_SILENCE_SECONDS`."""
        failure = self.unready()
        if failure is None:
            return self._snapshot
        stale = self._stale
        if stale is None:
            self._stale = stale = replace(self._snapshot, fault=failure)
        return stale

    def measures(self) -> ViewMeasures:
        """How large this view is, and how long ago its files were last read."""
        held, now = self._snapshot, self._clock()
        kinds: dict[str, list[Iterable[object]]] = {
            "nodes": [held.nodes.values()],
            "pods": [held.pods.values()],
            "policies": [held.policies.values()],
            "results": [held.results.values()],
            "workloads": [held.workloads],
        }
        return measures_of(kinds, {"manifests": self._loaded_at}, now)

    def unready(self) -> Failure | None:
        """Why this view cannot serve; None while its last reload is young."""
        silence = self._clock() - self._loaded_at
        if silence < MAX_SILENCE_SECONDS:
            return None
        wanted = f"within {MAX_SILENCE_SECONDS:.0f} s"
        return Failure(ReasonCode.VIEW_STALE, "view.manifests", f"last read {silence:.0f} s ago", wanted)

    def check_token(self, token: str, now: int) -> PodIdentity:
        """Who `token` speaks for. Raises as `PodTokenVerifier`. The state tells whether its ServiceAccount is there."""
        if self._tokens is None:
            raise Rejection(ReasonCode.TOKEN_INVALID, "token", "no issuer is configured")
        return self._tokens.verify(token, now)

    def reload_if_changed(self) -> None:
        """The state is that of the files now; or still the last good one, and `report` has heard why."""
        try:
            stamp = self._fingerprint()
            if stamp != self._stamp:
                self._load(stamp)
        except Refusal as refusal:
            self._tell(refusal.failure)
            return
        self._loaded_at, self._stale = self._clock(), None

    def _fingerprint(self) -> tuple[object, ...]:
        return self._verifier.key_ids(), *((path, _stamp_of(path)) for path in manifest_files(self._paths))

    def _load(self, stamp: tuple[object, ...]) -> None:
        objects = ManifestObjects()
        files = {path: self._file(path) for path in manifest_files(self._paths)}
        self._files = files
        for path, file in files.items():
            if isinstance(file.content, MalformedEvidence):
                raise file.content
            objects.merge(file.content, str(path))
        if self._verified_keys != stamp[0]:
            # A key that was withdrawn vouches for nothing that it signed before.
            self._verified, self._verified_keys = {}, stamp[0]
        self._untold = False
        results = {name: self._result(attestation) for name, attestation in objects.attestations.items()}
        self._verified = {
            objects.attestations[name].claimed_result: result
            for name, result in results.items()
            if isinstance(result, AttestationResult)
        }
        self._snapshot = snapshot_of(objects, results)
        for pod in objects.pods.values():
            if isinstance(pod, Failure):
                self._tell(pod)
        # Only now: what could not be told is asked again in the next round, although nothing may have changed.
        self._stamp = None if self._untold else stamp

    def _file(self, path: Path) -> _File:
        # The stamp first: a file that is replaced in between is read again in the next round.
        stamp = _stamp_of(path)
        known = self._files.get(path)
        if known is not None and known.stamp == stamp:
            return known
        try:
            return _File(stamp, _read(path))
        except MalformedEvidence as refusal:
            return _File(stamp, refusal)

    def _result(self, attestation: NodeAttestation) -> AttestationResult | Failure:
        # One bad result must not blind admission to all the other nodes: it denies its own node, by name.
        name = attestation.node_name
        try:
            known = self._verified.get(attestation.claimed_result)
            result = self._verifier.verify(attestation.claimed_result) if known is None else known
            attestation.require_no_host_access()
        except Refusal as refusal:
            self._untold = self._untold or isinstance(refusal, Unavailable)
            self._tell(refusal.failure)
            return refusal.failure
        except Exception as error:  # noqa: BLE001 - hostile text that some library did not foresee denies its own node
            failure = Failure(ReasonCode.RESULT_MALFORMED, f"nodes.{name}.result", type(error).__name__)
            self._tell(failure)
            return failure
        if (result.node_name, result.kubernetes_node_uid) != (name, attestation.node_uid):
            seen = f"{result.node_name} {result.kubernetes_node_uid}"
            return Failure(ReasonCode.RESULT_NODE_MISMATCH, f"nodes.{name}.uid", seen, f"{name} {attestation.node_uid}")
        return result

    def _tell(self, failure: Failure) -> None:
        now, told = self._clock(), self._reported_at.get(failure)
        if told is not None and now - told < REPORT_SECONDS:
            return
        if len(self._reported_at) >= MAX_REMEMBERED_REPORTS:
            self._reported_at.clear()
        self._reported_at[failure] = now
        self._report(failure)


def _stamp_of(path: Path) -> Stamp:
    try:
        facts = path.stat()
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error
    return facts.st_mtime_ns, facts.st_ctime_ns, facts.st_size, facts.st_ino
