"""The door of a TLS server: every connection is counted before its first byte, and has to end its handshake in time.

The event loop's own TLS server counts nothing until a handshake is over. Attack: thousands of connections that never
say a word of TLS; each costs a file, and some hundred kilobytes of buffers. Here one that is silent costs its file and
little else, is in `Connections` from its first moment, and makes room for whoever comes later.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
import struct
from collections.abc import Callable
from contextlib import suppress

from edges.connections import Connections, Evictable

HANDSHAKE_SECONDS = 10.0
"""From the moment a connection is accepted. The event loop gives a minute."""
FAREWELL_SECONDS = 2.0
"""The event loop waits half a minute for the other side's word that it too closes TLS. A client that sleeps gives none,
so that every stop would wait for the limit of a graceful one."""
ACCEPTED_AT_ONCE = 32
"""Then the loop turns: handshakes that began go on before more begin. Who waits meanwhile waits in the kernel."""
MAX_HANDSHAKES = 1024
"""At once. Each costs 100 kB for as long as it goes on, about twice what a connection costs afterwards. An honest one
takes milliseconds of ours and a round trip; beyond so many the oldest is cut."""
PAUSE_SECONDS = 0.5
_AT_ONCE = struct.pack("ii", 1, 0)
_NO_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Arrival:
    """A connection from its acceptance to the end of its handshake."""

    __slots__ = ("_begun", "_door", "_socket", "_timer", "address")

    def __init__(self, door: Door, accepted: socket.socket, address: str) -> None:
        self._door, self._socket, self.address = door, accepted, address
        self._timer: asyncio.TimerHandle | None = None
        self._begun = False

    def is_idle(self) -> bool:
        """No request is being answered on it."""
        return True

    def evict(self) -> None:
        """Closed at once."""
        self._door.connections.closed(self)
        self._door.leaves(self)
        self._stop_waiting()
        with suppress(OSError):
            # No farewell in the kernel, where it would be kept for a minute.
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
            if self._begun:
                # The loop owns it, and closes it when it reads the end; cancelling a handshake that is about to begin
                # would leave it open.
                self._socket.shutdown(socket.SHUT_RDWR)
                return
        self._socket.close()

    def begin(self) -> None:
        """The handshake begins with the first byte, which has its time to come."""
        if not self._spoke():
            loop = self._door.loop
            self._timer = loop.call_later(HANDSHAKE_SECONDS, self.evict)
            loop.add_reader(self._socket.fileno(), self._spoke)

    def _spoke(self) -> bool:
        try:
            first = self._socket.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            first = b""
        if not first:
            self.evict()
            return True
        left = HANDSHAKE_SECONDS if self._timer is None else self._timer.when() - self._door.loop.time()
        self._stop_waiting()
        self._door.connections.spoke(self)
        self._door.begins(self)
        task = self._door.loop.create_task(self._handshake(max(left, 0.1)))
        self._door.handshakes.add(task)
        task.add_done_callback(self._door.handshakes.discard)
        return True

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._door.loop.remove_reader(self._socket.fileno())

    async def _handshake(self, seconds: float) -> None:
        door = self._door
        if self not in door.arrivals:
            return
        self._begun = True
        try:
            # Refused, cut, too slow, or evicted meanwhile: none of it is ours to tell, and the loop has closed it.
            with suppress(OSError):
                await door.loop.connect_accepted_socket(
                    lambda: door.protocol_of(self),
                    self._socket,
                    ssl=door.context,
                    ssl_handshake_timeout=seconds,
                    ssl_shutdown_timeout=FAREWELL_SECONDS,
                )
        finally:
            if self in door.arrivals:
                self.evict()

    def entered(self, connection: Evictable) -> bool:
        """Whether `connection`, whose handshake is over, has this one's place among all connections."""
        self._door.leaves(self)
        return self._door.connections.became(self, connection)


class Door:
    """Lets connections of one listening socket in; to its server it is what `asyncio.Server` would be."""

    def __init__(
        self,
        listening: socket.socket,
        context: ssl.SSLContext,
        connections: Connections,
        protocol_of: Callable[[Arrival], asyncio.Protocol],
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.context, self.connections, self.protocol_of = context, connections, protocol_of
        self.arrivals: set[Arrival] = set()
        self.handshakes: set[asyncio.Task[None]] = set()
        self._speaking: dict[Arrival, None] = {}
        self._listening = listening
        self._pause: asyncio.TimerHandle | None = None
        self._open()

    @property
    def sockets(self) -> tuple[socket.socket, ...]:
        """The socket that it listens on."""
        return (self._listening,)

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """The loop that it runs in."""
        return self.loop

    def begins(self, arrival: Arrival) -> None:
        """The handshake of `arrival` may begin; where too many are going on, the oldest has ended."""
        if len(self._speaking) >= MAX_HANDSHAKES:
            next(iter(self._speaking)).evict()
        self._speaking[arrival] = None

    def leaves(self, arrival: Arrival) -> None:
        """`arrival` is in, or gone."""
        self.arrivals.discard(arrival)
        self._speaking.pop(arrival, None)

    def close(self) -> None:
        """Nobody is let in any more; who is in stays."""
        if self._listening.fileno() < 0:
            return
        if self._pause is None:
            self.loop.remove_reader(self._listening.fileno())
        else:
            self._pause.cancel()
        self._listening.close()
        for arrival in tuple(self.arrivals):
            arrival.evict()

    async def wait_closed(self) -> None:
        """After `close`, no handshake goes on."""
        await asyncio.gather(*self.handshakes, return_exceptions=True)

    def _open(self) -> None:
        self._pause = None
        self.loop.add_reader(self._listening.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                accepted, peer = self._listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _NO_FILES:
                    # It would be told of the same connection again at once, and do nothing else.
                    self.loop.remove_reader(self._listening.fileno())
                    self._pause = self.loop.call_later(PAUSE_SECONDS, self._open)
                    return
                continue  # the client went before it was accepted
            accepted.setblocking(False)  # noqa: FBT003 - the library's signature
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            arrival = Arrival(self, accepted, str(peer[0]))
            if not self.connections.opened(arrival, arrival.address):
                accepted.close()
                continue
            self.arrivals.add(arrival)
            arrival.begin()
