"""The HTTPS server of webhook and broker: it has its port before it starts, and bounds what strangers cost."""

from __future__ import annotations

import asyncio
import gc
import resource
import socket
import ssl
import sys

import structlog
import uvicorn
from starlette.types import ASGIApp

from admission.direct import DirectApp
from admission.protocol import MAX_CONNECTIONS, MAX_CONNECTIONS_PER_ADDRESS, BoundedProtocol, bounded_protocol
from admission.serving_certificate import HotCertificate
from admission.settings import Listen, Tls
from edges.private_files import require_private
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence, Unavailable

KEEP_ALIVE_SECONDS = 120
HANDSHAKE_SECONDS = 10.0
"""Attack: connections that never finish their handshake. The library's own limit is a minute."""
_BACKLOG = 1024
_FILES_BESIDE_CONNECTIONS = 256


def server_of(app: ASGIApp, listen: Listen, certificate: HotCertificate) -> TlsServer:
    """A server of `app` over TLS 1.2 or later, its port taken already; its `run()` serves until SIGTERM.

    With `client_ca` only clients with a certificate of that CA get through the handshake. Raises Rejection
    `file-mode-unsafe`, MalformedEvidence `setting-invalid` (certificate, key or CA cannot be used), Unavailable
    `address-unavailable` (the port is taken, the host is none of this machine's).
    """
    tls = certificate.tls
    require_private(tls.key)
    _allow_files()
    config = uvicorn.Config(
        app,
        host=listen.host,
        port=listen.port,
        http=bounded_protocol(
            MAX_CONNECTIONS, MAX_CONNECTIONS_PER_ADDRESS, app.routes if isinstance(app, DirectApp) else None
        ),
        ws="none",
        ssl_certfile=str(tls.certificate),
        ssl_keyfile=str(tls.key),
        ssl_ca_certs=None if tls.client_ca is None else str(tls.client_ca),
        ssl_cert_reqs=ssl.CERT_NONE if tls.client_ca is None else ssl.CERT_REQUIRED,
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=10,
    )
    _load(config, tls)
    if config.ssl is None:
        raise AssertionError("a certificate makes a TLS context")
    certificate.attach(config.ssl)
    return TlsServer(config, bound_socket(listen))


def tune_process() -> None:
    """Short pauses for whoever waits for a decision. Call it once in a process that serves and does nothing else.

    The collector looks for cycles, and over the objects of a large cluster a full look takes some tenths of a second;
    what parses and decides makes no cycles, so that few looks are enough. A thread that reads a watch hands the
    interpreter over after a millisecond in place of five.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    sys.setswitchinterval(0.001)


def _load(config: uvicorn.Config, tls: Tls) -> None:
    try:
        config.load()
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        files = ", ".join(str(path) for path in (tls.certificate, tls.key, tls.client_ca) if path is not None)
        raise MalformedEvidence(
            ReasonCode.SETTING_INVALID, f"tls ({files})", type(error).__name__, "PEM files that belong together"
        ) from error


def _allow_files() -> None:
    # A default of 1,024 open files would be used up by connections alone; what may be raised is raised.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CONNECTIONS + _FILES_BESIDE_CONNECTIONS
    if soft < wanted:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard)
        )


def bound_socket(listen: Listen) -> socket.socket:
    """A listening socket at `listen`. Raises Unavailable `address-unavailable`."""
    try:
        found = socket.getaddrinfo(listen.host, listen.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        bound = socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except (OSError, ValueError) as error:  # UnicodeError of a host that is no name is a ValueError
        place = f"{listen.host}:{listen.port}"
        why = getattr(error, "strerror", None) or type(error).__name__
        raise Unavailable(ReasonCode.ADDRESS_UNAVAILABLE, place, why, "a free address of this machine") from error
    bound.setblocking(False)  # noqa: FBT003 - the library's signature
    return bound


class TlsServer(uvicorn.Server):
    """uvicorn's server over one bound socket, with a time limit for the handshake."""

    def __init__(self, config: uvicorn.Config, listening: socket.socket) -> None:
        super().__init__(config)
        self._listening = listening

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Serves from its end on, and says so. Exits when the application does not start."""
        del sockets
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            sys.exit(3)
        config = self.config

        def protocol() -> asyncio.Protocol:
            kind: type[BoundedProtocol] = config.http_protocol_class  # type: ignore[assignment]  # - what we configured
            return kind(config=config, server_state=self.server_state, app_state=self.lifespan.state)

        server = await asyncio.get_running_loop().create_server(
            protocol,
            sock=self._listening,
            ssl=config.ssl,
            backlog=_BACKLOG,
            ssl_handshake_timeout=HANDSHAKE_SECONDS,
        )
        self.servers = [server]
        self.started = True
        host, port = self._listening.getsockname()[:2]
        structlog.get_logger().info("service_ready", host=host, port=port)
