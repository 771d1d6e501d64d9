"""Who leads: one at a time, and of several one that hears the verifier."""

from __future__ import annotations

import copy
from typing import Any, cast

import pytest

from admission.controller.leadership import (
    DEAF,
    DEAF_SECONDS,
    LEASE_SECONDS,
    RETRY_SECONDS,
    STAY_AWAY_SECONDS,
    WANTED_BY,
    Leadership,
)
from admission.kube import KubeClient, KubeConflict, KubeNotFound


class LeaseApi:
    """An API server with one Lease, or none."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 0

    def request(self, method: str, path: str, body: Any = None, **_: Any) -> Any:
        if method == "GET":
            if self.lease is None:
                raise KubeNotFound(404, "NotFound", path, "no Lease")
            return copy.deepcopy(self.lease)
        if self.lease is not None and body["metadata"].get("resourceVersion") != str(self.version):
            raise KubeConflict(409, "Conflict", path, "changed")
        self.version += 1
        self.lease = copy.deepcopy(body)
        self.lease["metadata"]["resourceVersion"] = str(self.version)
        return self.lease

    @property
    def holder(self) -> str:
        assert self.lease is not None
        return str(self.lease["spec"]["holderIdentity"])

    @property
    def said(self) -> dict[str, str]:
        assert self.lease is not None
        return dict(self.lease["metadata"].get("annotations") or {})


class Replicas:
    """Candidates that look at the Lease in turn; `moment` is the clock of all."""

    def __init__(self, *names: str) -> None:
        self.api, self.moment = LeaseApi(), 1000.0
        self.hearing = set(names)
        self.all = {name: self._replica(name) for name in names}

    def _replica(self, name: str) -> Leadership:
        client = cast("KubeClient", self.api)
        return Leadership(client, "nodewarden-system", name, lambda: name in self.hearing, lambda: self.moment)

    def rounds(self, seconds: float, *names: str) -> None:
        """Lets time pass for those names (all by default); never do two of them hold the lead."""
        end = self.moment + seconds
        while self.moment < end:
            for name in names or self.all:
                self.all[name].round()
                assert len(self.leading()) <= 1
            self.moment += RETRY_SECONDS

    def leading(self) -> list[str]:
        return [name for name, replica in self.all.items() if replica.holds()]


@pytest.fixture
def replicas() -> Replicas:
    made = Replicas("first", "second")
    made.rounds(3)
    assert made.leading() == ["first"]
    return made


def test_a_leader_that_hears_nothing_gives_the_lead_to_one_that_does(replicas: Replicas) -> None:
    replicas.hearing.discard("first")
    replicas.rounds(DEAF_SECONDS - RETRY_SECONDS)
    assert (replicas.leading(), replicas.api.said) == (["first"], {})
    replicas.rounds(4 * RETRY_SECONDS + RETRY_SECONDS)
    assert replicas.leading() == ["second"]
    assert (replicas.api.holder, replicas.api.said) == ("second", {})
    replicas.rounds(30)
    assert replicas.leading() == ["second"]


def test_while_nobody_hears_the_verifier_the_leader_goes_on_and_says_so(replicas: Replicas) -> None:
    replicas.hearing.clear()
    replicas.rounds(60)
    assert (replicas.leading(), replicas.api.said) == (["first"], {DEAF: "true"})
    replicas.hearing.add("first")
    replicas.rounds(3)
    assert (replicas.leading(), replicas.api.said) == (["first"], {})


def test_a_leader_that_hears_again_keeps_the_lead_though_it_was_asked_for_it(replicas: Replicas) -> None:
    replicas.hearing.discard("first")
    replicas.rounds(DEAF_SECONDS + RETRY_SECONDS, "first")
    replicas.all["second"].round()
    assert replicas.api.said == {DEAF: "true", WANTED_BY: "second"}
    replicas.hearing.add("first")
    replicas.rounds(10)
    assert (replicas.leading(), replicas.api.said) == (["first"], {})


def test_a_leader_takes_the_lead_back_where_nobody_took_it(replicas: Replicas) -> None:
    replicas.hearing.discard("first")
    replicas.rounds(DEAF_SECONDS + RETRY_SECONDS, "first")
    replicas.all["second"].round()  # asks, and is never heard of again
    replicas.all["first"].round()
    assert (replicas.leading(), replicas.api.holder) == ([], "")
    replicas.rounds(STAY_AWAY_SECONDS - RETRY_SECONDS, "first")
    assert replicas.leading() == []
    replicas.rounds(2 * RETRY_SECONDS, "first")
    assert replicas.leading() == ["first"]


def test_a_deaf_replica_asks_for_nothing(replicas: Replicas) -> None:
    replicas.hearing.clear()
    replicas.rounds(20)
    assert WANTED_BY not in replicas.api.said


def test_a_lead_that_is_not_renewed_is_taken_after_the_whole_time_and_not_before(replicas: Replicas) -> None:
    replicas.rounds(LEASE_SECONDS - RETRY_SECONDS, "second")
    assert replicas.api.holder == "first"
    replicas.rounds(3 * RETRY_SECONDS, "second")
    assert replicas.leading() == ["second"]


def test_a_replica_that_lost_the_race_holds_nothing(replicas: Replicas) -> None:
    plain = replicas.api.request

    def late(method: str, path: str, body: Any = None, **options: Any) -> Any:
        if method == "PUT":
            replicas.api.version += 1
        return plain(method, path, body, **options)

    replicas.api.request = late  # type: ignore[method-assign]  # - another always writes between reading and writing
    replicas.all["first"].round()
    assert replicas.leading() == []
