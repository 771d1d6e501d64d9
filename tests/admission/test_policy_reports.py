"""PolicyReports in a cluster: written on change, deleted with the last sensitive pod, absent without their kind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from admission.controller.observed import ObservedNode, ObservedPod
from admission.controller.policy_reports import ABSENT_SECONDS, GROUP, SCAN_SECONDS, PolicyReports
from admission.controller.policy_results import MANAGED_BY
from admission.controller.results_book import ResultsBook
from admission.controller.uninstall import uninstall
from admission.controller.view import ControllerView, Kept
from admission.controller.writer import Writer
from admission.kube import KubeClient
from admission.results import InMemorySequences, ResultVerifier
from tests.admission.scripted_api import Asked, Said, a_list, a_status, scripted_api
from tests.admission.test_controller_reconcile import BAD
from tests.admission.world import AUDIENCE, ISSUER, NODE, NOW, Signer, a_node, a_pod, a_policy, a_result, a_workload
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence, Refusal

ALL = f"{GROUP}/policyreports"


class Reports:
    """The part of an API server that keeps PolicyReports; `refuse` answers a method in place of it."""

    def __init__(self) -> None:
        self.items: dict[str, dict[str, Any]] = {}
        self.refuse: dict[str, Said] = {}

    def __call__(self, asked: Asked) -> Said:
        if not asked.path.startswith(GROUP):
            return Said(a_status(404, "NotFound"), 404) if asked.method != "GET" else a_list()
        if asked.method in self.refuse:
            return self.refuse[asked.method]
        if asked.path == ALL:
            return self._list(asked.query.get("continue", ""), int(asked.query["limit"]))
        namespace = asked.path.removeprefix(f"{GROUP}/namespaces/").split("/")[0]
        if asked.method == "POST":
            self.items[namespace] = {**asked.body, "metadata": {**asked.body["metadata"], "uid": f"of {namespace}"}}
        elif namespace not in self.items:
            return Said(a_status(404, "NotFound"), 404)
        elif asked.method == "PATCH":
            self.items[namespace] = _merged(self.items[namespace], asked.body)
        elif asked.method == "DELETE":
            assert asked.body["preconditions"]["uid"] == self.items[namespace]["metadata"]["uid"]
            return Said(self.items.pop(namespace))
        return Said(self.items[namespace])

    def _list(self, proceed: str, limit: int) -> Said:
        names = sorted(self.items)
        at = int(proceed or 0)
        rest = str(at + limit) if at + limit < len(names) else ""
        return a_list(*(self.items[name] for name in names[at : at + limit]), proceed=rest)


def _merged(old: Any, patch: Any) -> Any:
    """RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    made = dict(old) if isinstance(old, dict) else {}
    for name, value in patch.items():
        if value is None:
            made.pop(name, None)
        else:
            made[name] = _merged(made.get(name), value)
    return made


class Site:
    """A controller's view with one sensitive pod on a verified node, and reports over it."""

    def __init__(self, client: KubeClient, api: Reports, asked: list[Asked]) -> None:
        self.client, self.api, self.asked, self.now, self.signer = client, api, asked, NOW, Signer()
        keys = self.signer.key_set()
        self.book = ResultsBook(ResultVerifier(lambda: keys, ISSUER, AUDIENCE, InMemorySequences()), lambda: None)
        self.view = ControllerView(client, self.book, "nodewarden-system", lambda _kind, _name: None)
        self.view.policies._put(("", "h200-prod"), Kept(a_policy(), "u", 1, {}))
        self.view.workloads._put(("", "llm"), Kept(a_workload(), "u", 1, {}))
        self.view.nodes._put(("", NODE), ObservedNode(a_node(), {}, (), "7"))
        self.pod(a_pod(node_name=NODE))
        assert self.book.take(self.signer.result(a_result())) == NODE
        self.reports = self.another()

    def another(self) -> PolicyReports:
        """As a replica that takes over has it."""
        return PolicyReports(self.view, self.client, Writer(self.client, lambda: True), lambda: self.now)

    def pod(self, pod: Any) -> None:
        self.view.pods._put((pod.namespace, pod.name), ObservedPod(pod, (), None))

    def end(self, name: str = "llm-0") -> None:
        self.view.pods._put(("ml", name), None)

    def fall(self) -> None:
        assert self.book.take(self.signer.result(a_result(**BAD))) == NODE

    def writes(self) -> list[tuple[str, str]]:
        """What was written since we last asked."""
        found = [(asked.method, asked.path) for asked in self.asked if asked.method != "GET"]
        self.asked.clear()
        return found


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    api = Reports()
    with scripted_api(tmp_path, api) as (client, asked):
        yield Site(client, api, asked)


def place(namespace: str = "ml", name: str = "nodewarden") -> str:
    return f"{GROUP}/namespaces/{namespace}/policyreports/{name}".removesuffix("/")


def test_a_report_is_made_once_and_then_written_when_something_changes(site: Site) -> None:
    assert site.reports.reconcile() == SCAN_SECONDS
    assert site.writes() == [("PATCH", place()), ("POST", place(name=""))]
    made = site.api.items["ml"]
    assert made["summary"]["pass"] == 1
    assert None not in [*made.values(), *made["metadata"].values()]
    site.now += 30
    site.reports.reconcile()
    assert site.writes() == []
    site.fall()
    site.reports.reconcile()
    assert site.writes() == [("PATCH", place())]
    (found,) = site.api.items["ml"]["results"]
    assert found["result"] == "fail"
    assert found["properties"]["codes"] == ReasonCode.NODE_NOT_VERIFIED.value
    assert found["timestamp"]["seconds"] == NOW + 30


