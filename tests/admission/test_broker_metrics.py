"""The broker's figures: what it answered and why, which leases run, how revocations go; and no names in any of it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from admission.broker import broker_app
from admission.broker_metrics import BrokerCollector, BrokerMeter
from admission.exposition import Exposition
from admission.revocations import Revocations
from admission.settings import BrokerSettings, load_settings
from admission.view_measures import measures_of
from tests.admission.figures import explained, figures, served
from tests.admission.served import trusting
from tests.admission.test_broker import SECRET, World
from tests.admission.test_broker_cluster_leases import KEY, NAME, Site, a_release, a_site, eventually
from tests.admission.test_broker_in_cluster import ClusterWorld
from tests.admission.test_broker_revocations import RUNS, Backend
from tests.admission.test_settings_and_assembly import Site as Files
from tests.admission.test_settings_and_assembly import free_port
from tests.admission.world import NODE, NOW, EccAk, a_result, envelope
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Unavailable
from verifier.wire.result import Verdict

MEASURES = measures_of({"nodes": [[1]]}, {"nodes": 0.0}, 5.0)


def counted(world: World) -> BrokerMeter:
    """The world's broker with a meter that the test reads."""
    meter = BrokerMeter()
    world.app = broker_app(world.service, lambda: None, 60, lambda: world.now, meter=meter)
    return meter


def text_of(meter: BrokerMeter, leases: Any = lambda _: {"live": 0}) -> bytes:
    return Exposition(BrokerCollector(meter, leases, lambda: MEASURES, lambda: NOW, lambda: 3))()


def figure(text: bytes, name: str, **labels: str) -> float:
    inside = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
    return figures(text)[f"nodewarden_broker_{name}" + (f"{{{inside}}}" if inside else "")]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.database.close()


