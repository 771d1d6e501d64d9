"""The rules of the layout that a linter does not hold."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PARTS = ("attester", "verifier", "policies", "admission", "edges", "nodewarden_demo")
SOURCES = sorted(path for part in PARTS for path in (ROOT / part).rglob("*.py"))
MAX_LINES = 350
ONE_LIST = {"verifier/wire/codes.py"}
"""Files that are a single list, which grows with what it lists and cannot be divided."""

CORE_IMPORT = """
import importlib, importlib.abc, pathlib, sys

ALLOWED = {"cryptography", "pydantic", "pydantic_core", "annotated_types", "typing_extensions", "typing_inspection",
           "cffi", "_cffi_backend", "pycparser", "verifier", "policies"} | set(sys.stdlib_module_names)
PLATFORM = "_sysconfigdata"  # the standard library's, named after the platform

class OnlyTheCore(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in ALLOWED and not name.startswith(PLATFORM):
            raise ModuleNotFoundError(f"the core imports {name}", name=name)

root = pathlib.Path(sys.argv[1])
sys.path.insert(0, str(root))
sys.meta_path.insert(0, OnlyTheCore())
count = 0
for package in ("verifier/wire", "verifier/evidence", "verifier/appraisal"):
    for file in sorted((root / package).glob("*.py")):
        if file.name != "__init__.py":
            importlib.import_module(".".join((file.relative_to(root).with_suffix("")).parts))
            count += 1
importlib.import_module("policies.schema")
print(count)
"""


def test_the_core_imports_in_a_fresh_interpreter_with_only_cryptography_and_pydantic() -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-c", CORE_IMPORT, str(ROOT)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 20


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_source_file_holds_one_idea_of_bounded_length(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MAX_LINES or str(path.relative_to(ROOT)) in ONE_LIST
    assert path.stem not in {"utils", "helpers", "common", "manager"}


def test_packages_have_empty_init_files_so_that_importing_one_module_imports_nothing_else() -> None:
    inits = [path for path in SOURCES if path.name == "__init__.py"]
    assert len(inits) >= len(PARTS)
    assert [path for path in inits if path.read_text()] == []


def test_every_suppressed_check_says_which_and_why() -> None:
    bare = []
    for path in [*SOURCES, ROOT / "nodewarden.py"]:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            for marker in ("# noqa", "# type: ignore"):
                comment = line.partition(marker)[2]
                if marker in line and (not comment or " - " not in comment):
                    bare.append(f"{path.relative_to(ROOT)}:{number}")
    assert bare == []


def test_no_function_that_verifies_answers_with_a_bool() -> None:
    wrong = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name.lstrip("_").startswith(
                ("verify", "check", "authenticate")
            ):
                returns = node.returns
                if isinstance(returns, ast.Name) and returns.id == "bool":
                    wrong.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}")
    assert wrong == []


@pytest.mark.parametrize("part", ["attester", "admission"])
def test_a_part_knows_of_the_verifier_only_the_wire_format(part: str) -> None:
    assert {
        name for name in _imports(part) if name.startswith("verifier") and not name.startswith("verifier.wire")
    } == set()


def test_no_part_imports_the_command_line() -> None:
    assert {name for part in PARTS for name in _imports(part) if name.split(".")[0] == "nodewarden"} == set()


def _imports(part: str) -> set[str]:
    names: set[str] = set()
    for path in (ROOT / part).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                names.add(node.module)
            elif isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
    return names
