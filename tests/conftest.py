"""Fixtures that every part's tests may use."""

from __future__ import annotations

pytest_plugins = ["tests.swtpm_fixtures"]
