"""Reads our Dockerfiles: the part of the language that they use, and an error for any other."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

_WITH_ALTERNATIVE = re.compile(r"\$\{(\w+):\+((?:[^{}]|\$\{\w+\})*)\}")
_PLAIN = re.compile(r"\$\{(\w+)\}")


class DockerfileError(Exception):
    """The file says something that is not read here."""


@dataclass(frozen=True)
class Run:
    """A command for /bin/sh, in `folder` of the image."""

    command: str
    folder: str


@dataclass(frozen=True)
class Copy:
    """Sources of the context, or of another stage, to a place in the image; with a slash at its end it is a folder."""

    sources: tuple[str, ...]
    target: str
    stage: str | None


@dataclass
class Stage:
    """An image, or what another is copied from."""

    base: str
    name: str | None
    steps: list[Run | Copy] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    folder: str = "/"
    user: str = ""
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()


def read_dockerfile(path: Path) -> list[Stage]:
    """The stages in order; the last is the image. Raises DockerfileError."""
    arguments: dict[str, str] = {}
    stages: list[Stage] = []
    for line in _lines(path.read_text()):
        name, _, rest = line.partition(" ")
        rest = rest.strip()
        if name == "ARG" and not stages:
            key, _, value = rest.partition("=")
            arguments[key] = value
        elif name == "FROM":
            base, *alias = re.split(r"\s+AS\s+", _substituted(rest, arguments))
            stages.append(Stage(base, alias[0] if alias else None))
        elif stages:
            _instruction(stages[-1], name, rest)
        else:
            raise DockerfileError(f"{path}: {line}")
    return stages


def _lines(text: str) -> list[str]:
    kept = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    return [line.strip() for line in kept.replace("\\\n", " ").splitlines() if line.strip()]


def _substituted(text: str, arguments: dict[str, str]) -> str:
    text = _WITH_ALTERNATIVE.sub(lambda m: m[2] if arguments.get(m[1]) else "", text)
    return _PLAIN.sub(lambda m: arguments[m[1]], text)


def _instruction(stage: Stage, name: str, rest: str) -> None:
    match name:
        case "RUN":
            stage.steps.append(Run(" ".join(rest.split()), stage.folder))
        case "COPY":
            words = shlex.split(rest)
            origin = words.pop(0).removeprefix("--from=") if words[0].startswith("--from=") else None
            *sources, target = words
            absolute = target if target.startswith("/") else f"{stage.folder.rstrip('/')}/{target.removeprefix('./')}"
            stage.steps.append(Copy(tuple(sources), absolute, origin))
        case "WORKDIR" if rest.startswith("/"):
            stage.folder = rest
        case "ENV":
            stage.environment |= dict(pair.split("=", 1) for pair in shlex.split(rest))
        case "USER":
            stage.user = rest
        case "ENTRYPOINT":
            stage.entrypoint = _words(rest)
        case "CMD":
            stage.command = _words(rest)
        case _:
            raise DockerfileError(f"{name} {rest}")


def _words(text: str) -> tuple[str, ...]:
    return tuple(str(word) for word in json.loads(text))
