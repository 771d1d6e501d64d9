"""The verifier's connections: what `edges.http_protocol` bounds, and who proved himself on which."""

from __future__ import annotations

from edges.http_protocol import BoundedProtocol
from verifier.api.connections import SCOPE_KEY, NodeConnections


class NodeProtocol(BoundedProtocol):
    """One connection."""

    registry: NodeConnections
    _proven = False

    def proved(self, by: str | None) -> None:
        """A request on this connection was accepted by an AK or a token; who the first was, counts."""
        if not self._proven:
            self._proven = True
            if self._registered:
                self.registry.proved(self, by)

    def held(self) -> None:
        """The request on this connection is a long poll."""
        if self._registered:
            self.registry.held(self)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope[SCOPE_KEY] = self  # type: ignore[literal-required]  # - ours, beside the keys of ASGI

    def on_response_complete(self) -> None:
        self.registry.released(self)
        super().on_response_complete()
