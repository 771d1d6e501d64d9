"""The committed installation, by kind and name; and the chart rendered anew, where helm is built."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
INSTALL = ROOT / "deploy" / "install.yaml"

Manifest = dict[str, Any]


@cache
def _installed() -> tuple[Manifest, ...]:
    return tuple(document for document in yaml.safe_load_all(INSTALL.read_text()) if document)


def installed(kind: str) -> dict[str, Manifest]:
    """Every object of `kind` in deploy/install.yaml, by name; in each namespace names are unique here."""
    found = [document for document in _installed() if document["kind"] == kind]
    named = {document["metadata"]["name"]: document for document in found}
    assert len(named) == len(found)
    return named


def every_manifest() -> tuple[Manifest, ...]:
    """All of deploy/install.yaml."""
    return _installed()


def pod_templates() -> dict[str, Manifest]:
    """The pod template of every workload, by the workload's name."""
    return {
        name: document["spec"]["template"]
        for kind in ("Deployment", "DaemonSet")
        for name, document in installed(kind).items()
    }


def render(*arguments: str, required: bool = False) -> str:
    """The chart as deploy/render.sh renders it. Skips where helm is not built, or fails where it is `required`."""
    cache_folder = Path(os.environ.get("NODEWARDEN_CACHE") or Path.home() / ".cache" / "nodewarden")
    helm = shutil.which("helm") or str(cache_folder / "control-plane" / "helm")
    if not Path(helm).exists():
        reason = "no helm: deploy/control-plane/build-helm.sh builds it"
        if required:
            pytest.fail(reason)
        pytest.skip(reason)
    done = subprocess.run(
        [ROOT / "deploy" / "render.sh", *arguments],
        env={**os.environ, "HELM": helm},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode != 0:
        raise RenderRefusedError(done.stderr)
    return done.stdout


class RenderRefusedError(Exception):
    """Helm refused the values or the templates."""
