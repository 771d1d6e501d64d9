"""Figures: what was decided, how fast, on what view; bounded by what is ours, on a port of their own."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from admission import exposition
from admission.cluster_view import AdmissionState
from admission.live_view import LiveClusterView
from admission.manifests import ManifestClusterView
from admission.metrics import ReviewMeter, ViewCollector, webhook_figures
from admission.metrics_server import MAX_CONNECTIONS_PER_ADDRESS, serving_metrics
from admission.results import InMemorySequences, ResultVerifier
from admission.review import MAX_REVIEW_BYTES
from admission.settings import Listen, MetricsListen, WebhookSettings, load_settings
from admission.trust_objects import Exemption
from admission.view_measures import measures_of
from admission.webhook import Gates, webhook_app
from tests.admission.scripted_api import scripted_api
from tests.admission.served import Certificate, make_certificate, served, trusting
from tests.admission.test_live_state import Cluster, eventually, viewed
from tests.admission.test_settings_and_assembly import Site, free_port
from tests.admission.test_webhook import BINDING, POD, a_review
from tests.admission.world import AUDIENCE, ISSUER, NODE, NOW, Signer, a_cluster, a_node, a_policy, a_result
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure, Unavailable
from verifier.wire.result import AttestationResult, Verdict

DOCUMENT = Path(__file__).parents[2] / "docs/metrics.md"

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples(text: str) -> Samples:
    return {
        (sample.name.removeprefix("nodewarden_admission_"), frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def labelled(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset(labels.items())


def figures_of(state: AdmissionState, meter: ReviewMeter | None = None) -> Samples:
    view = ViewCollector(lambda: measures_of({}, {}, 0.0), lambda: state, lambda: NOW)
    return samples(webhook_figures(meter or ReviewMeter(), view, lambda: 7)().decode())


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("tls"))


class Counted:
    """A webhook over a cluster that the test may change, and what it counted."""

    def __init__(self) -> None:
        self.cluster, self.meter = a_cluster(), ReviewMeter()
        self.client = httpx.Client()

    def post(self, review: Any, path: str = "/validate") -> None:
        self.client.post(path, content=review if isinstance(review, bytes) else json.dumps(review).encode())

    def figures(self) -> Samples:
        return figures_of(self.cluster, self.meter)


@pytest.fixture
def counted(certificate: Certificate) -> Iterator[Counted]:
    made = Counted()
    app = webhook_app(lambda: made.cluster, lambda: None, 60, lambda: NOW, gates=Gates(), meter=made.meter)
    with served(app, certificate) as address:
        made.client = httpx.Client(base_url=address, verify=trusting(certificate))
        with made.client:
            yield made


def test_reviews_are_counted_by_resource_decision_and_reason(counted: Counted) -> None:
    review = a_review(BINDING, sub="binding")
    counted.post(review)
    counted.post(review)
    counted.post(a_review(POD), "/mutate")
    counted.cluster = a_cluster(result=a_result(verdict=Verdict.CONTRAINDICATED))
    counted.post(review)
    counted.cluster = a_cluster(
        result=a_result(verdict=Verdict.CONTRAINDICATED), policies=(a_policy(enforcement="audit"),)
    )
    counted.post(review)
    counted.cluster = a_cluster(policies=(a_policy(exemptions=(Exemption("ml", "llm", "INC-1", NOW + 9),)),))
    counted.post(review)
    figures = counted.figures()
    decisions = {
        decision: figures[labelled("reviews_total", hook="validate", resource="pods/binding", decision=decision)]
        for decision in ("allowed", "denied", "audited", "warned")
    }
    assert decisions == {"allowed": 2, "denied": 1, "audited": 1, "warned": 1}
    assert figures[labelled("reviews_total", hook="mutate", resource="pods", decision="allowed")] == 1
    code = ReasonCode.NODE_NOT_VERIFIED.value
    assert figures[labelled("review_reasons_total", hook="validate", decision="denied", code=code)] == 1
    assert figures[labelled("review_reasons_total", hook="validate", decision="audited", code=code)] == 1


def test_what_is_turned_away_is_counted_whichever_way_it_came(counted: Counted) -> None:
    counted.post(b"{")
    counted.post(b" " * (MAX_REVIEW_BYTES + 1))
    counted.cluster = None  # type: ignore[assignment]  # - that is our fault
    counted.post(a_review(POD))
    counted.cluster = a_cluster()
    figures = counted.figures()
    for code, count in ((ReasonCode.REVIEW_MALFORMED, 1), (ReasonCode.BODY_TOO_LARGE, 1)):
        key = labelled("review_reasons_total", hook="validate", decision="refused", code=code.value)
        assert figures[key] == count
    assert figures[labelled("reviews_total", hook="validate", resource="other", decision="refused")] == 2
    assert figures[labelled("reviews_total", hook="validate", resource="other", decision="failed")] == 1


def test_resources_that_callers_invent_do_not_become_figures(counted: Counted) -> None:
    for n in range(20):
        for hook in ("/validate", "/mutate"):
            counted.post(a_review(POD, f"invented-{n}", f"part-{n}"), hook)
    assert counted.meter._reviews.keys() == {("validate", "other", "denied"), ("mutate", "other", "denied")}


def test_every_review_is_in_the_histogram_of_its_hook(counted: Counted) -> None:
    for _ in range(5):
        counted.post(a_review(BINDING, sub="binding"))
    counted.post(a_review(POD), "/mutate")
    figures = counted.figures()
    for hook, count in (("validate", 5), ("mutate", 1)):
        assert figures[labelled("review_seconds_count", hook=hook)] == count
        assert figures[labelled("review_seconds_bucket", hook=hook, le="+Inf")] == count
        assert 0 < figures[labelled("review_seconds_sum", hook=hook)] < 5


def test_a_time_lies_in_the_first_bucket_that_holds_it() -> None:
    meter = ReviewMeter()
    for seconds in (0.00005, 0.00006, 0.5, 3.0):
        meter.took("validate", seconds)
    figures = figures_of(a_cluster(), meter)
    at = {bound: figures[labelled("review_seconds_bucket", hook="validate", le=bound)] for bound in ("5e-05", "0.0001")}
    assert at == {"5e-05": 1, "0.0001": 2}
    assert figures[labelled("review_seconds_bucket", hook="validate", le="1.0")] == 3


def test_nodes_are_counted_by_verdict_and_by_why_they_have_none() -> None:
    one = a_cluster()
    names = ("good", "old", "none", "refused")
    results: dict[str, AttestationResult | Failure] = {
        "good": a_result(issued_at=NOW - 10),
        "old": a_result(issued_at=NOW - 900, expires_at=NOW),
        "refused": Failure(ReasonCode.RESULT_ROLLED_BACK, "seq"),
    }
    figures = figures_of(replace(one, nodes={name: a_node(name=name) for name in names}, results=results))
    assert {
        verdict: figures[labelled("nodes", verdict=verdict)]
        for verdict in (
            "affirming",
            ReasonCode.RESULT_EXPIRED.value,
            ReasonCode.RESULT_MISSING.value,
            ReasonCode.RESULT_ROLLED_BACK.value,
        )
    } == dict.fromkeys(("affirming", "result-expired", "result-missing", "result-rolled-back"), 1)
    assert figures[labelled("verdict_age_seconds", quantile="1.0")] == 900
    assert figures[labelled("log_lines_lost_total")] == 7


def test_every_figure_is_explained() -> None:
    explained = set(re.findall(r"^\| `(nodewarden_admission_\w+)`", DOCUMENT.read_text(), re.MULTILINE))
    measures = measures_of({"nodes": [[1]]}, {"nodes": 0.0}, 0.0)
    view = ViewCollector(lambda: measures, a_cluster, lambda: NOW)
    meter = ReviewMeter()
    meter.count("validate", "pods", "denied", [Failure(ReasonCode.POD_UNKNOWN, "x")])
    text = webhook_figures(meter, view, lambda: 0)().decode()
    served = set(re.findall(r"^# TYPE (nodewarden_\w+) ", text, re.MULTILINE))
    assert served == explained


def test_a_cluster_without_results_has_no_age() -> None:
    figures = figures_of(replace(a_cluster(), results={}))
    assert not [name for name, _ in figures if name == "verdict_age_seconds"]
    assert figures[labelled("nodes", verdict=ReasonCode.RESULT_MISSING.value)] == 1


def test_a_live_view_tells_its_size_and_how_long_each_source_is_silent(tmp_path: Path) -> None:
    signer, cluster = Signer(), Cluster(Signer())
    with viewed(tmp_path, cluster, signer) as view:
        eventually(lambda: view.unready() is None and view.state().staleness.results is None)
        found = view.measures()
    assert found.objects == {"nodes": 1, "pods": 1, "policies": 1, "results": 1, "workloads": 1}
    # Another key signed this one.
    assert found.unreadable == {"nodes": 0, "pods": 0, "policies": 0, "results": 1, "workloads": 0}
    assert set(found.silent_seconds) == {"nodes", "pods", "policies", "results", "results-lease", "workloads"}
    assert all(0 <= seconds < 10 for seconds in found.silent_seconds.values())


def test_a_source_that_was_never_heard_of_is_silent_for_ever(tmp_path: Path) -> None:
    verifier = ResultVerifier(Signer().key_set, ISSUER, AUDIENCE, InMemorySequences())
    with scripted_api(tmp_path, Cluster(Signer())) as (client, _):
        found = LiveClusterView(client, verifier, lambda _: None).measures()
    assert found.silent_seconds["nodes"] == found.silent_seconds["results-lease"] == math.inf


def test_a_view_of_files_tells_its_size_and_when_it_was_read(site: Site) -> None:
    verifier = ResultVerifier(site.verifier.key_set, ISSUER, AUDIENCE, InMemorySequences())
    now = [100.0]
    view = ManifestClusterView((site.folder / "manifests",), verifier, None, lambda _: None, lambda: now[0])
    now[0] += 3
    found = view.measures()
    assert (found.objects["nodes"], found.objects["results"], found.unreadable["results"]) == (1, 1, 0)
    assert found.silent_seconds == {"manifests": 3.0}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_who_asks_all_the_time_gets_the_same_text_for_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    state = a_cluster()

    def look() -> AdmissionState:
        looks.append(1)
        return state

    text = webhook_figures(ReviewMeter(), ViewCollector(lambda: measures_of({}, {}, 0.0), look, lambda: NOW), lambda: 0)
    made = len(looks)
    assert text() == text()
    assert len(looks) == made + 1
    monkeypatch.setattr(exposition, "KEPT_SECONDS", 0.0)
    text()
    assert len(looks) == made + 2


# --- the port ---


@contextmanager
def asked(listen: Listen | None = None) -> Iterator[httpx.Client]:
    with (
        serving_metrics(lambda: b"figure 1\n", listen or MetricsListen(port=0)) as port,
        httpx.Client(base_url=f"http://127.0.0.1:{port}") as client,
    ):
        yield client


def test_figures_are_served_at_one_path_for_reading_alone() -> None:
    with asked() as client:
        found = client.get("/metrics")
        assert (found.status_code, found.text) == (200, "figure 1\n")
        assert found.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert client.get("/").status_code == 404
        assert client.post("/metrics", content=b"x" * 100_000).status_code == 405


def test_idle_connections_do_not_keep_the_figures_from_others() -> None:
    with asked() as client:
        assert client.get("/metrics").status_code == 200
        port = client.base_url.port
        held = [httpx.Client(base_url=f"http://127.0.0.1:{port}") for _ in range(2 * MAX_CONNECTIONS_PER_ADDRESS)]
        for other in held:
            assert other.get("/metrics").status_code == 200
        for other in held:
            other.close()


def test_a_taken_port_is_refused_before_anything_is_served() -> None:
    with asked() as client, pytest.raises(Unavailable) as caught, asked(MetricsListen(port=client.base_url.port or 0)):
        pass
    assert caught.value.code is ReasonCode.ADDRESS_UNAVAILABLE


def test_no_figures_are_served_unless_a_port_is_given_and_then_on_loopback(site: Site) -> None:
    assert load_settings(WebhookSettings, site.file(site.settings)).metrics is None
    given = load_settings(WebhookSettings, site.file({**site.settings, "metrics": {}})).metrics
    assert given == MetricsListen(host="127.0.0.1", port=9445)


def test_a_running_webhook_serves_its_figures_and_writes_its_whole_log_when_it_is_stopped(site: Site) -> None:
    port, figures = free_port(), free_port()
    settings = {**site.settings, "listen": {"port": port}, "metrics": {"port": figures}}
    command = [sys.executable, "-m", "nodewarden", "admission", "webhook", "--config", str(site.file(settings))]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    # The site's results are of the tests' time: by now they have all ended.
    review = json.dumps(a_review(BINDING, sub="binding")).encode()
    try:
        with httpx.Client(verify=trusting(site.certificate)) as client:
            end = time.monotonic() + 30
            while True:
                try:
                    client.get(f"https://127.0.0.1:{port}/healthz")
                    break
                except httpx.ConnectError:
                    assert process.poll() is None
                    assert time.monotonic() < end
                    time.sleep(0.05)
            for _ in range(50):
                assert client.post(f"https://127.0.0.1:{port}/validate", content=review).status_code == 200
            assert client.get(f"https://127.0.0.1:{port}/metrics").status_code == 404
            found = samples(client.get(f"http://127.0.0.1:{figures}/metrics").text)
    finally:
        process.terminate()
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 0
    assert found[labelled("reviews_total", hook="validate", resource="pods/binding", decision="denied")] == 50
    assert found[labelled("view_objects", kind="nodes")] == 1
    assert found[labelled("process_resident_memory_bytes")] > 0
    assert not re.search("llm|gpu-1|" + NODE, json.dumps([list(labels) for _, labels in found]))
    events = [json.loads(line)["event"] for line in errors.splitlines()]
    assert events.count("pod_denied") == 50
    assert events[:3] == ["service_starting", "metrics_ready", "service_ready"]