def test_a_report_goes_with_the_last_sensitive_pod_of_its_namespace(site: Site) -> None:
    site.reports.reconcile()
    site.end()
    site.writes()
    site.reports.reconcile()
    assert site.writes() == [("DELETE", place())]
    site.reports.reconcile()
    assert site.writes() == []


def test_a_report_stays_while_a_workload_that_may_govern_its_pods_cannot_be_read(site: Site) -> None:
    site.reports.reconcile()
    site.end()
    unread = MalformedEvidence(ReasonCode.MANIFEST_INVALID, "sensitiveworkloads.other").failure
    site.view.workloads._put(("", "other"), unread)
    site.writes()
    site.reports.reconcile()
    assert site.writes() == []


def test_a_report_of_our_name_that_is_not_ours_is_left_alone_where_nothing_is_sensitive(site: Site) -> None:
    foreign = {"metadata": {"name": "nodewarden", "namespace": "other", "uid": "x", "labels": {}}, "results": []}
    site.api.items["other"] = foreign
    site.reports.reconcile()
    assert site.api.items["other"] == foreign


def test_what_a_tenant_wrote_into_the_report_does_not_stay(site: Site) -> None:
    site.fall()
    site.reports.reconcile()
    before = site.api.items["ml"]
    told = {**before["results"][0], "message": "all is well"}
    owned = {**before["metadata"], "ownerReferences": [{"kind": "Pod"}], "labels": {"mine": "too"}}
    site.api.items["ml"] = {**before, "results": [told], "scope": {"kind": "Pod"}, "metadata": owned}
    site.reports.reconcile()
    after = site.api.items["ml"]
    assert (after["results"], after["summary"]) == (before["results"], before["summary"])
    assert after["metadata"]["labels"] == {"mine": "too", **MANAGED_BY}
    assert not {"scope", "ownerReferences"} & {*after, *after["metadata"]}


def test_a_replica_that_takes_over_keeps_the_times(site: Site) -> None:
    site.fall()
    site.reports.reconcile()
    site.now += 100
    site.writes()
    site.another().reconcile()
    assert site.writes() == []
    assert site.api.items["ml"]["results"][0]["timestamp"]["seconds"] == NOW


def test_many_reports_are_read_in_small_pages(site: Site) -> None:
    for n in range(45):
        site.api.items[f"old-{n}"] = {
            "metadata": {"name": "nodewarden", "namespace": f"old-{n}", "uid": str(n), "labels": MANAGED_BY}
        }
    site.reports.reconcile()
    assert len([asked for asked in site.asked if asked.method == "GET" and asked.path == ALL]) == 3
    assert set(site.api.items) == {"ml"}


@pytest.mark.parametrize(("status", "reason"), [(404, "NotFound"), (403, "Forbidden")])
def test_without_the_kind_or_the_right_nothing_is_written_and_it_is_said_once(
    site: Site, status: int, reason: str
) -> None:
    site.api.refuse = {"GET": Said(a_status(status, reason), status)}
    with capture_logs() as logs:
        for _ in range(3):
            assert site.reports.reconcile() == ABSENT_SECONDS
    assert [line["event"] for line in logs] == ["policy_reports_absent"]
    assert site.writes() == []
    site.api.refuse = {}
    assert site.reports.reconcile() == SCAN_SECONDS
    assert set(site.api.items) == {"ml"}


def test_reports_that_cannot_be_listed_are_asked_for_again(site: Site) -> None:
    site.api.refuse = {"GET": Said(a_status(503, "ServiceUnavailable"), 503)}
    with pytest.raises(Refusal) as refused:
        site.reports.reconcile()
    assert refused.value.code is ReasonCode.KUBERNETES_UNREACHABLE


def test_a_report_that_cannot_be_written_holds_up_no_other_and_comes_again(site: Site) -> None:
    site.view.workloads._put(
        ("", "both"), Kept(a_workload(name="both", subjects=frozenset({("a", "llm"), ("ml", "llm")})), "u", 1, {})
    )
    site.pod(a_pod(namespace="a", node_name=NODE))
    site.api.refuse = {"POST": Said(a_status(403, "Forbidden"), 403)}
    assert site.reports.reconcile() == SCAN_SECONDS
    assert len(site.writes()) == 4
    site.api.refuse = {}
    site.reports.reconcile()
    assert set(site.api.items) == {"a", "ml"}


def test_a_replica_that_does_not_lead_writes_nothing(site: Site) -> None:
    reports = PolicyReports(site.view, site.client, Writer(site.client, lambda: False), lambda: NOW)
    assert reports.reconcile() == SCAN_SECONDS
    assert site.writes() == []


def test_uninstalling_takes_our_reports_away_and_no_others(site: Site) -> None:
    site.reports.reconcile()
    site.api.items["other"] = {"metadata": {"name": "nodewarden", "namespace": "other", "uid": "x", "labels": {}}}
    removed = [(one.what, one.where) for one in uninstall(site.client)]
    assert removed == [("policy report", "ml")]
    assert set(site.api.items) == {"other"}
