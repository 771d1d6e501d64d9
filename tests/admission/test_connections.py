"""Connections to webhook and broker: who asked something stays longest, and the quietest of those goes first."""

from __future__ import annotations

import pytest

from admission.connections import AskingConnections
from tests.edges.counted import Counted, opened


def test_who_asked_stays_while_there_are_others_and_then_the_quietest_goes() -> None:
    connections = AskingConnections(limit=3, per_address=10)
    asking = opened(Counted, connections, "192.0.2.1", 3)
    for connection, quiet_since in zip(asking, (2.0, 1.0, 3.0), strict=True):
        connection.quiet_since = quiet_since
        connections.asked(connection)
    (stranger,) = opened(Counted, connections, "192.0.2.2", 1)
    assert [connection.open for connection in asking] == [True, False, True]
    (newcomer,) = opened(Counted, connections, "192.0.2.3", 1)
    assert [connection.open for connection in (*asking, stranger, newcomer)] == [True, False, True, False, True]


def test_nobody_whose_request_is_being_answered_goes_for_a_newcomer() -> None:
    connections = AskingConnections(limit=2, per_address=10)
    for connection in opened(Counted, connections, "192.0.2.1", 2):
        connections.asked(connection)
        connection.idle = False
    assert not connections.opened(Counted(connections), "192.0.2.2")


def test_of_one_address_too_the_strangers_go_before_those_that_asked() -> None:
    connections = AskingConnections(limit=100, per_address=3)
    (other,) = opened(Counted, connections, "192.0.2.2", 1)
    asking, first, second = opened(Counted, connections, "192.0.2.1", 3)
    connections.asked(asking)
    opened(Counted, connections, "192.0.2.1", 2)
    assert [connection.open for connection in (other, asking, first, second)] == [True, True, False, False]
    for connection in opened(Counted, connections, "192.0.2.1", 2):
        connection.quiet_since = 1.0
        connections.asked(connection)
    # All three have asked now: the quietest of them.
    opened(Counted, connections, "192.0.2.1", 1)
    assert other.open and not asking.open


@pytest.mark.parametrize("asked", [True, False])
def test_nothing_is_kept_of_connections_that_are_gone(asked: bool) -> None:
    connections = AskingConnections(limit=20, per_address=10)
    for connection in opened(Counted, connections, "192.0.2.1", 15):
        if asked and connection.open:
            connections.asked(connection)
        if connection.open:
            connections.closed(connection)
    kept = (connections._silent, connections._strangers, connections._by_network, connections._asked)
    assert (connections._count, [dict(one) for one in kept]) == (0, [{}] * 4)
