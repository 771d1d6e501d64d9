"""The HTTPS server of webhook and broker: it has its port before it starts, and bounds what strangers cost."""

from __future__ import annotations

import socket
import sys

import structlog
from starlette.types import ASGIApp

from admission.connections import MAX_CONNECTIONS, MAX_CONNECTIONS_PER_ADDRESS, AskingConnections
from admission.direct import DirectApp
from admission.protocol import answering
from admission.serving_certificate import HotCertificate
from admission.settings import Listen
from edges.collector import tune_collector
from edges.listening import listening_sockets
from edges.open_files import fit_to_files
from edges.private_files import require_private
from edges.server import BoundedServer, http_config, over_tls

KEEP_ALIVE_SECONDS = 120


def server_of(app: ASGIApp, listen: Listen, certificate: HotCertificate) -> TlsServer:
    """A server of `app` over TLS 1.2 or later, its port taken already; its `run()` serves until SIGTERM.

    With `client_ca` only clients with a certificate of that CA get through the handshake. Raises Rejection
    `file-mode-unsafe`, MalformedEvidence `setting-invalid` (certificate, key or CA cannot be used, or the process may
    not open files enough), Unavailable `address-unavailable` (the port is taken, the host is none of this machine's).
    """
    tls = certificate.tls
    require_private(tls.key)
    connections = AskingConnections(fit_to_files(MAX_CONNECTIONS), MAX_CONNECTIONS_PER_ADDRESS)
    protocol = answering(app.routes if isinstance(app, DirectApp) else {})
    config = http_config(app, protocol, connections, timeout_keep_alive=KEEP_ALIVE_SECONDS)
    certificate.attach(over_tls(config, tls.certificate, tls.key, tls.client_ca))
    return TlsServer(config, listening_sockets(listen.host, listen.port))


def tune_process() -> None:
    """Short pauses for whoever waits for a decision. Call it once in a process that serves and does nothing else.

    A thread that reads a watch hands the interpreter over after a millisecond in place of five.
    """
    tune_collector()
    sys.setswitchinterval(0.001)


class TlsServer(BoundedServer):
    """A server that says when it is ready."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Serves from its end on, and says so. Exits when the application does not start."""
        await super().startup(sockets)
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        structlog.get_logger().info("service_ready", host=host, port=port)
