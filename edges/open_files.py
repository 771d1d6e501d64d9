"""Files enough for as many connections as a server says that it holds."""

from __future__ import annotations

import resource

from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence

LEAST_CONNECTIONS = 100
SPARE_FILES = 512
"""Database, logs, watches of an API server; and connections that were closed and not yet cleared away."""


def fit_to_files(max_connections: int) -> int:
    """How many connections, at most `max_connections`, this process may hold; it raises its limit of open files first.

    Raises MalformedEvidence `setting-invalid` where not even a hundred fit. Attack: connections beyond the limit of
    files fail where nothing counts or evicts them.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max_connections + SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    fitting = max_connections if soft == resource.RLIM_INFINITY else min(max_connections, soft - SPARE_FILES)
    if fitting < min(max_connections, LEAST_CONNECTIONS):
        raise MalformedEvidence(
            ReasonCode.SETTING_INVALID,
            "open files",
            f"a limit of {soft}",
            f"{wanted}",
        )
    return fitting
