"""The address to listen on, taken before anything else is opened: a second process ends before it touches a thing."""

from __future__ import annotations

import socket

from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Unavailable

BACKLOG = 2048


def listening_sockets(host: str, port: int) -> list[socket.socket]:
    """A socket that listens on each address of `host`.

    Raises Unavailable `address-unavailable` (the port is taken, the host is none of this machine's); then none is left
    open.
    """
    listening: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in dict.fromkeys(found):
            made = socket.socket(family, kind, protocol)
            listening.append(made)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            made.bind(address)
            made.listen(BACKLOG)
            made.setblocking(False)  # noqa: FBT003 - the library's signature
    except (OSError, ValueError) as error:  # UnicodeError of a host that is no name is a ValueError
        for made in listening:
            made.close()
        why = getattr(error, "strerror", None) or type(error).__name__
        raise Unavailable(
            ReasonCode.ADDRESS_UNAVAILABLE, f"{host}:{port}", why, "a free address of this machine"
        ) from error
    return listening
