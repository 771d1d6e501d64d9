"""Print the part of requirements.lock that one extra needs: python lock_of.py EXTRA PYPROJECT LOCK.

An image holds its own part's packages and no test tools, each by the hash that the whole lock gives it. Needs nothing
but the standard library, since it runs before anything is installed.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def canonical(name: str) -> str:
    """The name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def entries(lock: str) -> dict[str, tuple[str, frozenset[str]]]:
    """Each package of pip-compile's output: its lines, and what it is there for (`# via`)."""
    found = {}
    for block in re.split(r"\n(?=[A-Za-z0-9])", lock):
        match = re.match(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?==", block)
        if match is None:
            continue
        comments = " ".join(line.strip(" #") for line in block.splitlines() if line.lstrip().startswith("#"))
        reasons = frozenset(canonical(name) for name in _NAME.findall(comments.removeprefix("via")))
        lines = [line for line in block.splitlines() if not line.lstrip().startswith("#")]
        found[canonical(match[1])] = ("\n".join(lines).strip(), reasons)
    return found


def closure(roots: set[str], known: dict[str, tuple[str, frozenset[str]]]) -> set[str]:
    """`roots` and everything that is there for any of them. Raises KeyError when a root is not in the lock."""
    chosen = {name for name in roots if known[name]}
    while True:
        more = {name for name, (_, reasons) in known.items() if name not in chosen and reasons & chosen}
        if not more:
            return chosen
        chosen |= more


def lock_of(extra: str, pyproject: str, lock: str) -> str:
    """The lock of the base dependencies, `extra`, and what builds the distribution itself."""
    fields = tomllib.loads(pyproject)
    project = fields["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"][extra], *fields["build-system"]["requires"]]
    roots = {canonical(match[0]) for text in wanted if (match := _NAME.match(text)) is not None}
    known = entries(lock)
    return "\n".join(known[name][0] for name in sorted(closure(roots, known))) + "\n"


if __name__ == "__main__":
    part, pyproject_path, lock_path = sys.argv[1:]
    sys.stdout.write(lock_of(part, Path(pyproject_path).read_text(), Path(lock_path).read_text()))
