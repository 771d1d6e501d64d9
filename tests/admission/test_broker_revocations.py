"""Orders to revoke: obeyed at once, answered in the record, tried until they are done, and forgotten after a while."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from admission.cluster_view import AdmissionState
from admission.lease_records import read_record, revoked_status
from admission.revocations import KEEP_ENDED_SECONDS, KEEP_REVOKED_SECONDS, Revocations
from admission.sealed_store import SealedStore
from tests.admission.scripted_api import Said, a_status
from tests.admission.test_broker_cluster_leases import KEY, NAME, Site, a_release, a_site, eventually, stored
from tests.admission.world import NODE, NOW, a_cluster, a_pod
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure, Unavailable

RUNS = a_cluster(pod=a_pod(node_name=NODE))
GONE = replace(RUNS, pods={})


class Backend:
    """A backend that cannot be reached until it can."""

    def __init__(self) -> None:
        self.ended: list[tuple[str, str]] = []
        self.down = False

    def read(self, name: str) -> bytes:
        raise AssertionError(name)

    def end_lease(self, name: str, lease_id: str) -> str:
        if self.down:
            raise Unavailable(ReasonCode.STORE_UNAVAILABLE, "backend", "sealed")
        self.ended.append((name, lease_id))
        return "done"


class Broker:
    """What a broker's process has for revocations."""

    def __init__(self, site: Site) -> None:
        self.site, self.backend, self.now = site, Backend(), NOW
        self.cluster: AdmissionState = RUNS
        self.leases = site.book()
        self.work = Revocations(self.leases, site.client, self.backend, lambda: self.cluster, lambda: self.now)
        self.work.start()

    def lease(self) -> str:
        [lease] = self.leases.take(a_release(), KEY, NOW)
        eventually(lambda: self.leases.get(NAME) is not None)
        return lease.lease_id

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = self.site.api.items[NAME].get("status", {})
        return status

    def revoked(self) -> dict[str, Any]:
        return next((c for c in self.status().get("conditions", []) if c["type"] == "Revoked"), {})

    def forgets(self, at: int) -> bool:
        """Whether a sweep at that time, and the work that follows it, deletes the record."""
        self.now = at
        self.work.sweep()
        self.work.reconcile(NAME)
        return NAME not in self.site.api.items


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with a_site(tmp_path) as site:
        made = Broker(site)
        yield made
        made.work.stop()


def test_an_order_is_answered_with_the_time_and_a_condition_beside_the_controllers(broker: Broker) -> None:
    lease_id = broker.lease()
    broker.site.api.order(NAME)
    eventually(lambda: "revokedAt" in broker.status())
    assert broker.status()["revokedAt"] == "2027-01-15T08:00:00Z"
    assert [c["type"] for c in broker.status()["conditions"]] == ["RevocationRequested", "Revoked"]
    assert (broker.revoked()["status"], broker.revoked()["reason"]) == ("True", "LeaseEnded")
    assert broker.backend.ended == [("llm/key", lease_id)]


def test_an_order_of_before_the_broker_came_is_answered_when_it_comes(tmp_path: Path) -> None:
    with a_site(tmp_path) as site:
        site.api.put(stored())
        site.api.order(NAME)
        broker = Broker(site)
        # Read before the work began: the sweep finds it.
        broker.work.sweep()
        eventually(lambda: "revokedAt" in broker.status())
        broker.work.stop()


def test_a_revocation_that_fails_shows_for_what_and_is_tried_until_it_is_done(broker: Broker) -> None:
    broker.lease()
    broker.backend.down = True
    broker.site.api.order(NAME)
    eventually(lambda: broker.revoked().get("status") == "False")
    assert broker.revoked()["reason"] == "RevocationFailed"
    assert ReasonCode.STORE_UNAVAILABLE.value in broker.revoked()["message"]
    assert "revokedAt" not in broker.status()
    broker.backend.down = False
    eventually(lambda: broker.revoked().get("status") == "True")
    assert "revokedAt" in broker.status()


