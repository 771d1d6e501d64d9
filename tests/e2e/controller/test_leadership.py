"""Several controllers, and a verifier that is not heard: one leads, and nobody vouches for what was not heard."""

from __future__ import annotations

import time
from typing import Any

from tests.e2e.controllers import (
    HOLDS,
    LEASES,
    VERIFIED,
    Controllers,
    until,
)
from tests.e2e.relay import Relay
from verifier.wire.result import Verdict


def test_when_the_stream_is_cut_the_results_lease_is_no_longer_renewed(cluster: Controllers, verified: str) -> None:
    first = cluster.renewed()
    until("it is renewed", lambda: cluster.renewed() != first, 12)
    cluster.stream.stop()
    time.sleep(1.0)
    last = cluster.renewed()
    time.sleep(12)
    assert cluster.renewed() == last
    # Mere silence: what was proved still stands until it ends by itself.
    assert cluster.labels(verified) == {VERIFIED, HOLDS}
    cluster.stream.start()
    until("it is renewed again", lambda: cluster.renewed() != last, 20)


def test_results_that_came_while_the_stream_was_cut_are_caught_up(cluster: Controllers, verified: str) -> None:
    cluster.stream.stop()
    cluster.stream.publish(cluster.get_node(verified), Verdict.CONTRAINDICATED)
    cluster.stream.start()
    cluster.wait_unlabelled(verified)


def test_another_replica_takes_over_when_the_leader_is_killed(cluster: Controllers, verified: str) -> None:
    leader = cluster.running[0]
    cluster.start("second")
    time.sleep(3)
    lease = cluster.admin.must_get(f"{LEASES}/nodewarden-controller")
    assert lease["spec"]["holderIdentity"] == "controller"
    leader.process.kill()
    node = cluster.get_node(verified)
    cluster.stream.publish(node, Verdict.CONTRAINDICATED)
    # A killed leader gives nothing back: the other waits for the Lease to be abandoned.
    took = cluster.wait_unlabelled(verified, 30)
    assert took > 5
    lease = cluster.admin.must_get(f"{LEASES}/nodewarden-controller")
    assert lease["spec"]["holderIdentity"] == "second"


def test_a_leader_that_does_not_hear_the_verifier_is_followed_by_one_that_does(
    cluster: Controllers, gpu: dict[str, Any]
) -> None:
    relay = Relay(cluster.stream.url)
    try:
        link = {"ca_file": str(cluster.stream.ca), "token_file": str(cluster.stream.token_file)}
        cluster.start("deaf", verifier={"url": relay.url, **link})
        cluster.stream.publish(gpu)
        name = gpu["metadata"]["name"]
        cluster.wait_labelled(name)
        cluster.start("second")
        time.sleep(3)
        lease = cluster.admin.must_get(f"{LEASES}/nodewarden-controller")
        assert lease["spec"]["holderIdentity"] == "deaf"
        relay.cut()
        cluster.stream.publish(gpu, Verdict.CONTRAINDICATED)
        # Ten seconds until silence counts, five until it is said, three rounds of the election: less than the thirty
        # after which webhook and broker would deny everything.
        cluster.wait_unlabelled(name, 30)
        lease = cluster.admin.must_get(f"{LEASES}/nodewarden-controller")
        assert lease["spec"]["holderIdentity"] == "second"
        before = cluster.renewed()
        until("results are fresh again", lambda: cluster.renewed() != before, 12)
    finally:
        relay.close()


def test_a_leader_that_stops_in_order_is_followed_at_once(cluster: Controllers, verified: str) -> None:
    cluster.start("second")
    time.sleep(3)
    cluster.running[0].stop()
    cluster.stream.publish(cluster.get_node(verified), Verdict.CONTRAINDICATED)
    assert cluster.wait_unlabelled(verified, 30) < 5
