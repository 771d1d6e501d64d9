"""Connections: a stranger's idle ones make room for others, and a node's are its own."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.edges.counted import Counted, opened
from verifier.api.connections import MAX_PROVEN_PENDING, MAX_PROVEN_PER_NODE, PENDING, NodeConnections


@dataclass(eq=False)
class _Connection(Counted):
    @property
    def _nodes(self) -> NodeConnections:
        assert isinstance(self.registry, NodeConnections)
        return self.registry

    def proved(self, by: str | None = None) -> None:
        self._nodes.proved(self, by)

    def held(self) -> None:
        self._nodes.held(self)


def test_a_full_server_closes_the_oldest_idle_stranger_for_a_newcomer() -> None:
    registry = NodeConnections(limit=5, per_address=10)
    strangers = opened(_Connection, registry, "192.0.2.1", 5)
    strangers[0].idle = False
    opened(_Connection, registry, "192.0.2.2", 1)
    assert [connection.open for connection in strangers] == [True, False, True, True, True]


def test_one_address_only_displaces_itself_until_the_server_is_full() -> None:
    registry = NodeConnections(limit=100, per_address=3)
    (honest,) = opened(_Connection, registry, "192.0.2.2", 1)
    strangers = opened(_Connection, registry, "192.0.2.1", 10)
    assert honest.open and [connection.open for connection in strangers] == [False] * 7 + [True] * 3
    # One IPv6 network is one address.
    neighbours = [_Connection(registry) for _ in range(5)]
    for number, connection in enumerate(neighbours):
        assert registry.opened(connection, f"2001:db8::{number}")
    assert [connection.open for connection in neighbours] == [False] * 2 + [True] * 3


def test_a_connection_that_proved_an_ak_or_a_token_is_never_closed_for_another() -> None:
    registry = NodeConnections(limit=4, per_address=2)
    nodes = []
    for _ in range(3):
        nodes += opened(_Connection, registry, "192.0.2.1", 1)
        nodes[-1].proved()
    strangers = opened(_Connection, registry, "192.0.2.9", 1) + opened(_Connection, registry, "192.0.2.1", 1)
    assert all(node.open for node in nodes) and [stranger.open for stranger in strangers] == [False, True]
    strangers[1].proved()
    assert not registry.opened(_Connection(registry), "192.0.2.7")
    registry.closed(nodes[0])
    assert registry.opened(_Connection(registry), "192.0.2.7")


def test_a_stranger_whose_requests_are_all_being_answered_may_open_no_more() -> None:
    registry = NodeConnections(limit=100, per_address=2)
    for connection in opened(_Connection, registry, "192.0.2.1", 2):
        connection.idle = False
    assert not registry.opened(_Connection(registry), "192.0.2.1")
    assert registry.opened(_Connection(registry), "192.0.2.2")


def test_a_full_server_closes_the_oldest_held_poll_for_a_newcomer_and_idle_strangers_before_it() -> None:
    registry = NodeConnections(limit=4)
    nodes = opened(_Connection, registry, "192.0.2.1", 3)
    for node in nodes:
        node.proved()
    nodes[2].held()
    nodes[1].held()
    stranger, newcomer = opened(_Connection, registry, "192.0.2.9", 1) + opened(_Connection, registry, "192.0.2.2", 1)
    assert [c.open for c in (*nodes, stranger, newcomer)] == [True, True, True, False, True]
    newcomer.proved()
    opened(_Connection, registry, "192.0.2.2", 1)[0].proved()
    assert [node.open for node in nodes] == [True, True, False]
    # Its poll was answered: it is a node's like any other, and there is no more room.
    registry.released(nodes[1])
    assert not registry.opened(_Connection(registry), "192.0.2.2")


def test_a_node_that_proves_itself_on_more_connections_than_it_needs_loses_its_own_oldest() -> None:
    registry = NodeConnections(limit=MAX_PROVEN_PER_NODE + 2)
    (honest,) = opened(_Connection, registry, "192.0.2.2", 1)
    honest.proved("node-1")
    greedy = []
    for _ in range(3 * MAX_PROVEN_PER_NODE):
        greedy += opened(_Connection, registry, "192.0.2.1", 1)
        greedy[-1].proved("node-2")
        # Requests that are being answered do not keep them either.
        greedy[-1].idle = False
    assert honest.open and sum(connection.open for connection in greedy) == MAX_PROVEN_PER_NODE
    assert all(connection.open for connection in greedy[-MAX_PROVEN_PER_NODE:])
    opened(_Connection, registry, "192.0.2.3", 1)


def test_all_nodes_that_nobody_admitted_share_their_connections_and_holders_of_tokens_have_as_many_as_they_like() -> (
    None
):
    registry = NodeConnections(limit=2 * MAX_PROVEN_PENDING, per_address=2 * MAX_PROVEN_PENDING)
    pending = opened(_Connection, registry, "192.0.2.1", MAX_PROVEN_PENDING + 9)
    people = opened(_Connection, registry, "192.0.2.2", 99)
    for connection in pending:
        connection.proved(PENDING)
    for connection in people:
        connection.proved(None)
    assert sum(connection.open for connection in pending) == MAX_PROVEN_PENDING
    assert all(connection.open for connection in people)


@pytest.mark.parametrize("by", [None, "node-1"])
def test_nothing_is_kept_of_connections_that_are_gone(by: str | None) -> None:
    registry = NodeConnections(limit=20)
    for connection in opened(_Connection, registry, "192.0.2.1", 2 * MAX_PROVEN_PER_NODE):
        connection.proved(by)
        connection.held()
        if connection.open:
            registry.closed(connection)
    kept = (
        registry._by_network,
        registry._silent,
        registry._strangers,
        registry._held,
        registry._nodes,
        registry._node_of,
    )
    assert (registry._count, [dict(one) for one in kept]) == (0, [{}] * 6)