def test_the_same_failure_is_written_once(broker: Broker) -> None:
    broker.lease()
    broker.backend.down = True
    broker.site.api.order(NAME)
    eventually(lambda: broker.revoked().get("status") == "False")
    version = broker.site.api.items[NAME]["metadata"]["resourceVersion"]
    for _ in range(3):
        with pytest.raises(Unavailable) as caught:
            eventually_same(broker)
        assert caught.value.code is ReasonCode.STORE_UNAVAILABLE
    assert broker.site.api.items[NAME]["metadata"]["resourceVersion"] == version


def eventually_same(broker: Broker) -> None:
    known = broker.site.api.items[NAME]["metadata"]["resourceVersion"]
    eventually(lambda: getattr(broker.leases.get(NAME), "version", "") == known)
    broker.work.reconcile(NAME)


def test_an_answer_that_cannot_be_written_is_written_later_and_nothing_is_released_meanwhile(broker: Broker) -> None:
    broker.lease()
    broker.site.api.refuse["PATCH"] = Said(a_status(500, "InternalError"), 500)
    broker.site.api.order(NAME)
    eventually(lambda: len(broker.backend.ended) > 1)
    with pytest.raises(Exception, match=ReasonCode.LEASE_REVOKED.value):
        broker.leases.take(a_release(), KEY, NOW)
    del broker.site.api.refuse["PATCH"]
    eventually(lambda: "revokedAt" in broker.status())


def test_an_answer_of_which_the_condition_was_overwritten_is_given_again_with_its_first_time(broker: Broker) -> None:
    broker.lease()
    broker.site.api.order(NAME)
    eventually(lambda: "revokedAt" in broker.status())
    record = read_record(broker.site.api.items[NAME])
    assert not record.open
    bare = replace(record, conditions=record.conditions[:1])
    assert bare.open
    assert "revokedAt" not in revoked_status(bare, "again", NOW + 60)


def test_the_sealed_store_has_nothing_to_end_and_says_what_is_left_to_do(tmp_path: Path) -> None:
    store = SealedStore.create(tmp_path / "secrets", tmp_path / "key")
    store.put("llm/key", b"content")
    assert "llm/key" in store.end_lease("llm/key", "id")
    assert store.read("llm/key") == b"content"


def test_an_ended_lease_is_forgotten_after_a_day(broker: Broker) -> None:
    broker.lease()
    end = NOW + 240
    assert not broker.forgets(end + KEEP_ENDED_SECONDS)
    assert broker.forgets(end + KEEP_ENDED_SECONDS + 1)


def test_a_revoked_lease_is_remembered_for_a_week_and_as_long_as_its_pod_may_be(broker: Broker) -> None:
    broker.lease()
    broker.site.api.order(NAME)
    eventually(lambda: getattr(broker.leases.get(NAME), "revoked", False))
    due = NOW + 240 + KEEP_REVOKED_SECONDS + 1
    broker.cluster = GONE
    assert not broker.forgets(due - 1)
    broker.cluster = RUNS
    assert not broker.forgets(due)
    broker.cluster = replace(GONE, fault=Failure(ReasonCode.VIEW_STALE, "view"))
    assert not broker.forgets(due)
    broker.cluster = a_cluster(pod=a_pod(uid="another"))
    assert broker.forgets(due)


def test_an_order_without_answer_is_never_forgotten(broker: Broker) -> None:
    broker.lease()
    broker.backend.down = True
    broker.site.api.order(NAME)
    eventually(lambda: broker.revoked().get("status") == "False")
    broker.cluster = GONE
    broker.now = NOW + 100 * KEEP_REVOKED_SECONDS
    broker.work.sweep()
    with pytest.raises(Unavailable) as caught:
        eventually_same(broker)
    assert caught.value.code is ReasonCode.STORE_UNAVAILABLE
    assert NAME in broker.site.api.items
