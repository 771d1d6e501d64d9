"""The whole broker with leases in a cluster: what a node is answered whose lease is revoked or not recorded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from admission.broker import broker_app
from admission.cluster_view import PodIdentity
from admission.durable_state import UsedRequests
from admission.leases import lease_key
from admission.release import ReleaseService
from tests.admission.scripted_api import Said, a_status
from tests.admission.test_broker import SECRET, World, lease_of
from tests.admission.test_broker_cluster_leases import Site, a_site, eventually
from tests.admission.world import BOOT_ID, NODE_UID, POD_UID
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure

NAME = lease_key(POD_UID, NODE_UID, BOOT_ID, "llm/key")


class ClusterWorld(World):
    """A broker whose leases are objects; `told` are the denials that pods are told of."""

    def __init__(self, path: Path, site: Site) -> None:
        super().__init__(path)
        self.site, self.told = site, list[tuple[str, ReasonCode]]()
        self.book = site.book()
        self.service = ReleaseService(self, UsedRequests(self.database), self.book, self.store)
        self.app = broker_app(self.service, lambda: None, 60, lambda: self.now, denied=self.tell)

    def tell(self, identity: PodIdentity, failures: tuple[Failure, ...]) -> None:
        self.told.append((identity.pod_name, failures[0].code))

    def revoke(self) -> None:
        """The controller orders it, and the broker has heard."""
        self.site.api.order(NAME)
        eventually(lambda: getattr(self.book.get(NAME), "ordered", False))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ClusterWorld]:
    with a_site(tmp_path / "site") as site:
        made = ClusterWorld(tmp_path, site)
        yield made
        made.database.close()


def test_what_is_released_is_recorded_under_the_id_that_the_node_is_told(world: ClusterWorld) -> None:
    answer = world.post(world.asked())
    assert world.opened(answer) == SECRET
    assert lease_of(answer)[0] == world.site.api.items[NAME]["metadata"]["uid"]
    assert lease_of(world.post(world.asked())) == lease_of(answer)


def test_a_revoked_lease_is_denied_and_the_pod_is_told(world: ClusterWorld) -> None:
    world.post(world.asked())
    world.revoke()
    assert world.code(world.asked()) is ReasonCode.LEASE_REVOKED
    assert world.told == [("llm-0", ReasonCode.LEASE_REVOKED)]


def test_a_lease_that_is_revoked_while_its_secret_is_read_releases_nothing(
    world: ClusterWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reading(_: str) -> bytes:
        world.revoke()
        return SECRET

    monkeypatch.setattr(world.store, "read", reading)
    assert world.code(world.asked()) is ReasonCode.LEASE_REVOKED


def test_without_a_record_the_secret_is_not_even_read(world: ClusterWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def reading(name: str) -> bytes:
        read.append(name)
        return SECRET

    monkeypatch.setattr(world.store, "read", reading)
    world.site.api.refuse["POST"] = Said(a_status(403, "Forbidden"), 403)
    assert world.code(world.asked(), 503) is ReasonCode.LEASE_NOT_RECORDED
    assert read == []
    # Nobody's fault but ours, so nothing is told on the pod.
    assert world.told == []


def test_a_broker_that_hears_nothing_of_its_records_releases_nothing(world: ClusterWorld) -> None:
    world.site.fall_silent()
    assert world.code(world.asked(), 503) is ReasonCode.VIEW_STALE
