"""The server's event loop: uvloop, with a TLS handshake that must end in time, and files enough for its connections."""

from __future__ import annotations

import asyncio
import resource
from typing import Any, cast

import uvloop

from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence

HANDSHAKE_SECONDS = 10
"""uvloop gives a minute, in which a stranger's connection costs a file descriptor and is counted nowhere."""
FAREWELL_SECONDS = 2
"""uvloop waits half a minute for the other side's word that it too closes TLS. A node that sleeps until its interval is
over gives none, so that every stop would wait for the limit of a graceful one."""
LEAST_CONNECTIONS = 100
SPARE_FILES = 512
"""Database, logs, streams; and connections that are still in their handshake."""


class ServerLoop(uvloop.Loop):
    """uvloop's, with `HANDSHAKE_SECONDS` and `FAREWELL_SECONDS` for every TLS server."""

    async def create_server(self, *arguments: Any, **options: Any) -> asyncio.Server:
        """As `asyncio.AbstractEventLoop.create_server`."""
        if options.get("ssl") is not None:
            options["ssl_handshake_timeout"] = HANDSHAKE_SECONDS
            options["ssl_shutdown_timeout"] = FAREWELL_SECONDS
        server: Any = await super().create_server(*arguments, **options)
        return cast("asyncio.Server", server)


def fit_to_files(max_connections: int) -> int:
    """How many connections, at most `max_connections`, this process may hold; it raises its limit of open files first.

    Raises MalformedEvidence `setting-invalid` where not even a hundred fit. Attack: connections beyond the limit of
    files fail where nothing counts or evicts them.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * max_connections + SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    # As many again may be in their handshake.
    fitting = max_connections if soft == resource.RLIM_INFINITY else min(max_connections, (soft - SPARE_FILES) // 2)
    if fitting < min(max_connections, LEAST_CONNECTIONS):
        raise MalformedEvidence(
            ReasonCode.SETTING_INVALID, "open files", f"a limit of {soft}", f"{wanted}, for max_connections"
        )
    return fitting
