"""Leases as objects of a cluster: recorded before anything is read, shared by replicas, and dead once revoked."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from admission.cluster_leases import MAX_SILENCE_SECONDS, RELEASES, ClusterLeases
from admission.decision import Release
from admission.kube import KubeClient
from admission.lease_records import read_record, release_object
from admission.leases import lease_key
from tests.admission.releases_api import Releases
from tests.admission.scripted_api import Asked, Said, a_status, scripted_api
from tests.admission.world import BOOT_ID, NODE, NODE_UID, NOW, POD_UID, a_node, a_pod, a_result, a_workload
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence, Refusal

KEY, OTHER_KEY = "cb" * 32, "dc" * 32
NAME = lease_key(POD_UID, NODE_UID, BOOT_ID, "llm/key")


def a_release(*secrets: str) -> Release:
    grants = tuple(a_workload().secrets[name] for name in secrets or ("llm/key",))
    return Release(a_pod(node_name=NODE), a_node(), a_result(), {}, BOOT_ID, grants)


def eventually(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@dataclass
class Site:
    api: Releases
    client: KubeClient
    asked: list[Asked]
    books: list[ClusterLeases]
    clock: list[float]

    def book(self) -> ClusterLeases:
        """A replica's leases, which it has read."""
        made = ClusterLeases(self.client, lambda: time.monotonic() + self.clock[0])
        self.books.append(made)
        made.start()
        eventually(lambda: made.unready() is None)
        return made

    def fall_silent(self) -> None:
        """No watch tells anything any more, and that has lasted too long."""
        for book in self.books:
            book.stop()
        self.api.close()
        eventually(lambda: not any(thread.name == f"informer {RELEASES}" for thread in threading.enumerate()))
        self.clock[0] = MAX_SILENCE_SECONDS + 1

    def writes(self) -> list[str]:
        return [asked.method for asked in self.asked if asked.method != "GET"]


@contextmanager
def a_site(folder: Path) -> Iterator[Site]:
    api = Releases()
    with scripted_api(folder, api) as (client, asked):
        site = Site(api, client, asked, [], [0.0])
        try:
            yield site
        finally:
            for book in site.books:
                book.stop()
            api.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with a_site(tmp_path) as made:
        yield made


def refused(take: Callable[[], object]) -> ReasonCode:
    with pytest.raises(Refusal) as caught:
        take()
    return caught.value.code


def test_a_lease_is_an_object_with_names_and_digests_and_nothing_else(site: Site) -> None:
    [lease] = site.book().take(a_release(), KEY, NOW)
    [made] = site.api.items.values()
    assert made["metadata"]["name"] == NAME == lease.key
    assert made["metadata"]["uid"] == lease.lease_id
    assert made["spec"] == {
        "secret": "llm/key",
        "namespace": "ml",
        "podName": "llm-0",
        "podUID": POD_UID,
        "nodeName": NODE,
        "nodeUID": NODE_UID,
        "bootID": BOOT_ID,
        "bindingKeyThumbprint": KEY,
        "evidenceDigest": "ee" * 32,
        "expires": "2027-01-15T08:04:00Z",
    }
    assert lease.expires_at == NOW + 240


def test_asking_again_gives_the_same_lease_without_a_word_to_the_server(site: Site) -> None:
    book = site.book()
    first = book.take(a_release(), KEY, NOW)
    eventually(lambda: book.get(NAME) is not None)
    before = len(site.asked)
    assert book.take(a_release(), KEY, NOW + 239) == first
    assert len(site.asked) == before


def test_another_replica_and_a_restarted_one_give_the_same_lease(site: Site) -> None:
    one, other = site.book(), site.book()
    first = one.take(a_release(), KEY, NOW)
    assert other.take(a_release(), KEY, NOW + 1) == first
    assert site.book().take(a_release(), KEY, NOW + 2) == first
    assert len(site.api.items) == 1


def test_two_replicas_that_have_not_heard_of_each_other_give_one_lease(site: Site) -> None:
    one, other = site.book(), site.book()
    site.api.silent = True
    assert one.take(a_release(), KEY, NOW) == other.take(a_release(), KEY, NOW)
    assert refused(lambda: other.take(a_release(), OTHER_KEY, NOW)) is ReasonCode.LEASE_HELD


def test_a_running_lease_is_not_given_to_another_binding_key(site: Site) -> None:
    book = site.book()
    book.take(a_release(), KEY, NOW)
    eventually(lambda: book.get(NAME) is not None)
    assert refused(lambda: book.take(a_release(), OTHER_KEY, NOW + 1)) is ReasonCode.LEASE_HELD


def test_an_ended_lease_is_followed_by_another_one_of_its_name(site: Site) -> None:
    book = site.book()
    [first] = book.take(a_release(), KEY, NOW)
    eventually(lambda: book.get(NAME) is not None)
    later = replace(a_release(), result=a_result(expires_at=NOW + 540))
    [second] = book.take(later, OTHER_KEY, NOW + 240)
    assert second.lease_id != first.lease_id
    assert second.expires_at == NOW + 540
    assert [*site.api.items] == [NAME]


