"""Who makes room: who said nothing first, then strangers, the oldest of them first."""

from __future__ import annotations

from edges.connections import Connections
from tests.edges.counted import Counted, opened


def test_who_said_nothing_goes_before_who_began_a_handshake_and_both_before_a_newcomer_is_turned_away() -> None:
    registry = Connections(limit=4, per_address=10)
    early, silent, late, busy = opened(Counted, registry, "192.0.2.1", 4)
    for speaking in (early, late, busy):
        registry.spoke(speaking)
    busy.idle = False
    gone = []
    for _ in range(4):
        (newcomer,) = opened(Counted, registry, "192.0.2.2", 1)
        registry.spoke(newcomer)
        newcomer.idle = False
        gone.append([connection.open for connection in (early, silent, late, busy)])
        if len(gone) == 3:
            break
    assert gone == [[True, False, True, True], [False, False, True, True], [False, False, False, True]]
    assert not registry.opened(Counted(registry), "192.0.2.3")


def test_a_connection_has_the_place_of_its_arrival_and_an_evicted_arrival_has_none_to_give() -> None:
    registry = Connections(limit=2, per_address=2)
    arrival, other = opened(Counted, registry, "192.0.2.1", 2)
    registry.spoke(arrival)
    connection = Counted(registry)
    assert registry.became(arrival, connection)
    opened(Counted, registry, "192.0.2.2", 1)
    assert (connection.open, other.open) == (True, False)
    assert not registry.became(other, Counted(registry))
    opened(Counted, registry, "192.0.2.2", 1)
    opened(Counted, registry, "192.0.2.2", 1)
    assert connection.open
    registry.closed(connection)
    assert registry._count == 1 and set(registry._by_network) == {"192.0.2.2"}


def test_one_address_displaces_its_own_first_whatever_those_did() -> None:
    registry = Connections(limit=100, per_address=3)
    (honest,) = opened(Counted, registry, "192.0.2.2", 1)
    own = opened(Counted, registry, "192.0.2.1", 3)
    for connection in own:
        registry.spoke(connection)
    opened(Counted, registry, "192.0.2.1", 2)
    assert honest.open and [connection.open for connection in own] == [False, False, True]
