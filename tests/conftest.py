"""Fixtures that every part's tests may use."""

from __future__ import annotations

import os

# Files that tests make for the verifier must not be writable by a group, as some systems have it by default.
os.umask(0o022)

pytest_plugins = ["tests.swtpm_fixtures"]


def pytest_make_parametrize_id(val: object) -> str | None:
    """Bytes by their length: keys and signatures are new in each process, and workers must agree on names."""
    return f"{len(val)} bytes" if isinstance(val, bytes) else None