def test_a_revoked_lease_is_denied_for_good_by_every_replica_and_after_a_restart(site: Site) -> None:
    book = site.book()
    leases = book.take(a_release(), KEY, NOW)
    eventually(lambda: book.get(NAME) is not None)
    book.require_standing(leases)
    site.api.order(NAME)
    eventually(lambda: refused_or_none(book, NOW + 1) is ReasonCode.LEASE_REVOKED)
    assert refused(lambda: book.require_standing(leases)) is ReasonCode.LEASE_REVOKED
    restarted = site.book()
    for now in (NOW + 1, NOW + 241, NOW + 100_000):
        assert refused(lambda now=now: restarted.take(a_release(), KEY, now)) is ReasonCode.LEASE_REVOKED  # type: ignore[misc]  # - a loop's default
    # Another pod is another lease.
    other = replace(a_release(), pod=a_pod(node_name=NODE, uid="another"))
    assert len(restarted.take(other, KEY, NOW + 1)) == 1


def refused_or_none(book: ClusterLeases, now: int) -> ReasonCode | None:
    try:
        book.take(a_release(), KEY, now)
    except Refusal as refusal:
        return refusal.code
    return None


def test_an_order_that_was_not_heard_yet_is_found_where_the_lease_would_be_renewed(site: Site) -> None:
    book = site.book()
    book.take(a_release(), KEY, NOW)
    eventually(lambda: book.get(NAME) is not None)
    site.api.silent = True
    site.api.order(NAME)
    assert refused(lambda: book.take(a_release(), KEY, NOW + 240)) is ReasonCode.LEASE_REVOKED
    assert NAME in site.api.items


def test_one_revoked_part_of_a_request_leaves_no_record_of_the_others(site: Site) -> None:
    book = site.book()
    book.take(a_release(), KEY, NOW)
    site.api.order(NAME)
    eventually(lambda: refused_or_none(book, NOW) is ReasonCode.LEASE_REVOKED)
    assert refused(lambda: book.take(a_release("llm/other", "llm/key"), KEY, NOW)) is ReasonCode.LEASE_REVOKED
    assert [*site.api.items] == [NAME]


@pytest.mark.parametrize(
    "answer",
    [Said(a_status(403, "Forbidden"), 403), Said(a_status(500, "InternalError"), 500), Said(a_status(404, "x"), 404)],
    ids=["may not", "server broken", "kind not installed"],
)
def test_a_lease_that_cannot_be_recorded_is_no_lease(site: Site, answer: Said) -> None:
    book = site.book()
    site.api.refuse["POST"] = answer
    assert refused(lambda: book.take(a_release(), KEY, NOW)) is ReasonCode.LEASE_NOT_RECORDED
    assert site.api.items == {}


def test_before_the_records_were_read_and_once_they_are_silent_too_long_nothing_is_leased(site: Site) -> None:
    unread = ClusterLeases(site.client)
    assert refused(lambda: unread.take(a_release(), KEY, NOW)) is ReasonCode.VIEW_STALE
    book = site.book()
    site.fall_silent()
    assert refused(lambda: book.take(a_release(), KEY, NOW)) is ReasonCode.VIEW_STALE
    assert site.writes() == []


def test_a_record_that_cannot_be_read_is_not_a_record_that_does_not_exist(site: Site) -> None:
    fields = stored()
    del fields["spec"]["expires"]
    site.api.put(fields)
    assert refused(lambda: site.book().take(a_release(), KEY, NOW)) is ReasonCode.LEASE_NOT_RECORDED
    assert site.writes() == []


def test_a_lease_whose_record_became_unreadable_stands_no_more(site: Site) -> None:
    book = site.book()
    leases = book.take(a_release(), KEY, NOW)
    eventually(lambda: book.get(NAME) is not None)
    book.require_standing(leases)
    site.api.put(stored(expires="soon"))
    eventually(lambda: book.count(NOW)["unreadable"] == 1)
    assert refused(lambda: book.require_standing(leases)) is ReasonCode.LEASE_NOT_RECORDED
    assert refused(lambda: book.take(a_release(), KEY, NOW)) is ReasonCode.LEASE_NOT_RECORDED
    site.api.put(stored())
    eventually(lambda: book.count(NOW)["unreadable"] == 0)
    book.require_standing(leases)


def test_a_lease_of_which_nothing_can_be_heard_any_more_stands_no_more(site: Site) -> None:
    book = site.book()
    leases = book.take(a_release(), KEY, NOW)
    site.fall_silent()
    assert refused(lambda: book.require_standing(leases)) is ReasonCode.VIEW_STALE


def stored(**spec: Any) -> dict[str, Any]:
    made = release_object(a_release(), a_release().grants[0], KEY, NOW)
    return {**made, "metadata": {"name": NAME, "uid": "u", "resourceVersion": "1"}, "spec": {**made["spec"], **spec}}


@pytest.mark.parametrize(
    "spec", [{"podUID": "another"}, {"secret": "llm/other"}, {"bootID": "x"}, {"nodeUID": "x"}], ids=str
)
def test_a_record_under_a_name_that_is_not_its_key_is_refused(spec: dict[str, str]) -> None:
    assert read_record(stored()).lease().key == NAME
    with pytest.raises(MalformedEvidence) as caught:
        read_record(stored(**spec))
    assert caught.value.code is ReasonCode.MANIFEST_INVALID


@pytest.mark.parametrize("expires", ["soon", "2027-01-15T08:04:00", 5, None])
def test_a_record_without_a_readable_end_is_refused(expires: object) -> None:
    with pytest.raises(MalformedEvidence) as caught:
        read_record(stored(expires=expires))
    assert caught.value.code is ReasonCode.MANIFEST_INVALID
