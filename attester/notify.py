"""Telling systemd how we are: the sd_notify protocol, which is one datagram (sd_notify(3))."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import suppress


class Notifier:
    """Speaks to the service manager that started us, or to no one."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        # A leading "@" stands for Linux's abstract namespace. Other forms (vsock) are not for us.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        microseconds = environment.get("WATCHDOG_USEC", "")
        period = int(microseconds) / 1_000_000 if microseconds.isascii() and microseconds.isdigit() else 0.0
        self.watchdog_seconds = period / 2 if period > 0 else None
        """How often to call `alive`, twice as often as asked; None when no one watches."""

    def ready(self) -> None:
        """Start-up is over."""
        self._send("READY=1")

    def alive(self) -> None:
        """The main loop still turns."""
        self._send("WATCHDOG=1")

    def stopping(self) -> None:
        """The stop was heard."""
        self._send("STOPPING=1")

    def _send(self, state: str) -> None:
        if not self._address.startswith(("/", "\0")):
            return
        # A service manager that does not listen must not stop an attestation.
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
            channel.sendto(state.encode(), self._address)
