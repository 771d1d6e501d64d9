"""Keeps one PolicyReport in each namespace that has sensitive pods, where the cluster has the kind `PolicyReport`.

The kind is the policy working group's (wgpolicyk8s.io), which dashboards and other policy engines share. A cluster
without it has no reports, and is asked again now and then, in case it gets one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import structlog

from admission.clock import Clock
from admission.controller.judged import JudgedState
from admission.controller.policy_results import API_VERSION, NAME, Result, is_ours, pod_results, report, stands
from admission.controller.view import ControllerView
from admission.controller.writer import Writer
from admission.kube import KubeClient, KubeDenied, KubeNotFound, KubeRefusal
from verifier.wire.failures import Refusal

GROUP = f"/apis/{API_VERSION}"
REPORTS = f"{GROUP}/policyreports?fieldSelector=metadata.name%3D{NAME}"
SCAN_SECONDS = 30.0
"""Time alone changes what the reports say; this is how far behind they may be."""
ABSENT_SECONDS = 300.0
"""Between two looks for the kind, or for the right to write it."""
PAGE_REPORTS = "20"
"""A report may have been padded to 1.5 MiB by whoever has rights in its namespace; a page must stay readable."""


class PolicyReports:
    """`reconcile` brings all reports to what the scan says now; never in two threads at once."""

    def __init__(self, view: ControllerView, client: KubeClient, writer: Writer, clock: Clock) -> None:
        self._view, self._client, self._writer, self._clock = view, client, writer, clock
        self._written: dict[str, Mapping[str, Any]] = {}
        self._absent: type[KubeRefusal] | None = None

    def reconcile(self) -> float:
        """Writes the reports that changed, deletes those of namespaces without sensitive pods.

        Returns after how many seconds to look again. Raises Refusal when the reports cannot be listed; one that cannot
        be written holds up no other and is tried at the next look.
        """
        try:
            stored = self._stored()
        except (KubeNotFound, KubeDenied) as refusal:
            self._note_absence(refusal)
            return ABSENT_SECONDS
        self._absent = None
        wanted = self._results()
        for namespace, results in wanted.items():
            found = stored.get(namespace, {})
            made = report(namespace, results, self._written.get(namespace, {}), found)
            if stands(found, made) or self._done(namespace, partial(self._write, made)):
                self._written[namespace] = made
        for namespace in self._written.keys() - wanted.keys():
            del self._written[namespace]
        # A workload that cannot be read may be the one that governs the pods of a report.
        if not self._view.workloads.unreadable():
            for namespace in stored.keys() - wanted.keys():
                found = stored[namespace]
                if is_ours(found):
                    self._done(namespace, partial(self._delete, found))
        return SCAN_SECONDS

    def take_over(self) -> None:
        """Another replica may have written meanwhile."""
        self._written.clear()

    def _stored(self) -> dict[str, Mapping[str, Any]]:
        pages = self._client.list_pages(REPORTS, limit=PAGE_REPORTS)
        return {str(item["metadata"]["namespace"]): item for page in pages for item in page["items"]}

    def _results(self) -> dict[str, list[Result]]:
        now = self._clock()
        state = JudgedState(self._view, now)
        found: dict[str, list[Result]] = {}
        for observed in self._view.pods.values():
            results = pod_results(state, observed.pod, now)
            if results:
                found.setdefault(observed.pod.namespace, []).extend(results)
        return found

    def _done(self, namespace: str, write: Callable[[], None]) -> bool:
        try:
            write()
        except Refusal as refusal:
            # A namespace that is being deleted takes no new objects, for one.
            structlog.get_logger().warning("policy_report_not_written", namespace=namespace, reason=str(refusal))
            return False
        return True

    def _write(self, body: Mapping[str, Any]) -> None:
        path = f"{GROUP}/namespaces/{body['metadata']['namespace']}/policyreports"
        try:
            self._writer.merge(f"{path}/{NAME}", body)
        except KubeNotFound:
            self._writer.create(path, without_nulls(body))

    def _delete(self, body: Mapping[str, Any]) -> None:
        metadata = body["metadata"]
        path = f"{GROUP}/namespaces/{metadata['namespace']}/policyreports/{NAME}"
        self._writer.delete(path, str(metadata["uid"]))

    def _note_absence(self, refusal: KubeNotFound | KubeDenied) -> None:
        if self._absent is not type(refusal):
            self._absent = type(refusal)
            structlog.get_logger().warning("policy_reports_absent", reason=str(refusal))


def without_nulls(body: Mapping[str, Any]) -> dict[str, Any]:
    """`body` as an object that has none of the fields that are null in it."""
    return {
        name: without_nulls(value) if isinstance(value, dict) else value
        for name, value in body.items()
        if value is not None
    }
