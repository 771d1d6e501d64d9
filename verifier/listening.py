"""The address to listen on, taken before anything else is opened: a second verifier ends before it touches a thing."""

from __future__ import annotations

import socket

from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Unavailable


def bound_sockets(host: str, port: int) -> list[socket.socket]:
    """A socket bound to each address of `host`, not listening yet.

    Raises Unavailable `address-unavailable`; then none is left open.
    """
    bound: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in dict.fromkeys(found):
            made = socket.socket(family, kind, protocol)
            bound.append(made)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            made.bind(address)
    except OSError as error:
        for made in bound:
            made.close()
        raise Unavailable(ReasonCode.ADDRESS_UNAVAILABLE, f"{host}:{port}", error.strerror) from error
    return bound
