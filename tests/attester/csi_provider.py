"""A provider at work in this process: the server of `nodewarden attester csi`, and the driver's side of its socket."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from attester.csi_mount import Mounts
from attester.csi_server import serve
from attester.daemon import Bell
from attester.settings import AttesterSettings
from tests.attester.csi_driver import Driver, driver


class Provider(threading.Thread):
    """Serves until it is told to stop; what ended it otherwise is in `error`."""

    def __init__(self, settings: AttesterSettings, clock: Callable[[], int]) -> None:
        super().__init__()
        self.bell = Bell()
        self._path, self._mounts = settings.csi_socket, Mounts(settings, clock)
        self.error: Exception | None = None

    def start(self) -> None:
        """Runs, and listens."""
        super().start()
        deadline = time.monotonic() + 20
        while not self._path.is_socket() and self.is_alive() and time.monotonic() < deadline:
            time.sleep(0.01)

    def run(self) -> None:
        try:
            serve(self._path, self._mounts, self.bell)
        except Exception as error:  # noqa: BLE001 - told to the test by `stop`
            self.error = error

    def stop(self) -> None:
        self.bell.stop()
        self.join(30)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error


@contextmanager
def providing(settings: AttesterSettings, clock: Callable[[], int]) -> Iterator[Driver]:
    """The driver at the socket of a provider with `settings`, which stops with the block."""
    provider = Provider(settings, clock)
    provider.start()
    try:
        with driver(settings.csi_socket) as client:
            yield client
    finally:
        provider.stop()


def socket_in(folder: Path) -> Path:
    """Where a provider of a test may listen."""
    place = folder / "providers"
    place.mkdir(mode=0o755, exist_ok=True)
    return place / "nodewarden.sock"
