"""Layers of images on disk, each made once: folders that overlay mounts stack, and their archives.

A layer's key is a digest of all that it is made from, so that the same key is never made twice.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import stat
import subprocess
import tarfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from tests.e2e.programs import HarnessError

# What is asked for again within this time stays: other runs on this machine may be at work with it.
_KEPT_SECONDS = 3600

_MOUNTED = """
mount -t overlay overlay -o "lowerdir=$LOWER,upperdir=$NEW/upper,workdir=$NEW/work" "$NEW/root"
cd "$NEW/root"
"""


@dataclass(frozen=True)
class Blob:
    """A layer's archive."""

    path: Path
    sha256: str
    size: int


class LayerStore:
    """A folder of layers. `locked` for as long as layers are made or looked up."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        self._used: set[str] = set()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else on this machine changes the store; what is no longer asked for is gone afterwards."""
        with (self._folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
            self._prune()

    def has(self, key: str) -> bool:
        """Whether the layer is there; if so it is in use from now on."""
        self._used.add(key)
        return self.tree(key).is_dir()

    def tree(self, key: str) -> Path:
        """The layer's files, without those below it."""
        return self._folder / key / "upper"

    @contextmanager
    def new(self, key: str) -> Iterator[Path]:
        """A folder for the layer `key`, which is there once the block has ended well, whole or not at all."""
        made = self._folder / f"{key}.new"
        shutil.rmtree(made, ignore_errors=True)
        for part in ("upper", "work", "root"):
            (made / part).mkdir(mode=0o755, parents=True)
        yield made
        for part in ("work", "root"):
            shutil.rmtree(made / part)
        made.rename(self._folder / key)

    def fill(self, made: Path, below: list[str], script: str, environment: Mapping[str, str]) -> None:
        """Runs a shell script in the stack of layers `below`, lowest first; what it changes becomes the new layer.

        The script starts in the root of that stack, with mounts and processes of its own. Raises HarnessError.
        """
        lower = ":".join(str(self.tree(key)) for key in reversed(below))
        command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-euc", _MOUNTED + script]
        own = {"PATH": os.environ["PATH"], "LOWER": lower, "NEW": str(made), **environment}
        log = self._folder / "build.log"
        with log.open("wb") as output:
            done = subprocess.run(command, stdout=output, stderr=output, env=own, check=False)
        if done.returncode != 0:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
            raise HarnessError(f"the layer {made.stem}: {tail}")

    def blob(self, key: str) -> Blob:
        """The layer's archive, made where there is none."""
        path, told = self._folder / key / "layer.tar", self._folder / key / "layer.sha256"
        if not told.exists():
            with path.open("wb") as file:
                hashing = _Hashing(file)
                _write_archive(self.tree(key), hashing)
            told.write_text(hashing.digest.hexdigest())
        return Blob(path, told.read_text(), path.stat().st_size)

    def _prune(self) -> None:
        now = time.time()  # noqa: TID251 - ages of files are by the machine's clock
        for key in self._used:
            if (self._folder / key).exists():
                os.utime(self._folder / key, (now, now))
        for entry in self._folder.iterdir():
            if entry.is_dir() and entry.name not in self._used and entry.stat().st_mtime < now - _KEPT_SECONDS:
                shutil.rmtree(entry)


class _Hashing:
    def __init__(self, file: BinaryIO) -> None:
        self._file, self.digest = file, hashlib.sha256()

    def write(self, content: bytes) -> int:
        self.digest.update(content)
        return self._file.write(content)


def _write_archive(tree: Path, file: _Hashing) -> None:
    # What an overlay says by a device 0:0 and an attribute (gone, hides what is below) has names in an archive.
    with tarfile.open(fileobj=file, mode="w|") as archive:  # type: ignore[call-overload]  # write is all it needs
        for path in sorted(tree.rglob("*")):
            name = str(path.relative_to(tree))
            status = path.lstat()
            if stat.S_ISCHR(status.st_mode) and status.st_rdev == 0:
                archive.addfile(tarfile.TarInfo(f"{name.rpartition('/')[0]}/.wh.{path.name}".lstrip("/")))
                continue
            entry = archive.gettarinfo(path, name)
            entry.uname = entry.gname = ""
            if entry.isreg():
                with path.open("rb") as content:
                    archive.addfile(entry, content)
            else:
                archive.addfile(entry)
            if path.is_dir() and not path.is_symlink() and _is_opaque(path):
                archive.addfile(tarfile.TarInfo(f"{name}/.wh..wh..opq"))


def _is_opaque(folder: Path) -> bool:
    try:
        return os.getxattr(folder, "trusted.overlay.opaque") == b"y"
    except OSError:
        return False
