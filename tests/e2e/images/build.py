"""Builds the images of deploy/images as their Dockerfiles say, without a container engine, as root.

Steps run in a chroot over a Debian from debootstrap, each once: what they made stays in the cache until what it is made
from changes.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.images.dockerfile import Copy, Run, Stage, read_dockerfile
from tests.e2e.images.layers import Blob, LayerStore
from tests.e2e.programs import HarnessError

ROOT = Path(__file__).parent.parent.parent.parent
DOCKERFILES = ROOT / "deploy/images"
PARTS = ("verifier", "admission", "attester")
SUITES = {"12": "bookworm"}
ENGINE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "PIP_INDEX_URL")
_MACHINE = {"PIP_CONFIG_FILE": Path("/etc/pip.conf"), "PIP_CERT": Path("/etc/ssl/certs/ca-certificates.crt")}

# As the slim images: no documentation, no translations, no lists and caches of packages, now and later; and the files
# over which an engine mounts.
_STRIP = """
echo 'Dir::Cache::pkgcache ""; Dir::Cache::srcpkgcache "";' > etc/apt/apt.conf.d/slim
echo 'DPkg::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb"; };' >> etc/apt/apt.conf.d/slim
for place in doc man locale info; do echo "path-exclude=/usr/share/$place/*"; done > etc/dpkg/dpkg.cfg.d/slim
rm -rf usr/share/doc/* usr/share/man/* usr/share/locale/* usr/share/info/* var/cache/apt/*.bin var/lib/apt/lists/*
rm -rf var/cache/apt/archives/*.deb var/log/* dev/*
for file in hosts resolv.conf hostname; do : > etc/$file; done
"""

# The machine's way to its packages, which must not stay in the image: on /mnt, while a step runs.
_IN_CHROOT = """
mount -t proc proc proc
mount --rbind /dev dev
for file in hosts resolv.conf; do mount --bind /etc/$file etc/$file; done
mount -t tmpfs tmpfs mnt
for file in $MACHINE; do cp $file mnt/; done
mkdir -p ".$FOLDER"
exec chroot . /usr/bin/env -i --chdir="$FOLDER" $SETTINGS /bin/sh -c "$COMMAND"
"""


@dataclass(frozen=True)
class Image:
    """An image as layers, lowest first, and what an engine runs in it."""

    part: str
    layers: tuple[Blob, ...]
    config: dict[str, Any]


def missing_ability() -> str | None:
    """Why this machine cannot build images, or None."""
    if os.geteuid() != 0:
        return "building images needs root"
    return None if shutil.which("debootstrap") else "debootstrap is missing: install debootstrap"


def build_images(store: LayerStore, parts: Iterable[str] = PARTS) -> list[Image]:
    """The images, from the cache where it has them. Raises HarnessError with the end of a failed step's output."""
    with store.locked():
        return [_Build(store, part).image() for part in parts]


class _Build:
    def __init__(self, store: LayerStore, part: str) -> None:
        self._store, self._part = store, part
        self._stacks: dict[str, list[str]] = {}

    def image(self) -> Image:
        stages = read_dockerfile(DOCKERFILES / f"{self._part}.Dockerfile")
        for stage in stages:
            stack = [self._base(stage.base)]
            for step in stage.steps:
                stack.append(self._run(stage, step, stack) if isinstance(step, Run) else self._copy(step, stack))
            if stage.name is not None:
                self._stacks[stage.name] = stack
        last = stages[-1]
        config = {
            "User": last.user,
            "Env": [f"{name}={value}" for name, value in {"PATH": ENGINE_PATH, **last.environment}.items()],
            "Entrypoint": list(last.entrypoint),
            "Cmd": list(last.command),
            "WorkingDir": last.folder,
        }
        return Image(self._part, tuple(self._store.blob(key) for key in stack), config)

    def _base(self, reference: str) -> str:
        """Stands in for Debian's own image, which comes from a registry of images."""
        name, _, tag = reference.partition(":")
        suite = SUITES.get(tag.partition(".")[0])
        if name != "debian" or suite is None or not tag.endswith("-slim"):
            raise HarnessError(f"no stand-in for the base image {reference}")
        key = _key("debian", suite, _STRIP)
        if not self._store.has(key):
            with self._store.new(key) as made:
                tree = made / "upper"
                _checked("debootstrap", "--variant=minbase", suite, str(tree))
                _checked("sh", "-euc", f"cd '{tree}'\n{_STRIP}")
        return key

    def _run(self, stage: Stage, step: Run, stack: list[str]) -> str:
        settings = {"PATH": ENGINE_PATH, **stage.environment}
        key = _key(stack[-1], step.folder, step.command, json.dumps(settings))
        if not self._store.has(key):
            machine = {name: os.environ[name] for name in _PROXIES if name in os.environ}
            present = [(name, path) for name, path in _MACHINE.items() if path.exists()]
            told = {**machine, **{name: f"/mnt/{path.name}" for name, path in present}, "HOME": "/root", **settings}
            environment = {
                "MACHINE": " ".join(str(path) for _, path in present),
                "SETTINGS": " ".join(f"{name}={value}" for name, value in told.items()),
                "FOLDER": step.folder,
                "COMMAND": step.command,
            }
            with self._store.new(key) as made:
                self._store.fill(made, stack, _IN_CHROOT, environment)
        return key

    def _copy(self, step: Copy, stack: list[str]) -> str:
        if step.stage is not None:
            return self._copy_from(step, stack)
        files = {target: source for name in step.sources for target, source in _files(ROOT / name, step, name)}
        told = [f"{target} {source.stat().st_mode & 0o777:o} {_digest(source)}" for target, source in files.items()]
        key = _key(stack[-1], *told)
        if not self._store.has(key):
            with self._store.new(key) as made:
                for target, source in files.items():
                    place = made / "upper" / target.lstrip("/")
                    place.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(source, place)
        return key

    def _copy_from(self, step: Copy, stack: list[str]) -> str:
        origin = self._stacks[step.stage or ""]
        (source,) = step.sources
        key = _key(stack[-1], origin[-1], source, step.target)
        if not self._store.has(key):
            with self._store.new(key) as made:
                # Read through a mount of that stage's layers, of which nothing stays.
                script = 'mkdir -p "$NEW/out$TARGET" && cp -a ".$SOURCE/." "$NEW/out$TARGET/"'
                self._store.fill(made, origin, script, {"SOURCE": source, "TARGET": step.target})
                shutil.rmtree(made / "upper")
                (made / "out").rename(made / "upper")
        return key


def _files(path: Path, step: Copy, name: str) -> list[tuple[str, Path]]:
    if path.is_file():
        return [(f"{step.target}{path.name}" if step.target.endswith("/") else step.target, path)]
    if not path.is_dir():
        raise HarnessError(f"COPY names {name}, which is not there")
    # What `.dockerignore` keeps out.
    found = (each for each in sorted(path.rglob("*")) if each.is_file() and "__pycache__" not in each.parts)
    return [(f"{step.target.rstrip('/')}/{each.relative_to(path)}", each) for each in found]


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _key(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def _checked(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise HarnessError(f"{command[0]}: {(done.stdout + done.stderr)[-2000:]}")
