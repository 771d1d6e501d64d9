"""`make bench`: runs the benchmarks and prints one JSON object on stdout, a table and progress on stderr.

A benchmark is a module here with `NAMES` and `run() -> {name: {"value", "unit", "n", "how"}}`. What is not built has no
module and is absent from the output. Ratios are taken within one run, because machines differ from day to day.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import sys
from collections.abc import Mapping
from typing import Any

import benchmarks

Figure = Mapping[str, Any]


def main(wanted: frozenset[str]) -> int:
    """Run what `wanted` names (everything when empty); 2 when it names something that does not exist."""
    modules = [
        importlib.import_module(f"benchmarks.{module.name}") for module in pkgutil.iter_modules(benchmarks.__path__)
    ]
    suites = [module for module in modules if hasattr(module, "NAMES")]
    unknown = wanted - {name for suite in suites for name in suite.NAMES}
    if unknown:
        print(f"error: benchmark-unknown: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    figures: dict[str, Figure] = {}
    for suite in suites:
        if not wanted or wanted & set(suite.NAMES):
            print(f"running {', '.join(suite.NAMES)} ...", file=sys.stderr, flush=True)
            figures |= {name: figure for name, figure in suite.run().items() if not wanted or name in wanted}
    for name, figure in figures.items():
        print(f"{name:36} {figure['value']:>12} {figure['unit']:8} n={figure['n']}", file=sys.stderr)
    print(json.dumps(figures, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(frozenset(name for argument in sys.argv[1:] for name in argument.split(",") if name)))
