"""`python -m tests.e2e.record_session [DOCUMENT ...]`: types our documents' sessions and writes down what came out.

What a person has to look at afterwards is the difference: git diff.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.e2e.console import play, with_sessions
from tests.e2e.playground import ROOT
from tests.e2e.programs import HarnessError

DOCUMENTS = ("README.md", "docs/audit-to-deny.md")


def main(names: list[str]) -> None:
    for name in names or DOCUMENTS:
        document = ROOT / name
        print(f"{name}: on a cluster of its own ...", file=sys.stderr, flush=True)
        with tempfile.NamedTemporaryFile(prefix="nw-", suffix=".log") as log:
            try:
                printed = play(document, Path(log.name))
            except HarnessError as error:
                sys.exit(f"{name}: {error}")
        document.write_text(with_sessions(document.read_text(), printed))


if __name__ == "__main__":
    main(sys.argv[1:])
