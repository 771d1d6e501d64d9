"""uvicorn's server over sockets that listen already, with every connection counted and bounded."""

from __future__ import annotations

import asyncio
import socket
import ssl
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp

from edges.connections import Connections
from edges.door import Arrival, Door
from edges.http_protocol import BoundedProtocol
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence

GRACEFUL_SECONDS = 10


def http_config(app: ASGIApp, protocol: type[BoundedProtocol], connections: Connections, **more: Any) -> uvicorn.Config:
    """uvicorn's configuration for `app`: one process, no header that changes who the client is, nothing logged twice.

    `more` is uvicorn's. TLS is for `over_tls` to add.
    """
    return uvicorn.Config(
        app,
        http=type(protocol.__name__, (protocol,), {"registry": connections}),
        ws="none",
        loop="uvloop",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        **{"timeout_graceful_shutdown": GRACEFUL_SECONDS, **more},
    )


def over_tls(config: uvicorn.Config, certificate: Path, key: Path, client_ca: Path | None = None) -> ssl.SSLContext:
    """The context with which `config` serves over TLS 1.2 or later; with `client_ca` only clients that it certified.

    No session tickets: who comes back with a new connection (an API server for most of its reviews, a node after a cut
    line) resumes none, and each costs the server a message and a key. Raises MalformedEvidence `setting-invalid`.
    """
    config.ssl_certfile, config.ssl_keyfile = str(certificate), str(key)
    config.ssl_ca_certs = None if client_ca is None else str(client_ca)
    config.ssl_cert_reqs = ssl.CERT_NONE if client_ca is None else ssl.CERT_REQUIRED
    try:
        config.load()
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        files = ", ".join(str(path) for path in (certificate, key, client_ca) if path is not None)
        raise MalformedEvidence(
            ReasonCode.SETTING_INVALID, f"tls ({files})", type(error).__name__, "PEM files that belong together"
        ) from error
    context = config.ssl
    if context is None:
        raise AssertionError("a certificate makes a TLS context")
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET
    return context


class BoundedServer(uvicorn.Server):
    """A server of `config` on sockets that listen, each connection counted from its first moment."""

    def __init__(self, config: uvicorn.Config, listening: Sequence[socket.socket]) -> None:
        super().__init__(config)
        self._listening = tuple(listening)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Serves from its end on. Exits when the application does not start."""
        del sockets
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            sys.exit(3)
        loop, config = asyncio.get_running_loop(), self.config
        if config.ssl is None:
            made = [
                await loop.create_server(self._protocol, sock=listening, backlog=config.backlog)
                for listening in self._listening
            ]
            self.servers = made
        else:
            registry = self._kind.registry
            doors = [Door(listening, config.ssl, registry, self._protocol) for listening in self._listening]
            self.servers = cast("list[asyncio.base_events.Server]", doors)
        self.started = True

    @property
    def _kind(self) -> type[BoundedProtocol]:
        return cast("type[BoundedProtocol]", self.config.http_protocol_class)

    def _protocol(self, arrival: Arrival | None = None) -> BoundedProtocol:
        made = self._kind(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)
        made.arrival = arrival
        return made
