"""The Dockerfiles, without a container engine: what a reviewer would look for, and that the packages are complete."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from importlib import metadata
from types import ModuleType

import pytest
from packaging.requirements import Requirement

from tests.deploy.rendered import ROOT, pod_templates

IMAGES = ROOT / "deploy" / "images"
PARTS = ("verifier", "admission", "attester")


def _lock_of() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lock_of", IMAGES / "lock_of.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


LOCK_OF = _lock_of()
PYPROJECT, LOCK = (ROOT / "pyproject.toml").read_text(), (ROOT / "requirements.lock").read_text()


def instructions(part: str) -> list[tuple[str, str]]:
    """Each instruction with its arguments, continued lines joined, comments left out."""
    text = (IMAGES / f"{part}.Dockerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in lines]


def packages(part: str) -> set[str]:
    lock: str = LOCK_OF.lock_of(part, PYPROJECT, LOCK)
    return {LOCK_OF.canonical(name) for name in re.findall(r"^([A-Za-z0-9][\w.-]*)==", lock, re.MULTILINE)}


def test_there_is_an_image_for_each_part_that_the_chart_runs() -> None:
    used = {
        re.sub(r"^.*/nodewarden-|[:@].*$", "", container["image"])
        for template in pod_templates().values()
        for container in [*template["spec"]["containers"], *template["spec"].get("initContainers", [])]
    }
    assert used == set(PARTS) == {path.stem for path in IMAGES.glob("*.Dockerfile")}


@pytest.mark.parametrize("part", PARTS)
def test_the_base_is_a_tag_that_release_builds_pin_and_never_latest(part: str) -> None:
    froms = [arguments for name, arguments in instructions(part) if name == "FROM"]
    assert [re.sub(r" AS build$", "", base) for base in froms] == [
        "debian:${BASE_TAG}${BASE_DIGEST:+@${BASE_DIGEST}}"
    ] * 2
    defaults = dict(a.split("=", 1) for name, a in instructions(part) if name == "ARG")
    assert re.fullmatch(r"\d+\.\d+-slim", defaults["BASE_TAG"])
    # No invented digest: whoever builds a release gives the one that they verified.
    assert defaults["BASE_DIGEST"] == ""


@pytest.mark.parametrize("part", PARTS)
def test_the_image_runs_as_nobody_in_particular(part: str) -> None:
    steps = instructions(part)
    users = [arguments for name, arguments in steps if name == "USER"]
    assert users == ["65532:65532"]
    assert [name for name, _ in steps][-3:] == ["USER", "ENTRYPOINT", "CMD"]


@pytest.mark.parametrize("part", PARTS)
def test_no_secret_no_download_and_no_whole_tree_enters_the_image(part: str) -> None:
    for name, arguments in instructions(part):
        assert name != "ADD"
        assert name not in {"ARG", "ENV"} or not re.search(r"(?i)secret|token|password|key", arguments)
        if name == "COPY":
            assert not re.match(r"\.\s|\./?\s", arguments)
        if name == "RUN":
            assert not re.search(r"\b(curl|wget|git|sudo|chmod 777)\b", arguments)


@pytest.mark.parametrize("part", PARTS)
def test_packages_come_by_hash_from_the_one_lock(part: str) -> None:
    for _, arguments in instructions(part):
        for command in re.findall(r"pip install [^&]*", arguments):
            assert "--require-hashes -r part.lock" in command or ("--no-deps" in command and command.split()[-1] == ".")
        for command in re.findall(r"apt-get install [^&]*", arguments):
            assert "--no-install-recommends" in command
        assert "apt-get update" not in arguments or "rm -rf /var/lib/apt/lists/*" in arguments
    lock: str = LOCK_OF.lock_of(part, PYPROJECT, LOCK)
    blocks = re.split(r"\n(?=[A-Za-z0-9])", lock.strip())
    assert all("--hash=sha256:" in block for block in blocks)


@pytest.mark.parametrize("part", PARTS)
def test_copied_folders_exist_and_hold_what_the_part_imports(part: str) -> None:
    copied = {
        word
        for name, arguments in instructions(part)
        if name == "COPY" and "--from" not in arguments
        for word in arguments.split()[:-1]
    }
    assert all((ROOT / word).exists() for word in copied)
    # policies: the command line itself, and verifier; verifier: the wire format that all parts share; edges: all parts.
    assert {"policies", "verifier", "edges", part, "nodewarden.py"} <= copied


def test_what_the_images_copy_is_all_that_an_engine_is_sent() -> None:
    first, *rest = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    *allowed, last = rest
    copied = {
        word
        for part in PARTS
        for name, arguments in instructions(part)
        if name == "COPY" and "--from" not in arguments
        for word in arguments.split()[:-1]
    }
    assert (first, last) == ("*", "**/__pycache__")
    assert set(allowed) == {f"!{word}" for word in copied}


@pytest.mark.parametrize("part", PARTS)
def test_an_image_holds_what_its_packages_need_and_no_test_tools(part: str) -> None:
    chosen = packages(part)
    extras = {"uvicorn": {"standard"}}
    for name in chosen:
        for text in metadata.requires(name) or []:
            requirement = Requirement(text)
            if any(_applies(requirement, extra) for extra in ("", *extras.get(name, set()))):
                assert LOCK_OF.canonical(requirement.name) in chosen, f"{name} needs {requirement.name}"
    tools = tomllib.loads(PYPROJECT)["project"]["optional-dependencies"]["dev"]
    names = {LOCK_OF.canonical(re.split(r"[<>=\[]", tool)[0]) for tool in tools}
    assert not chosen & names


def _applies(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def test_the_attester_image_has_no_server_and_admission_no_tpm() -> None:
    assert not packages("attester") & {"fastapi", "uvicorn", "sqlalchemy", "kubernetes"}
    assert "tpm2-pytss" not in packages("admission") | packages("verifier")
    assert "kubernetes" not in packages("verifier")
