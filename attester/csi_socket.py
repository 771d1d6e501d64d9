"""The socket at which the driver finds us: only root may reach it, and nothing else that lies there is touched."""

from __future__ import annotations

import os
import re
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence, Rejection, Unavailable

MAX_PATH_BYTES = 107
"""sun_path of unix(7), with its end."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,30}\.sock")
"""What the driver takes for a provider's socket."""


@contextmanager
def listening(path: Path, bind: Callable[[str], None]) -> Iterator[os.stat_result]:
    """`bind` has made a socket of ours with mode 0600 at `path`; it is gone after the block.

    Raises MalformedEvidence `setting-invalid` (a path that the driver would not find, or something that is no socket
    lies there), Rejection `file-mode-unsafe` (others may write a folder above it), Unavailable `csi-driver-missing` (no
    folder), `address-unavailable` (another provider answers there, or it cannot be bound).
    """
    _require_findable(path)
    require_guarded(path.parent)
    _clear(path)
    # The socket is born closed to others: between a bind and a chmod someone could connect.
    before = os.umask(0o177)
    try:
        bind(f"unix:{path}")
        made = path.lstat()
    except (OSError, RuntimeError) as error:
        raise Unavailable(ReasonCode.ADDRESS_UNAVAILABLE, str(path), str(error)) from error
    finally:
        os.umask(before)
    if not stat.S_ISSOCK(made.st_mode) or stat.S_IMODE(made.st_mode) != 0o600:
        raise Rejection(ReasonCode.FILE_MODE_UNSAFE, str(path), f"mode {made.st_mode:o}", "a socket of mode 0600")
    try:
        yield made
    finally:
        with suppress(OSError):
            if is_still(path, made):
                path.unlink()


def is_still(path: Path, made: os.stat_result) -> bool:
    """Whether `path` is the socket `made`, and not another or none."""
    try:
        now = path.lstat()
    except OSError:
        return False
    return (now.st_dev, now.st_ino) == (made.st_dev, made.st_ino)


def require_guarded(folder: Path) -> None:
    """`folder` and all above it are root's or ours, and nobody else may put another in their place.

    Attack: a socket of someone else's at our name would be handed every pod's token. Raises Rejection
    `file-mode-unsafe`, Unavailable `csi-driver-missing`.
    """
    try:
        # Links are followed once: what they lead to is judged, and nobody who may not write above may change them.
        places = [resolved := folder.resolve(strict=True), *resolved.parents]
        for place in places:
            status = place.stat()
            mode, ours = status.st_mode, status.st_uid in (0, os.geteuid())
            shared = mode & (stat.S_IWGRP | stat.S_IWOTH)
            # In a sticky folder (/tmp) others can add, and neither remove nor rename what is not theirs.
            kept = mode & stat.S_ISVTX and place != resolved
            if not stat.S_ISDIR(mode) or not ours or (shared and not kept):
                seen = f"mode {stat.S_IMODE(mode):04o} of user {status.st_uid}"
                raise Rejection(ReasonCode.FILE_MODE_UNSAFE, str(place), seen, "a folder that only root writes")
    except OSError as error:
        raise Unavailable(ReasonCode.CSI_DRIVER_MISSING, str(folder), error.strerror) from error


def _require_findable(path: Path) -> None:
    if not path.is_absolute() or _NAME.fullmatch(path.name) is None or len(os.fsencode(path)) > MAX_PATH_BYTES:
        wanted = f"an absolute path of at most {MAX_PATH_BYTES} bytes to NAME.sock"
        raise MalformedEvidence(ReasonCode.SETTING_INVALID, "csi_socket", str(path), wanted)


def _clear(path: Path) -> None:
    """No file is at `path`: what a provider left that did not end well is removed, and nothing else."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise MalformedEvidence(ReasonCode.SETTING_INVALID, "csi_socket", "a file that is no socket", str(path))
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except OSError as error:
            raise Unavailable(ReasonCode.ADDRESS_UNAVAILABLE, str(path), error.strerror) from error
    raise Unavailable(ReasonCode.ADDRESS_UNAVAILABLE, str(path), "another provider answers there")