def test_requests_are_counted_by_outcome_and_code(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    meter = counted(world)
    assert world.post(world.asked(("llm/key", "llm/other"))).status_code == 200
    assert world.code(envelope(EccAk(), world.token(), ["llm/key"])) is ReasonCode.POSSESSION_NOT_PROVED
    assert world.code(b"{", 400)
    world.with_result(verdict=Verdict.CONTRAINDICATED)
    assert world.code(world.asked()) is ReasonCode.NODE_NOT_VERIFIED
    world.with_result()

    def away(_: str) -> bytes:
        raise Unavailable(ReasonCode.STORE_UNAVAILABLE, "secrets", "away")

    monkeypatch.setattr(world.store, "read", away)
    assert world.code(world.asked(), 503) is ReasonCode.STORE_UNAVAILABLE
    monkeypatch.setattr(world.store, "read", lambda _: 1 / 0)
    assert world.code(world.asked(), 500) is ReasonCode.INTERNAL_ERROR
    text = text_of(meter)
    outcomes = {"released": 1, "denied": 1, "refused": 2, "unavailable": 1, "failed": 1}
    assert {name: figure(text, "requests_total", outcome=name) for name in outcomes} == outcomes
    for outcome, code in (
        ("refused", ReasonCode.POSSESSION_NOT_PROVED),
        ("denied", ReasonCode.NODE_NOT_VERIFIED),
        ("unavailable", ReasonCode.STORE_UNAVAILABLE),
    ):
        assert figure(text, "request_reasons_total", outcome=outcome, code=code.value) == 1
    assert figure(text, "secrets_released_total") == 2
    assert figure(text, "request_seconds_count") == 6
    assert figure(text, "request_seconds_bucket", le="+Inf") == 6
    assert 0 < figure(text, "request_seconds_sum") < 60


def test_leases_are_counted_by_state_where_there_is_no_cluster(world: World) -> None:
    meter = counted(world)
    world.post(world.asked(("llm/key", "llm/other")))
    book = world.service._leases
    assert book.count(NOW) == {"live": 2, "ended": 0}
    # The one lasts for 60 seconds, the other as long as the result.
    assert book.count(NOW + 61) == {"live": 1, "ended": 1}
    assert figure(text_of(meter, book.count), "leases", state="live") == 2


def test_leases_are_counted_by_state_in_a_cluster(tmp_path: Path) -> None:
    with a_site(tmp_path / "site") as site:
        world = ClusterWorld(tmp_path, site)
        book = world.book
        world.post(world.asked())
        eventually(lambda: book.count(NOW)["live"] == 1)
        assert book.count(NOW + 240)["ended"] == 1
        world.revoke()
        assert (book.count(NOW)["live"], book.count(NOW)["ordered"]) == (0, 1)
        site.api.put({"metadata": {"name": "of-another-form", "uid": "u"}, "spec": {}})
        eventually(lambda: book.count(NOW)["unreadable"] == 1)
        world.database.close()


def test_revocations_that_fail_and_that_are_done_are_counted(tmp_path: Path) -> None:
    with a_site(tmp_path) as site:
        meter, backend = BrokerMeter(), Backend()
        work, book = _revocations(site, backend, meter)
        backend.down = True
        book.take(a_release(), KEY, NOW)
        eventually(lambda: book.get(NAME) is not None)
        site.api.order(NAME)
        eventually(lambda: figures(text_of(meter)).get('nodewarden_broker_revocations_total{step="failed"}', 0) >= 1)
        backend.down = False
        eventually(lambda: figures(text_of(meter)).get('nodewarden_broker_revocations_total{step="done"}', 0) == 1)
        eventually(lambda: book.count(NOW)["revoked"] == 1)
        work.stop()


def _revocations(site: Site, backend: Backend, meter: BrokerMeter) -> tuple[Revocations, Any]:
    book = site.book()
    work = Revocations(book, site.client, backend, lambda: RUNS, lambda: NOW, meter)
    work.start()
    return work, book


def test_leases_that_cannot_be_counted_leave_the_other_figures(world: World) -> None:
    meter = counted(world)
    world.post(world.asked())
    world.database.close()
    text = text_of(meter, world.service._leases.count)
    assert not [name for name in figures(text) if name.startswith("nodewarden_broker_leases{")]
    assert figure(text, "requests_total", outcome="released") == 1
    assert figure(text, "view_silent_seconds", source="nodes") == 5
    assert figure(text, "log_lines_lost_total") == 3


def test_every_figure_is_explained_and_none_else() -> None:
    meter = BrokerMeter()
    assert served(text_of(meter)) == explained("nodewarden_broker")


def test_no_figures_are_served_unless_a_port_is_given(tmp_path: Path) -> None:
    files = Files(tmp_path)
    assert load_settings(BrokerSettings, files.file(files.broker)).metrics is None
    given = load_settings(BrokerSettings, files.file({**files.broker, "metrics": {}})).metrics
    assert given is not None
    assert (given.host, given.port) == ("127.0.0.1", 9445)


def test_a_running_broker_serves_figures_that_name_nobody(tmp_path: Path) -> None:
    files = Files(tmp_path)
    port, scraped = free_port(), free_port()
    now = int(time.time())  # noqa: TID251 - the process under test has the machine's clock
    files.attest(issued_at=now - 10, expires_at=now + 200, sequence=now * 1000)
    config = str(files.file({**files.broker, "listen": {"port": port}, "metrics": {"port": scraped}}))
    process = subprocess.Popen([sys.executable, "-m", "nodewarden", "admission", "broker", "--config", config])
    try:
        with httpx.Client(verify=trusting(files.certificate), trust_env=False) as client:
            _ready(client, f"https://127.0.0.1:{port}/healthz", process)
            posted = envelope(files.ak, "no token", ["llm/key"]).model_dump_json().encode()
            assert client.post(f"https://127.0.0.1:{port}/v1/secrets/release", content=posted).status_code == 403
            assert client.get(f"https://127.0.0.1:{port}/metrics").status_code == 404
            text = client.get(f"http://127.0.0.1:{scraped}/metrics").content
    finally:
        process.terminate()
        process.wait(20)
    code = ReasonCode.TOKEN_INVALID.value
    assert figure(text, "request_reasons_total", outcome="refused", code=code) == 1
    assert figure(text, "view_objects", kind="nodes") == 1
    assert figure(text, "leases", state="live") == 0
    assert figures(text)["process_resident_memory_bytes"] > 0
    assert not re.search(f"llm|{NODE}|{SECRET!r}|{a_result().node_id}", json.dumps(list(figures(text))))


def _ready(client: httpx.Client, address: str, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 30
    answers = False
    while not answers:
        try:
            answers = client.get(address).is_success
        except httpx.ConnectError:
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.05)
