"""Software TPMs for tests: one is manufactured per run, every test gets a started copy of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nodewarden_demo.software_tpm import LocalCa, SoftwareTpm


@pytest.fixture(scope="session")
def tpm_ca(tmp_path_factory: pytest.TempPathFactory) -> LocalCa:
    """The CA that certified the EKs of `tpm` and `other_tpm`."""
    return LocalCa.create(tmp_path_factory.mktemp("tpm-ca") / "ca")


@pytest.fixture(scope="session")
def manufactured_tpm(tpm_ca: LocalCa, tmp_path_factory: pytest.TempPathFactory) -> SoftwareTpm:
    """A stopped TPM; `clone` it."""
    return SoftwareTpm.manufacture(tmp_path_factory.mktemp("tpm") / "state", tpm_ca, "node-a")


@pytest.fixture(scope="session")
def other_manufactured_tpm(tpm_ca: LocalCa, tmp_path_factory: pytest.TempPathFactory) -> SoftwareTpm:
    """A stopped TPM of another identity under the same CA."""
    return SoftwareTpm.manufacture(tmp_path_factory.mktemp("other-tpm") / "state", tpm_ca, "node-b")


@pytest.fixture
def tpm(manufactured_tpm: SoftwareTpm, tmp_path: Path) -> Iterator[SoftwareTpm]:
    """A running TPM, PCRs initial, with RSA-2048, P-256 and P-384 EKs and their certificates."""
    with manufactured_tpm.clone(tmp_path / "tpm") as running:
        yield running


@pytest.fixture
def other_tpm(other_manufactured_tpm: SoftwareTpm, tmp_path: Path) -> Iterator[SoftwareTpm]:
    """A running TPM that is not `tpm`."""
    with other_manufactured_tpm.clone(tmp_path / "other-tpm") as running:
        yield running
