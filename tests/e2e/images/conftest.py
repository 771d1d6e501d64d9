"""The images, and the chart installed with them; one for the session, beside the control plane of the other tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodewarden_demo.software_tpm import LocalCa
from tests.e2e import real_node
from tests.e2e.images.build import Image, build_images, missing_ability
from tests.e2e.images.installed import Installed, installed
from tests.e2e.images.layers import LayerStore
from tests.e2e.programs import cache


@pytest.fixture(scope="session")
def images() -> list[Image]:
    missing = missing_ability() or real_node.missing_ability()
    if missing is not None:
        if os.environ.get("CI") == "true":
            pytest.fail(missing)
        pytest.skip(missing)
    return build_images(LayerStore(cache().parent / "images"))


@pytest.fixture(scope="session")
def product(folder: Path, images: list[Image], maker: LocalCa) -> Iterator[Installed]:
    with installed(folder / "i", images, maker) as running:
        yield running
